"""What a page says about a table or figure of a paper that was run again."""

from __future__ import annotations

from typing import Any

from gnomon.report.read import Reproduction
from gnomon.report.section import Section, Table
from gnomon.store import made_words


def of_reproduction(found: Reproduction) -> Section:
    """Picture, notes, and every cell with what was published and what was measured."""
    from gnomon.reproduce.experiment import restored  # noqa: PLC0415  # reproduce draws with this package
    from gnomon.reproduce.picture import pictures  # noqa: PLC0415
    from gnomon.reproduce.result import caption, restored_row  # noqa: PLC0415

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
        table=_table(experiment, rows),
        environment=_made(rows),
        seeded=True,
    )


def _made(rows: list[Any]) -> list[tuple[str, str]]:
    """The versions behind the rows, which need not be those of this machine."""
    said = made_words(one for row in rows for one in row.made)
    return [("runs", said)] if said else []


def _table(experiment: Any, rows: list[Any]) -> Table:
    from gnomon.reproduce.words import difference, head, named, spoken, spread, three  # noqa: PLC0415

    unit = f", {experiment.unit}" if experiment.unit else ""
    points = ", points" if experiment.unit == "%" else unit
    heads = (
        "line", spoken(experiment.axis), f"measured{unit}", f"published{unit}", f"difference{points}", "seeds",
        "epsilon as published", "true epsilon", f"epsilon if {experiment.as_coded_words}", "seconds a run",
    )  # fmt: skip
    names = {line.name: named(experiment, line) for line in experiment.lines}

    def number(value: float | None, off: float | None) -> tuple[str, float | str]:
        return ("–", "") if value is None else (f"{three(value)}{spread(off, value)}", value)

    cells = [
        (
            (names.get(row.line, row.line), row.line),
            (f"{row.value:g}", row.value),
            number(row.measured, row.measured_std),
            number(row.published, row.published_std),
            ("–", "") if row.difference is None else (difference(row.measured, row.published), row.difference),
            (str(row.seeds), float(row.seeds)),
            *(_decimals(value, 3) for value in (row.paper_epsilon, row.epsilon, row.as_coded_epsilon)),
            _decimals(row.seconds, 1),
        )
        for row in rows
    ]
    about = head(experiment)
    caption = f"{about[0].upper()}{about[1:]}: every cell, published and measured. Click a head to sort."
    return Table(caption, heads, cells)


def _decimals(value: float | None, digits: int) -> tuple[str, float | str]:
    return ("–", "") if value is None else (f"{value:.{digits}f}", value)
