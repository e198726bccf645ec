"""Measured results of the recipes, which are kept with the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "evidence.json"


@dataclass(frozen=True)
class Evidence:
    """The mean test accuracy of a recipe on one data set at one budget, beside its baselines.

    Attributes:
        experiment: the name of the experiment, as `gnomon reproduce` takes it.
        data: the data set.
        records: the number of private records.
        epsilon: the true epsilon of the runs.
        line: the recipe or the baseline: "best", "cold", "no-public", "public-only" or the name of a method.
        accuracy: the mean test accuracy.
        deviation: the standard deviation over seeds; None for one seed.
        seeds: the number of seeds.
    """

    experiment: str
    data: str
    records: int
    epsilon: float
    line: str
    accuracy: float
    deviation: float | None
    seeds: int

    def text(self) -> str:
        """Return the accuracy in percent with its deviation.

        >>> Evidence("recipes-mnist", "mnist", 10_000, 0.38, "best", 0.969, 0.001, 5).text()
        '96.9 ± 0.1 %'
        """
        deviation = "" if self.deviation is None else f" ± {100 * self.deviation:.1f}"
        return f"{100 * self.accuracy:.1f}{deviation} %"


@cache
def evidence() -> tuple[Evidence, ...]:
    """Return all measured results.

    >>> all(0 <= entry.accuracy <= 1 for entry in evidence())
    True
    """
    return tuple(Evidence(**entry) for entry in json.loads(FILE.read_text()))


def nearest(data: str, records: int, epsilon: float, line: str) -> Evidence | None:
    """Return the result of a line on a data set that is nearest in size and budget, within a factor of two of each.

    >>> nearest("a data set that nobody measured", 10, 1.0, "best") is None
    True
    """
    close = [
        entry
        for entry in evidence()
        if entry.data == data
        and entry.line == line
        and 0.5 <= entry.records / records <= 2
        and entry.epsilon > 0
        and 0.5 <= entry.epsilon / epsilon <= 2
    ]
    return min(close, key=lambda entry: max(entry.epsilon / epsilon, epsilon / entry.epsilon), default=None)
