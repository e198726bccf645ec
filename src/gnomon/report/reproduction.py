"""The folder of a reproduced table or figure of a paper: reading it and describing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.accounting import digits
from gnomon.errors import DataError
from gnomon.report.run_files import REMEDY, UNPROTECTED, read_json
from gnomon.report.section import Cell, Section, Table
from gnomon.studies.reproduce.experiment import NOISE, Experiment
from gnomon.studies.reproduce.figures import figures
from gnomon.studies.reproduce.formatting import (
    format_deviation,
    format_difference,
    format_number,
    line_heading,
    setting_name,
    table_heading,
)
from gnomon.studies.reproduce.results import ResultRow
from gnomon.studies.reproduce.tables import progress_sentence
from gnomon.studies.store import versions_sentence


@dataclass(frozen=True)
class SavedReproduction:
    """The folder of `gnomon reproduce` for one experiment."""

    name: str
    experiment: Experiment
    rows: list[ResultRow]
    command: str

    @classmethod
    def read(cls, folder: Path, *, unprotected: bool = True) -> SavedReproduction:
        """Read the folder of a reproduction, with or without its unprotected values."""
        path = folder / "reproduction.json"
        content = read_json(path)
        try:
            experiment, rows = content["experiment"], content["rows"]
            if not unprotected:
                experiment, rows = _without_unprotected(experiment, rows)
            return cls(
                folder.resolve().name,
                Experiment.from_dict(experiment),
                [ResultRow.from_dict(row) for row in rows],
                content["command"],
            )
        except (KeyError, TypeError) as error:
            raise DataError(path, f"is incomplete ({error!r})", REMEDY) from None

    def section(self) -> Section:
        """Return the section of the page about this reproduction: figures, notes and all results."""
        experiment, rows = self.experiment, self.rows
        versions = versions_sentence(version for row in rows for version in row.made)
        return Section(
            title=experiment.title,
            slug=self.name,
            kind="reproduction",
            pictures=figures(experiment, rows, apart=True) if rows else [],
            command=self.command,
            promise=[
                f"From: {experiment.paper}. {progress_sentence(experiment, rows)}"
                if rows
                else "All results in this folder are unprotected and were left out.",
                "This is a study. Its noise was seeded so that it can be repeated, so no run in it makes a privacy "
                "claim.",
                *experiment.notes,
            ],
            guarantee=False,
            facts=[("lines", str(len({row.line for row in rows}))), ("cells", str(len(rows)))],
            grid=_grid(experiment, rows),
            table=_table(experiment, rows),
            environment=[("runs", versions)] if versions else [],
            seeded=True,
        )

    def overview_row(self) -> tuple[Cell, ...] | None:
        """Return None: a reproduction has no row in the table of all runs of a page."""
        return None


def _without_unprotected(
    experiment: dict[str, Any], rows: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Remove the lines that measure an unprotected quantity, and unprotected curves and points."""
    unprotected = {
        line["name"]
        for line in experiment["lines"]
        if (line["measure"] or experiment["measure"]).startswith(UNPROTECTED)
    }
    rows = [row for row in rows if row["line"] not in unprotected]
    if experiment.get("draw", "").startswith(UNPROTECTED):
        rows = [row | {"series": []} for row in rows]
    lines = [line for line in experiment["lines"] if line["name"] not in unprotected]
    return experiment | {"lines": lines}, rows


def _grid(experiment: Experiment, rows: Sequence[ResultRow]) -> Table | None:
    """Return the results as papers print them, with a column per value of the axis; None for fewer than two columns."""
    values = [value for value in experiment.values if any(row.value == value for row in rows)]
    if len(values) < 2 or experiment.over in ("rank", "plane"):
        return None
    by_cell = {(row.line, row.value): row for row in rows}
    axis = "σ" if experiment.axis == NOISE else setting_name(experiment.axis)
    epsilons = [{digits(row.epsilon) for row in rows if row.value == value and row.epsilon > 0} for value in values]
    heads = [
        f"{axis} {value:g}" + (f", ε {next(iter(distinct))}" if len(distinct) == 1 else "")
        for value, distinct in zip(values, epsilons, strict=True)
    ]
    cells = [
        (
            (line_heading(experiment, line), line.name),
            *(_measured_and_published(by_cell.get((line.name, value))) for value in values),
        )
        for line in experiment.lines
        if any(row.line == line.name for row in rows)
    ]
    caption = f"{_capitalised(table_heading(experiment))}: measured results"
    if any(row.published is not None for row in rows):
        caption += ", with published results in parentheses"
    if experiment.axis == NOISE:
        caption += "; σ is the noise multiplier"
    if any(len(distinct) == 1 for distinct in epsilons):
        caption += "; ε is the true epsilon"
    return Table(f"{caption}.", ("line", *heads), cells)


def _measured_and_published(row: ResultRow | None) -> Cell:
    if row is None:
        return "not run", ""
    text, value = _mean_and_deviation(row.measured, row.measured_std)
    if row.published is not None:
        text += f"\n({_mean_and_deviation(row.published, row.published_std)[0]})"
    return text, value


def _table(experiment: Experiment, rows: Sequence[ResultRow]) -> Table:
    """Return all results, one per row."""
    unit = f", {experiment.unit}" if experiment.unit else ""
    difference_unit = ", points" if experiment.unit == "%" else unit
    heads = (
        "line", setting_name(experiment.axis), f"measured{unit}", f"published{unit}", f"difference{difference_unit}",
        "seeds", "published epsilon", "true epsilon", f"epsilon with {experiment.as_coded_words}", "seconds per run",
    )  # fmt: skip
    headings = {line.name: line_heading(experiment, line) for line in experiment.lines}
    cells = [
        (
            (headings.get(row.line, row.line), row.line),
            (f"{row.value:g}", row.value),
            _mean_and_deviation(row.measured, row.measured_std),
            _mean_and_deviation(row.published, row.published_std),
            _difference(row),
            (str(row.seeds), float(row.seeds)),
            ("–", "") if row.paper_epsilon is None else (f"{row.paper_epsilon:.15g}", row.paper_epsilon),
            _epsilon(row.epsilon),
            _epsilon(row.as_coded_epsilon),
            (f"{row.seconds:.1f}", row.seconds),
        )
        for row in rows
    ]
    caption = f"{_capitalised(table_heading(experiment))}: all measured and published results."
    return Table(f"{caption} Click a column heading to sort.", heads, cells)


def _mean_and_deviation(mean: float | None, deviation: float | None) -> Cell:
    return ("–", "") if mean is None else (f"{format_number(mean)}{format_deviation(deviation, mean)}", mean)


def _difference(row: ResultRow) -> Cell:
    if row.measured is None or row.published is None:
        return "–", ""
    return format_difference(row.measured, row.published), row.measured - row.published


def _epsilon(epsilon: float | None) -> Cell:
    return ("–", "") if epsilon is None else (digits(epsilon), epsilon)


def _capitalised(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"
