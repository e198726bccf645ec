"""Published and measured side by side."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.accounting import digits
from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine
from gnomon.studies.reproduce.names import accounted, difference, head, named, spoken, spread, three
from gnomon.studies.reproduce.series import Series, reading, series_of
from gnomon.studies.store import ALONG, INFINITE, finite, made_with, made_words, rounded


@dataclass(frozen=True)
class ResultRow:
    """One line at one value of the axis.

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
    paper_epsilon: float | None
    epsilon: float
    """True for our runs: Poisson batches, add-remove, privacy loss distributions."""
    as_coded_epsilon: float | None
    seconds: float
    series: list[Series] = field(default_factory=list)
    """What the picture shows, where one number is not enough."""
    made: list[str] = field(default_factory=list)
    """Versions that the runs were made with; "" for those that do not say."""
    runs: int = 0
    """How many runs there are; `seeds` counts those with a score, as a run that diverged has none."""

    @property
    def difference(self) -> float | None:
        """Measured minus published.

        >>> ResultRow("a", 6.0, 90.0, None, 91.5, None, 1, None, 0.9, None, 1.0).difference
        1.5
        """
        if self.published is None or self.measured is None:
            return None
        return self.measured - self.published


def row_of(
    experiment: Experiment,
    line: ExperimentLine,
    value: float,
    results: Sequence[dict[str, Any]],
    as_coded: float | None,
) -> ResultRow:
    """The results of all seeds as one row."""
    scores = [score for one in results if (score := measured(experiment.measure_of(line), one)) is not None]
    published, off = line.published.get(value, (None, None))
    private = results[0]["epsilon"] > 0
    return ResultRow(
        line.name,
        value,
        published,
        off,
        statistics.fmean(scores) if scores else None,
        statistics.stdev(scores) if len(scores) > 1 else None,
        len(scores),
        experiment.paper_epsilon.get(value) if private else None,
        results[0]["epsilon"],
        as_coded if private else None,
        statistics.fmean(one["seconds"] for one in results),
        series_of(experiment, line, results),
        made_with(results),
        len(results),
    )


def restored_row(values: Mapping[str, Any]) -> ResultRow:
    """The row that `plain_row` turned into plain values.

    >>> row = ResultRow("SGD", 6.0, None, None, 90.3, None, 1, None, math.inf, None, 1.0)
    >>> restored_row(plain_row(row)) == row
    True
    """
    series = [Series(**one) for one in values.get("series", [])]
    epsilon = math.inf if values["epsilon"] == INFINITE else values["epsilon"]
    return ResultRow(**{**values, "series": series, "epsilon": epsilon})


def plain_row(row: ResultRow) -> dict[str, Any]:
    """A row for JSON."""
    return finite(dataclasses.asdict(row) | {"series": [rounded(dataclasses.asdict(one)) for one in row.series]})


def measured(measure: str, result: dict[str, Any]) -> float | None:
    """What is measured in a run: its accuracy in per cent, or the last value of a metric; nothing if it diverged.

    >>> measured("accuracy", {"accuracy": 0.91})
    91.0
    >>> measured("loss", {"history": [{"epoch": 1.0, "loss": 0.5}, {"epoch": 2.0, "loss": None}]}) is None
    True
    """
    if measure == "accuracy":
        return _number(result["accuracy"], 100)
    key, scale = reading(measure)
    for part in reversed(ALONG):
        rows = result.get(part, [])
        if any(key in row for row in rows):
            return _number(rows[-1].get(key), scale)  # a value that is not finite is not there, or None
    return None


def _number(value: float | None, scale: float = 1) -> float | None:
    """A finite number, or nothing."""
    return None if value is None or not math.isfinite(value) else scale * float(value)


def table(rows: Sequence[ResultRow]) -> str:
    """The rows as CSV.

    >>> table([]).startswith("line,value,published")
    True
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [one.name for one in dataclasses.fields(ResultRow) if one.name not in ("series", "made", "runs")]
    writer.writerow([*names, "difference", "made"])
    for row in rows:
        writer.writerow([*(getattr(row, name) for name in names), row.difference, "; ".join(filter(None, row.made))])
    return out.getvalue()


def series_table(rows: Sequence[ResultRow]) -> str:
    """What pictures show along runs, as CSV.

    >>> series_table([]).strip()
    'line,value,name,epoch,at,mean,deviation'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["line", "value", "name", "epoch", "at", "mean", "deviation"])
    for row in rows:
        for one in row.series:
            deviations: Sequence[float | None] = one.deviation or [None] * len(one.at)
            for at, mean, deviation in zip(one.at, one.mean, deviations, strict=True):
                writer.writerow([row.line, row.value, one.name, one.epoch, *rounded([at, mean, deviation])])
    return out.getvalue()


