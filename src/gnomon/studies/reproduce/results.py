"""The results of an experiment: one row per line and value of the axis, and the series that its figure shows."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine
from gnomon.studies.store import INFINITE, ROW_KEYS, package_versions, replace_infinity, round_numbers


@dataclass(frozen=True)
class Series:
    """One curve, or one set of points, of a figure: means over seeds with their standard deviations.

    >>> Series("", at=[1.0, 2.0], mean=[50.0, 60.0], deviation=[]).mean[-1]
    60.0
    """

    name: str
    at: list[float]
    """The horizontal coordinates: epochs, ranks, or a coordinate of points in a plane."""
    mean: list[float]
    """The vertical coordinates."""
    deviation: list[float]
    """The standard deviation over seeds; empty for one seed."""
    epoch: float | None = None
    """The epoch at which a diagnostic was recorded."""


@dataclass(frozen=True)
class ResultRow:
    """The results of one line at one value of the axis.

    >>> ResultRow("DP-SGD", 6.0, 91.91, 0.56, 90.3, None, 1, 1.18, 0.88, 7.0, 150.0).epsilon
    0.88
    """

    line: str
    value: float
    published: float | None
    published_std: float | None
    measured: float | None
    measured_std: float | None
    seeds: int
    """The number of runs with a score; a run that diverged has none."""
    paper_epsilon: float | None
    """The epsilon that the paper states."""
    epsilon: float
    """The true epsilon of these runs, by their own sampling and accountant."""
    as_coded_epsilon: float | None
    """The epsilon of the batches that the published code draws."""
    seconds: float
    """The mean training time of a run."""
    series: list[Series] = field(default_factory=list)
    """The curves or points of the figure, if it shows more than one number per row."""
    made: list[str] = field(default_factory=list)
    """The package versions behind the runs; "" for runs that did not record them."""
    runs: int = 0
    """The number of all runs."""

    @property
    def difference(self) -> float | None:
        """Measured minus published.

        >>> ResultRow("a", 6.0, 90.0, None, 91.5, None, 1, None, 0.9, None, 1.0).difference
        1.5
        """
        if self.published is None or self.measured is None:
            return None
        return self.measured - self.published

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values for JSON, with rounded series."""
        series = [round_numbers(dataclasses.asdict(curve)) for curve in self.series]
        return replace_infinity(dataclasses.asdict(self) | {"series": series})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ResultRow:
        """Return the row that `to_dict` turned into plain values.

        >>> row = ResultRow("SGD", 6.0, None, None, 90.3, None, 1, None, math.inf, None, 1.0)
        >>> ResultRow.from_dict(row.to_dict()) == row
        True
        """
        series = [Series(**curve) for curve in values.get("series", [])]
        epsilon = math.inf if values["epsilon"] == INFINITE else values["epsilon"]
        return cls(**{**values, "series": series, "epsilon": epsilon})


def result_row(
    experiment: Experiment,
    line: ExperimentLine,
    value: float,
    results: Sequence[dict[str, Any]],
    as_coded_epsilon: float | None,
) -> ResultRow:
    """Return the results of all seeds of one line at one value as a row."""
    measure = experiment.measure_of(line)
    scores = [score for result in results if (score := final_score(measure, result)) is not None]
    published, published_std = line.published.get(value, (None, None))
    private = results[0]["epsilon"] > 0
    return ResultRow(
        line=line.name,
        value=value,
        published=published,
        published_std=published_std,
        measured=statistics.fmean(scores) if scores else None,
        measured_std=statistics.stdev(scores) if len(scores) > 1 else None,
        seeds=len(scores),
        paper_epsilon=experiment.paper_epsilon.get(value) if private else None,
        epsilon=results[0]["epsilon"],
        as_coded_epsilon=as_coded_epsilon if private else None,
        seconds=statistics.fmean(result["seconds"] for result in results),
        series=_series(experiment, measure, results),
        made=package_versions(results),
        runs=len(results),
    )


