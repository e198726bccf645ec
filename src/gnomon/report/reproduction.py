"""What a page says about a table or figure of a paper that was run again."""

from __future__ import annotations

from typing import Any

from gnomon.report.read import Reproduction
from gnomon.report.section import Section, Table, environment_of


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
        environment=environment_of(found.environment),
        seeded=True,
    )


def _table(experiment: Any, rows: list[Any]) -> Table:
    heads = (
        "line", experiment.axis, "measured", "published", "difference", "seeds", "epsilon as published",
        "true epsilon", f"epsilon if {experiment.as_coded_words}", "seconds a run",
    )  # fmt: skip
    cells = [
        (
            (row.line, row.line),
            (f"{row.value:g}", row.value),
            _number(row.measured, 2, row.measured_std),
            _number(row.published, 2, row.published_std),
            _number(row.difference, 2),
            (str(row.seeds), float(row.seeds)),
            *(_number(value, 3) for value in (row.paper_epsilon, row.epsilon, row.as_coded_epsilon)),
            _number(row.seconds, 1),
        )
        for row in rows
    ]
    return Table("Every cell, published and measured. Click a head to sort.", heads, cells)


def _number(value: float | None, digits: int, spread: float | None = None) -> tuple[str, float | str]:
    if value is None:
        return "–", ""
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}"), value
