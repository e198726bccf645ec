"""What a page says about a table or figure of a paper that was run again."""

from __future__ import annotations

from typing import Any

from gnomon.accounting import digits
from gnomon.report.read import Reproduction
from gnomon.report.section import Section, Table
from gnomon.studies.store import made_words


def of_reproduction(found: Reproduction) -> Section:
    """Picture, notes, and every cell with what was published and what was measured."""
    from gnomon.studies.reproduce.experiment import restored  # noqa: PLC0415  # reproduce draws with this package
    from gnomon.studies.reproduce.picture import pictures  # noqa: PLC0415
    from gnomon.studies.reproduce.result import caption, restored_row  # noqa: PLC0415

    experiment, rows = restored(found.experiment), [restored_row(row) for row in found.rows]
    return Section(
        title=experiment.title,
        slug=found.name,
        kind="reproduction",
        pictures=pictures(experiment, rows, apart=True) if rows else [],
        command=found.command,
        promise=[
            f"From: {experiment.paper}. {caption(experiment, rows)}"
            if rows
            else "Everything in this folder is unprotected and was left out.",
            "This is a study: its noise was seeded so that it can be repeated, so no run in it makes a privacy claim.",
            *experiment.notes,
        ],
        guarantee=False,
        facts=[("lines", str(len({row.line for row in rows}))), ("cells", str(len(rows)))],
        grid=_grid(experiment, rows),
        table=_table(experiment, rows),
        environment=_made(rows),
        seeded=True,
    )


def _made(rows: list[Any]) -> list[tuple[str, str]]:
    """The versions behind the rows, which need not be those of this machine."""
    said = made_words(one for row in rows for one in row.made)
    return [("runs", said)] if said else []


def _grid(experiment: Any, rows: list[Any]) -> Table | None:
    """A line a row and a value of the axis a column, as papers print it; nothing where that is one column or none."""
    from gnomon.studies.reproduce.experiment import NOISE  # noqa: PLC0415
    from gnomon.studies.reproduce.names import head, named, spoken  # noqa: PLC0415

    values = [value for value in experiment.values if any(row.value == value for row in rows)]
    if len(values) < 2 or experiment.over in ("rank", "plane"):
        return None
    found = {(row.line, row.value): row for row in rows}
    sign = "σ" if experiment.axis == NOISE else spoken(experiment.axis)
    costs = [{digits(row.epsilon) for row in rows if row.value == value and row.epsilon > 0} for value in values]
    heads = [
        f"{sign} {value:g}" + (f", ε {next(iter(cost))}" if len(cost) == 1 else "")
        for value, cost in zip(values, costs, strict=True)
    ]

    def cell(row: Any) -> tuple[str, float | str]:
        if row is None:
            return "not run", ""
        text, value = _number(row.measured, row.measured_std)
        told = "" if row.published is None else f"\n({_number(row.published, row.published_std)[0]})"
        return text + told, value

    cells = [
        ((named(experiment, line), line.name), *(cell(found.get((line.name, value))) for value in values))
        for line in experiment.lines
        if any(row.line == line.name for row in rows)
    ]
    told = ", what was published in parentheses" if any(row.published is not None for row in rows) else ""
    signs = ["σ is the noise multiplier"] * (experiment.axis == NOISE) + ["ε the true epsilon"] * any(
        len(cost) == 1 for cost in costs
    )
    about = f"{head(experiment)}: what was measured{told}" + (f"; {', '.join(signs)}" if signs else "")
    return Table(f"{about[0].upper()}{about[1:]}.", ("line", *heads), cells)


def _table(experiment: Any, rows: list[Any]) -> Table:
    from gnomon.studies.reproduce.names import difference, head, named, spoken  # noqa: PLC0415

    unit = f", {experiment.unit}" if experiment.unit else ""
    points = ", points" if experiment.unit == "%" else unit
    heads = (
        "line", spoken(experiment.axis), f"measured{unit}", f"published{unit}", f"difference{points}", "seeds",
        "epsilon as published", "true epsilon", f"epsilon if {experiment.as_coded_words}", "seconds a run",
    )  # fmt: skip
    names = {line.name: named(experiment, line) for line in experiment.lines}
    cells = [
        (
            (names.get(row.line, row.line), row.line),
            (f"{row.value:g}", row.value),
            _number(row.measured, row.measured_std),
            _number(row.published, row.published_std),
            ("–", "") if row.difference is None else (difference(row.measured, row.published), row.difference),
            (str(row.seeds), float(row.seeds)),
            ("–", "") if row.paper_epsilon is None else (f"{row.paper_epsilon:.15g}", row.paper_epsilon),
            *(_spent(value) for value in (row.epsilon, row.as_coded_epsilon)),
            (f"{row.seconds:.1f}", row.seconds),
        )
        for row in rows
    ]
    about = head(experiment)
    caption = f"{about[0].upper()}{about[1:]}: every cell, published and measured. Click a head to sort."
    return Table(caption, heads, cells)


def _number(value: float | None, off: float | None) -> tuple[str, float | str]:
    """A mean with its deviation, and what it sorts by."""
    from gnomon.studies.reproduce.names import spread, three  # noqa: PLC0415

    return ("–", "") if value is None else (f"{three(value)}{spread(off, value)}", value)


def _spent(epsilon: float | None) -> tuple[str, float | str]:
    return ("–", "") if epsilon is None else (digits(epsilon), epsilon)
