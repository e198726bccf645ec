"""Numbers along a run: over epochs, over ranks, or as points in a plane."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine


@dataclass(frozen=True)
class Series:
    """One line, or one set of points, of a picture: means over seeds, and their deviation.

    >>> Series("", at=[1.0, 2.0], mean=[50.0, 60.0], deviation=[]).mean[-1]
    60.0
    """

    name: str
    at: list[float]
    mean: list[float]
    deviation: list[float]
    epoch: float | None = None
    """When it was seen, if it is from one look."""


def series_of(experiment: Experiment, line: ExperimentLine, results: Sequence[Mapping[str, Any]]) -> list[Series]:
    """What the picture shows of the runs of one cell."""
    if experiment.over == "epoch":
        return along(experiment.measure_of(line), results)
    looks = list(zip(*(one.get("diagnostics", []) for one in results), strict=True))
    if experiment.over == "rank":
        return [_ranked(experiment.draw, look) for look in looks]
    if experiment.over == "plane":
        return [one for look in looks for one in _points(experiment.draw, look[0])]
    return []


def along(measure: str, results: Sequence[Mapping[str, Any]]) -> list[Series]:
    """A measure over epochs, at those epochs where every run has it; nothing if none has.

    >>> runs = [{"history": [{"epoch": 1.0}, {"epoch": 2.0, "validation/accuracy": a}]} for a in (0.5, 0.7)]
    >>> along("accuracy", runs)[0].at, [round(one, 1) for one in along("accuracy", runs)[0].mean]
    ([2.0], [60.0])
    """
    key, scale = reading(measure)
    found = [{row["epoch"]: scale * row[key] for row in rows(one) if row.get(key) is not None} for one in results]
    at = [epoch for epoch in found[0] if all(epoch in one for one in found)]
    return [_over_seeds("", at, [[one[epoch] for epoch in at] for one in found])] if at else []


def reading(measure: str) -> tuple[str, float]:
    """Where a measure stands in what was recorded along a run, and what it is multiplied with: accuracies are in %.

    >>> reading("accuracy"), reading("unprotected/train/accuracy"), reading("unprotected/loss")
    (('validation/accuracy', 100.0), ('unprotected/train/accuracy', 100.0), ('unprotected/loss', 1.0))
    """
    key = "validation/accuracy" if measure == "accuracy" else measure
    return key, 100.0 if key.endswith("/accuracy") else 1.0


def rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that was recorded along a run."""
    return [*result.get("history", []), *result.get("diagnostics", [])]


def _ranked(key: str, look: Sequence[Mapping[str, Any]]) -> Series:
    """Sorted numbers of one look, as [rank, number] or as numbers alone."""
    lists = [[one if isinstance(one, list) else [n, one] for n, one in enumerate(seen[key], 1)] for seen in look]
    length = min(map(len, lists))
    at = [float(rank) for rank, _ in lists[0][:length]]
    return _over_seeds("", at, [[value for _, value in one[:length]] for one in lists], look[0]["epoch"])


def _points(key: str, seen: Mapping[str, Any]) -> list[Series]:
    """The points of one run's look, by kind."""
    return [
        Series(kind, [x for x, _ in points], [y for _, y in points], [], seen["epoch"])
        for kind, points in seen[key].items()
    ]


def _over_seeds(name: str, at: list[float], values: Sequence[Sequence[float]], epoch: float | None = None) -> Series:
    columns = list(zip(*values, strict=True))
    deviation = [statistics.stdev(column) for column in columns] if len(values) > 1 else []
    return Series(name, at, [statistics.fmean(column) for column in columns], deviation, epoch)