def final_score(measure: str, result: Mapping[str, Any]) -> float | None:
    """Return the final value of a measure: accuracies in per cent, and None if the run diverged.

    >>> final_score("accuracy", {"accuracy": 0.91})
    91.0
    >>> final_score("loss", {"history": [{"epoch": 1.0, "loss": 0.5}, {"epoch": 2.0, "loss": None}]}) is None
    True
    """
    if measure == "accuracy":
        return _finite(result["accuracy"], 100)
    key, scale = metric_of(measure)
    for part in reversed(ROW_KEYS):
        rows = result.get(part, [])
        if any(key in row for row in rows):
            return _finite(rows[-1].get(key), scale)  # a value that is not finite is stored as None or left out
    return None


def _finite(value: float | None, scale: float) -> float | None:
    return None if value is None or not math.isfinite(value) else scale * float(value)


def metric_of(measure: str) -> tuple[str, float]:
    """Return the name of the recorded metric behind a measure, and its scale: accuracies are shown in per cent.

    >>> metric_of("accuracy"), metric_of("unprotected/loss")
    (('validation/accuracy', 100.0), ('unprotected/loss', 1.0))
    """
    metric = "validation/accuracy" if measure == "accuracy" else measure
    return metric, 100.0 if metric.endswith("/accuracy") else 1.0


def _series(experiment: Experiment, measure: str, results: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return the curves or points that the figure of an experiment shows of the runs of one cell."""
    if experiment.over == "epoch":
        return epoch_curves(measure, results)
    looks = list(zip(*(result.get("diagnostics", []) for result in results), strict=True))
    if experiment.over == "rank":
        return [_rank_curve(experiment.draw, look) for look in looks]
    if experiment.over == "plane":
        return [points for look in looks for points in _plane_points(experiment.draw, look[0])]
    return []


def epoch_curves(measure: str, results: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return a measure over the epochs at which every run recorded it; an empty list if there are none.

    >>> runs = [{"history": [{"epoch": 1.0}, {"epoch": 2.0, "validation/accuracy": a}]} for a in (0.5, 0.7)]
    >>> [curve] = epoch_curves("accuracy", runs)
    >>> curve.at, [round(mean, 1) for mean in curve.mean]
    ([2.0], [60.0])
    """
    metric, scale = metric_of(measure)
    by_epoch = [
        {row["epoch"]: scale * row[metric] for part in ROW_KEYS for row in result.get(part, []) if _has(row, metric)}
        for result in results
    ]
    epochs = [epoch for epoch in by_epoch[0] if all(epoch in values for values in by_epoch)]
    return [_over_seeds(epochs, [[values[epoch] for epoch in epochs] for values in by_epoch])] if epochs else []


def _has(row: Mapping[str, Any], metric: str) -> bool:
    return row.get(metric) is not None


def _rank_curve(diagnostic: str, look: Sequence[Mapping[str, Any]]) -> Series:
    """Return the sorted values of one diagnostic, which are stored as [rank, value] or as values alone."""
    by_seed = [
        [entry if isinstance(entry, list) else [rank, entry] for rank, entry in enumerate(record[diagnostic], 1)]
        for record in look
    ]
    length = min(map(len, by_seed))
    ranks = [float(rank) for rank, _ in by_seed[0][:length]]
    return _over_seeds(ranks, [[value for _, value in pairs[:length]] for pairs in by_seed], look[0]["epoch"])


def _plane_points(diagnostic: str, record: Mapping[str, Any]) -> list[Series]:
    """Return the points of one diagnostic of one run, by kind."""
    return [
        Series(kind, [x for x, _ in points], [y for _, y in points], [], record["epoch"])
        for kind, points in record[diagnostic].items()
    ]


def _over_seeds(at: list[float], values: Sequence[Sequence[float]], epoch: float | None = None) -> Series:
    columns = list(zip(*values, strict=True))
    deviation = [statistics.stdev(column) for column in columns] if len(values) > 1 else []
    return Series("", at, [statistics.fmean(column) for column in columns], deviation, epoch)