def markdown(experiment: Experiment, rows: Sequence[ResultRow]) -> str:
    """A row for each line and a column for each value: measured, and what was published, with the difference.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> row = ResultRow("DP-SGD", 6.0, 91.91, 0.56, 90.3, None, 1, 1.18, 0.88, 7.0, 1.0)
    >>> print(markdown(read_experiment("pcdp-table2"), [row]).splitlines()[6])
    | DP-SGD | **90.3** (91.9 ± 0.6; -1.6) |
    """
    values = [value for value in experiment.values if any(row.value == value for row in rows)]
    uneven = len({row.seeds for row in rows}) > 1
    told = (
        ", published in parentheses, with measured minus published"
        if any(row.published is not None for row in rows)
        else ""
    )
    cells = {(row.line, row.value): row for row in rows}
    heads = [f"{spoken(experiment.axis)} {value:g}" for value in values]
    names = {line.name: " ".join(named(experiment, line).split()).replace("|", "\\|") for line in experiment.lines}
    lines = [
        f"**{experiment.title}** ({experiment.paper}). {caption(experiment, rows)}",
        "",
        f"Measured in bold{told}{', seeds in brackets' if uneven else ''}.",
        "",
        f"| {head(experiment)} | {' | '.join(heads)} |",
        "|---" * (len(values) + 1) + "|",
    ]
    for name in dict.fromkeys(row.line for row in rows):
        mine = [cells.get((name, value)) for value in values]
        lines.append(
            f"| {names.get(name, name)} | "
            + " | ".join("not run" if row is None else _cell(row, uneven) for row in mine)
            + " |"
        )
    lines += _epsilons(experiment, rows, values)
    return "\n".join([*lines, "", *(f"- {note}" for note in experiment.notes)]) + "\n"


def caption(experiment: Experiment, rows: Sequence[ResultRow]) -> str:
    """How far the runs behind the numbers go.

    >>> lines = (ExperimentLine("DP-SGD", "dp-sgd"),)
    >>> table = Experiment("mine", "", "", {}, "noise-multiplier", (6.0, 10.0), 4, lines)
    >>> caption(table, [ResultRow("DP-SGD", 6.0, 91.91, 0.56, 90.3, None, 1, 1.18, 0.88, 7.0, 1.0)])
    '1 of 2 cells run, 1 seed each where 4 are planned.'
    """
    planned, seeds = len(experiment.lines) * len(experiment.values), sorted({row.seeds for row in rows})
    counts = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    said = f"{counts} seed{'' if counts == '1' else 's'}"
    if len(rows) < planned:
        said = f"{len(rows)} of {planned} cells run, {said} each"
    said += f" where {experiment.seeds} are planned." if seeds[0] < experiment.seeds else "."
    changed = experiment.fast.get("settings", {}) if experiment.is_fast else {}
    if experiment.is_fast and not changed:
        said += " A SMALL PART (--fast) of what the file asks for."
    if changed:
        what = ", ".join(
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in changed.items()
        )
        said += f" SHORT RUNS (--fast: {what}): compare their shape with the published numbers, not the numbers."
    made = made_words(one for row in rows for one in row.made)
    return f"{said} {made}".rstrip()


def _cell(row: ResultRow, count: bool) -> str:
    ours = "–" if row.measured is None else f"**{three(row.measured)}{spread(row.measured_std, row.measured)}**"
    theirs = ""
    if row.published is not None:
        apart = "" if row.measured is None else f"; {difference(row.measured, row.published)}"
        theirs = f" ({three(row.published)}{spread(row.published_std, row.published)}{apart})"
    return ours + theirs + (f" [{row.seeds}]" if count else "")


def _epsilons(experiment: Experiment, rows: Sequence[ResultRow], values: Sequence[float]) -> list[str]:
    """What the paper printed, what is true, and what the published code's batches would cost."""
    kinds = (
        ("epsilon as published", lambda row: row.paper_epsilon),
        (f"epsilon, true for our runs ({accounted(experiment)})", lambda row: row.epsilon),
        (f"epsilon if done as in the code of PDP-SGD: {experiment.as_coded_words}", lambda row: row.as_coded_epsilon),
    )
    private = [row for row in rows if row.epsilon > 0]
    lines = []
    for name, pick in kinds:
        found = [[one for row in private if row.value == value and (one := pick(row)) is not None] for value in values]
        if any(found):
            lines.append(f"| {name} | " + " | ".join(map(_range, found)) + " |")
    return lines


def _range(found: Sequence[float]) -> str:
    """One number if all lines share it, else the least and the greatest."""
    return " to ".join(dict.fromkeys(digits(one) for one in (min(found), max(found)))) if found else "–"
