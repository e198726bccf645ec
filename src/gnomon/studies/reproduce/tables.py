"""Tables of an experiment in CSV and Markdown, with published and measured results side by side."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence

from gnomon.accounting import digits
from gnomon.studies.reproduce.experiment import Experiment
from gnomon.studies.reproduce.formatting import (
    accounting_words,
    format_deviation,
    format_difference,
    format_number,
    line_heading,
    setting_name,
    table_heading,
)
from gnomon.studies.reproduce.results import ResultRow
from gnomon.studies.store import round_numbers, versions_sentence


def csv_table(rows: Sequence[ResultRow]) -> str:
    """Return the rows as CSV.

    >>> csv_table([]).startswith("line,value,published")
    True
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [item.name for item in dataclasses.fields(ResultRow) if item.name not in ("series", "made", "runs")]
    writer.writerow([*names, "difference", "made"])
    for row in rows:
        writer.writerow([*(getattr(row, name) for name in names), row.difference, "; ".join(filter(None, row.made))])
    return out.getvalue()


def series_csv(rows: Sequence[ResultRow]) -> str:
    """Return the curves and points of the figure as CSV.

    >>> series_csv([]).strip()
    'line,value,name,epoch,at,mean,deviation'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["line", "value", "name", "epoch", "at", "mean", "deviation"])
    for row in rows:
        for series in row.series:
            deviations: Sequence[float | None] = series.deviation or [None] * len(series.at)
            for at, mean, deviation in zip(series.at, series.mean, deviations, strict=True):
                numbers = round_numbers([at, mean, deviation])
                writer.writerow([row.line, row.value, series.name, series.epoch, *numbers])
    return out.getvalue()


def markdown(experiment: Experiment, rows: Sequence[ResultRow]) -> str:
    """Return a Markdown table with a row per line and a column per value of the axis.

    A cell has the measured result in bold, and the published result with the difference in parentheses.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> row = ResultRow("DP-SGD", 6.0, 91.91, 0.56, 90.3, None, 1, 1.18, 0.88, 7.0, 1.0)
    >>> print(markdown(read_experiment("pcdp-table2"), [row]).splitlines()[6])
    | DP-SGD | **90.3** (91.9 ± 0.6; -1.6) |
    """
    values = [value for value in experiment.values if any(row.value == value for row in rows)]
    show_seeds = len({row.seeds for row in rows}) > 1
    legend = ["Measured results are bold"]
    if any(row.published is not None for row in rows):
        legend.append("published results and the difference (measured minus published) are in parentheses")
    if show_seeds:
        legend.append("the number of seeds is in brackets")
    cells = {(row.line, row.value): row for row in rows}
    headings = {
        line.name: " ".join(line_heading(experiment, line).split()).replace("|", "\\|") for line in experiment.lines
    }
    lines = [
        f"**{experiment.title}** ({experiment.paper}). {progress_sentence(experiment, rows)}",
        "",
        f"{'; '.join(legend)}.",
        "",
        f"| {table_heading(experiment)} | {' | '.join(f'{setting_name(experiment.axis)} {v:g}' for v in values)} |",
        "|---" * (len(values) + 1) + "|",
    ]
    for name in dict.fromkeys(row.line for row in rows):
        texts = ["not run" if (row := cells.get((name, value))) is None else _cell(row, show_seeds) for value in values]
        lines.append(f"| {headings.get(name, name)} | {' | '.join(texts)} |")
    lines += _epsilon_lines(experiment, rows, values)
    return "\n".join([*lines, "", *(f"- {note}" for note in experiment.notes)]) + "\n"


def progress_sentence(experiment: Experiment, rows: Sequence[ResultRow]) -> str:
    """Return how many cells and seeds are finished, whether runs were shortened, and the package versions.

    >>> from gnomon.studies.reproduce.experiment import ExperimentLine
    >>> lines = (ExperimentLine("DP-SGD", "dp-sgd"),)
    >>> table = Experiment("mine", "", "", {}, "noise-multiplier", (6.0, 10.0), 4, lines)
    >>> progress_sentence(table, [ResultRow("DP-SGD", 6.0, 91.91, 0.56, 90.3, None, 1, 1.18, 0.88, 7.0, 1.0)])
    '1 of 2 cells finished, 1 seed per cell (4 planned).'
    """
    cells, seeds = len(experiment.lines) * len(experiment.values), sorted({row.seeds for row in rows})
    count = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    text = f"{count} seed{'' if count == '1' else 's'} per cell"
    if len(rows) < cells:
        text = f"{len(rows)} of {cells} cells finished, {text}"
    text += f" ({experiment.seeds} planned)." if seeds[0] < experiment.seeds else "."
    if experiment.is_fast:
        changes = ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in experiment.fast.get("settings", {}).items()
        )
        text += (
            f" SHORT RUNS (--fast: {changes}): compare trends with the published results, not numbers."
            if changes
            else " SMALL PART (--fast) of the whole experiment."
        )
    return f"{text} {versions_sentence(version for row in rows for version in row.made)}".rstrip()


def _cell(row: ResultRow, show_seeds: bool) -> str:
    text = "–" if row.measured is None else f"**{_mean_and_deviation(row.measured, row.measured_std)}**"
    if row.published is not None:
        difference = "" if row.measured is None else f"; {format_difference(row.measured, row.published)}"
        text += f" ({_mean_and_deviation(row.published, row.published_std)}{difference})"
    return text + (f" [{row.seeds}]" if show_seeds else "")


def _mean_and_deviation(mean: float, deviation: float | None) -> str:
    return f"{format_number(mean)}{format_deviation(deviation, mean)}"


def _epsilon_lines(experiment: Experiment, rows: Sequence[ResultRow], values: Sequence[float]) -> list[str]:
    """Return table lines with the published epsilon, the true one, and the one of the published code's batches."""
    kinds = (
        ("published epsilon", lambda row: row.paper_epsilon),
        (f"true epsilon of these runs ({accounting_words(experiment)})", lambda row: row.epsilon),
        (f"epsilon of batches as in PDP-SGD's code ({experiment.as_coded_words})", lambda row: row.as_coded_epsilon),
    )
    private = [row for row in rows if row.epsilon > 0]
    lines = []
    for name, epsilon_of in kinds:
        columns = [
            [epsilon for row in private if row.value == value and (epsilon := epsilon_of(row)) is not None]
            for value in values
        ]
        if any(columns):
            lines.append(f"| {name} | " + " | ".join(map(epsilon_range, columns)) + " |")
    return lines


def epsilon_range(epsilons: Sequence[float]) -> str:
    """Return one number if all epsilons are printed alike, otherwise the smallest and the largest.

    >>> epsilon_range([1.0, 1.0]), epsilon_range([1.0, 2.0]), epsilon_range([])
    ('1.000', '1.000 to 2.000', '–')
    """
    if not epsilons:
        return "–"
    return " to ".join(dict.fromkeys(digits(epsilon) for epsilon in (min(epsilons), max(epsilons))))
