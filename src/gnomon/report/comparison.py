"""The folder of a comparison: reading it and describing it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon.accounting import digits
from gnomon.errors import DataError
from gnomon.figures.comparison import comparison_pictures
from gnomon.report.commands import compare_command
from gnomon.report.run_files import REMEDY, read_json, without_unprotected
from gnomon.report.section import Cell, Section, Table, environment_terms
from gnomon.studies.compare import ComparisonRow
from gnomon.studies.store import package_versions, unpack, versions_sentence


@dataclass(frozen=True)
class SavedComparison:
    """The folder of `gnomon compare`."""

    name: str
    rows: list[ComparisonRow]
    cells: list[dict[str, Any]]
    """The results of the finished runs."""
    plan: dict[str, Any] = field(default_factory=dict)
    """The settings that repeat the comparison."""

    @classmethod
    def read(cls, folder: Path, *, unprotected: bool = True) -> SavedComparison:
        """Read the folder of a comparison, with or without its unprotected values."""
        path = folder / "comparison.csv"
        with path.open(newline="") as file:
            rows = [_row(values, path) for values in csv.DictReader(file)]
        plan = read_json(folder / "comparison.json")
        cells = []
        for label, key in plan.get("cells", []):  # a run may have been stored under the label of another comparison
            if cell := read_json(folder / "cells" / f"{key}.json"):
                cells.append(unpack(cell) | {"label": label})
        if not unprotected:
            cells = [cell | {"history": without_unprotected(cell.get("history", []))} for cell in cells]
        return cls(folder.resolve().name, rows, cells, plan)

    def section(self) -> Section:
        """Return the section of the page about this comparison."""
        plan = self.plan
        command = ""
        if plan:
            command = compare_command(
                plan["settings"],
                plan["methods"],
                plan["noise_multipliers"],
                plan["seeds"],
                plan.get("target_epsilons", ()),
            )
        versions = versions_sentence(package_versions(self.cells))
        methods = dict.fromkeys(row.method for row in self.rows)
        epsilons = [row.epsilon for row in self.rows if row.noise_multiplier is not None]
        facts = [("methods", str(len(methods))), ("runs", str(sum(row.seeds for row in self.rows)))]
        if epsilons:
            interval = f"{digits(min(epsilons), significant=3)} to {digits(max(epsilons), significant=3)}"
            facts.append(("epsilon", interval))
        return Section(
            title=f"{len(methods)} methods on {plan.get('settings', {}).get('data', self.name)}",
            slug=self.name,
            kind="comparison",
            pictures=comparison_pictures(self.rows, self.cells),
            command=command,
            promise=[
                "This is a study, not a release. Its noise was seeded so that it can be repeated, so no run in it "
                "makes a privacy claim. Each epsilon is what the settings would guarantee for one run with secret "
                "noise.",
                "Selecting the best of several runs by their results on private data costs more privacy than any "
                "single run.",
            ],
            guarantee=False,
            facts=facts,
            table=_table(self.rows),
            environment=[
                *([("runs", versions)] if versions else []),
                *environment_terms(plan.get("environment", {})),
            ],
            seeded=True,
        )

    def overview_row(self) -> tuple[Cell, ...] | None:
        """Return None: a comparison has no row in the table of all runs of a page."""
        return None


def _row(values: dict[str, Any], path: Path) -> ComparisonRow:
    try:
        noise, deviation, target = values["noise_multiplier"], values["deviation"], values.get("target_epsilon")
        return ComparisonRow(
            method=values["method"],
            noise_multiplier=float(noise) if noise else None,
            epsilon=float(values["epsilon"]),
            mean=float(values["mean"]),
            deviation=float(deviation) if deviation else None,
            seeds=int(values["seeds"]),
            seconds=float(values["seconds"]),
            target_epsilon=float(target) if target else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(path, f"is not a table of gnomon compare ({error!r})", REMEDY) from None


def _table(rows: Sequence[ComparisonRow]) -> Table:
    heads = (
        "method", "noise multiplier", "epsilon", "accuracy, %", "± over seeds, points", "seeds", "seconds per run",
    )  # fmt: skip
    cells = [
        (
            (row.method, row.method),
            ("none" if row.noise_multiplier is None else f"{row.noise_multiplier:g}", row.noise_multiplier or 0.0),
            (digits(row.epsilon), row.epsilon),
            (f"{100 * row.mean:.1f}", row.mean),
            ("–", "") if row.deviation is None else (f"{100 * row.deviation:.1f}", row.deviation),
            (str(row.seeds), row.seeds),
            (f"{row.seconds:.1f}", row.seconds),
        )
        for row in rows
    ]
    return Table("All methods at all noise levels. Click a column heading to sort.", heads, cells)
