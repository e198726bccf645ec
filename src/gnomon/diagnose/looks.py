"""A few looks inside a run, at the same private records each time. Unprotected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gnomon import validate
from gnomon.data import Loader
from gnomon.diagnose.cloud import spread
from gnomon.diagnose.observer import Diagnostics
from gnomon.errors import SettingError
from gnomon.training.observer import StepView
from gnomon.training.trainer import Trainer

POINTS = 100
"""How many points of a longer list are kept."""
GRAM = 1000
"""A spectrum looks at no more gradients than this."""


@dataclass(frozen=True)
class Looks:
    """So many looks from the first step to the last, at so many records; what is kept of each.

    >>> Looks(times=3).steps(100)
    [0, 50, 99]
    """

    times: int = 4
    records: int = 100
    shown: int = 60
    """How many eigenvalues of a spectrum."""
    keep: tuple[str, ...] = ()
    """Names of diagnostics, such as `unprotected/spectrum`."""

    def __post_init__(self) -> None:
        validate.whole("times", self.times, least=2)
        validate.whole("records", self.records, least=2)
        validate.whole("shown", self.shown)

    def steps(self, planned: int) -> list[int]:
        """The steps before which to look."""
        return sorted({round(n * (planned - 1) / (self.times - 1)) for n in range(self.times)})

    def along(self, trainer: Trainer, private: Any) -> list[dict[str, Any]]:
        """Have the trainer look; the list fills while it trains."""
        found: list[dict[str, Any]] = []
        due, loader = set(self.steps(trainer.mechanism.steps)), Loader(private)
        sample = loader.take(spread(len(loader), self.records))
        diagnostics = Diagnostics(found.append, records=min(self.records, GRAM), shown=self.shown)

        def observe(view: StepView) -> None:
            step = view.context.step
            if step not in due:
                return
            record = diagnostics.record(trainer.engine.preview(*sample, step=step))
            found.append({"step": step, "epoch": step / view.context.steps_per_epoch, **self._kept(record)})

        trainer.observers += (observe,)
        return found

    def _kept(self, record: dict[str, Any]) -> dict[str, Any]:
        """What there is of what was asked for; methods without a subspace have no projected norms."""
        found = {name: thinned(record[name]) for name in self.keep if name in record}
        if not found:
            raise SettingError("looks", ", ".join(self.keep), f"one of {', '.join(record)}")
        return found


def thinned(value: Any) -> Any:
    """A list of numbers that is longer than `POINTS` as [rank, number] at ranks that grow by a constant factor.

    >>> thinned([5.0, 4.0]), len(thinned(list(range(1000)))) <= POINTS
    ([5.0, 4.0], True)
    """
    if not isinstance(value, list) or len(value) <= POINTS or isinstance(value[0], list):
        return value
    ranks = torch.logspace(0, torch.tensor(float(len(value))).log10().item(), POINTS).round().long().unique().tolist()
    return [[rank, value[rank - 1]] for rank in ranks]
