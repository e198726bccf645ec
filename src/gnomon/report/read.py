"""What a folder holds: a run, a comparison, or a reproduction. Missing parts are tolerated, broken ones are named."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError
from gnomon.runs.config import read_yaml
from gnomon.statement.consistency import changed_files
from gnomon.studies.store import unpacked

UNPROTECTED = "unprotected/"
ANSWERED = "answered.jsonl"
"""A file that only the server of a deployed federation leaves."""


@dataclass(frozen=True)
class SavedRun:
    """A folder that `gnomon train` or `gnomon federate` left.

    Everything but its name may be empty: the run may have been killed.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    statement: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    """What `gnomon audit` wrote into the folder."""
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    public_only: dict[str, Any] = field(default_factory=dict)
    """What the run's public records give alone, if it had any."""
    deployed: bool = False
    """Whether it is the server's part of a federation of real sites, which one command cannot repeat."""
    changed: list[str] = field(default_factory=list)
    """Files that are not those which the statement was written for."""

    @property
    def ledger(self) -> dict[str, Any]:
        """What the statement says about all runs on the same data."""
        return self.statement.get("ledger") or {}


@dataclass(frozen=True)
class ComparedRow:
    """A method at one noise level, over seeds."""

    method: str
    noise_multiplier: float | None
    epsilon: float
    mean: float
    deviation: float | None
    seeds: int
    seconds: float


@dataclass(frozen=True)
class ComparedRuns:
    """A folder that `gnomon compare` left."""

    name: str
    rows: list[ComparedRow]
    cells: list[dict[str, Any]]
    plan: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduction:
    """A folder that `gnomon reproduce` left for one experiment."""

    name: str
    experiment: dict[str, Any]
    rows: list[dict[str, Any]]
    command: str


Found = SavedRun | ComparedRuns | Reproduction


def read_run(folder: Path, *, unprotected: bool = True) -> Found:
    """What is in a folder; without unprotected values if asked.

    >>> read_run(Path("nowhere"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: run = 'nowhere' is invalid; expected a folder that exists
    """
    if not folder.is_dir():
        raise SettingError("run", str(folder), "a folder that exists")
    if (folder / "reproduction.json").exists():
        return _reproduction(folder, unprotected)
    if (folder / "comparison.csv").exists():
        return _comparison(folder, unprotected)
    if any((folder / name).exists() for name in ("metrics.jsonl", "statement.json", "config.yaml")):
        return _training(folder, unprotected)
    raise SettingError("run", str(folder), "a folder that gnomon train, compare or reproduce has written")


def _training(folder: Path, unprotected: bool) -> SavedRun:
    config = folder / "config.yaml"
    history, diagnostics = _lines(folder / "metrics.jsonl"), _lines(folder / "diagnostics.jsonl")
    final = _json(folder / "diagnosis.json")
    diagnostics += [final] if final else []
    statement = _json(folder / "statement.json")
    return SavedRun(
        folder.resolve().name,
        read_yaml(config) if config.exists() else {},
        history if unprotected else [_protected(one) for one in history],
        statement,
        _json(folder / "environment.json"),
        _json(folder / "audit.json"),
        diagnostics if unprotected else [_protected(one) for one in diagnostics],
        _json(folder / "public-only.json"),
        (folder / ANSWERED).exists(),
        changed_files(statement, folder),
    )


def _comparison(folder: Path, unprotected: bool) -> ComparedRuns:
    with (folder / "comparison.csv").open(newline="") as file:
        rows = [_row(one, folder / "comparison.csv") for one in csv.DictReader(file)]
    plan = _json(folder / "comparison.json")
    cells = _cells(folder / "cells", plan.get("cells"))
    if not unprotected:
        cells = [cell | {"history": [_protected(one) for one in cell.get("history", [])]} for cell in cells]
    return ComparedRuns(folder.resolve().name, rows, cells, plan, plan.get("environment", {}))


def _cells(folder: Path, wanted: list[Any] | None) -> list[dict[str, Any]]:
    """The finished cells of a comparison, under its own labels: a cell may have been run under another one.

    Older plans are lists of keys, and the oldest folders have none; their cells keep the label that they were run with.
    """
    if wanted and all(isinstance(one, list) for one in wanted):
        found = [(label, _json(folder / f"{key}.json")) for label, key in wanted]
        return [unpacked(cell) | {"label": label} for label, cell in found if cell]
    return [unpacked(_json(path)) for path in sorted(folder.glob("*.json")) if wanted is None or path.stem in wanted]


def _reproduction(folder: Path, unprotected: bool) -> Reproduction:
    found = _json(folder / "reproduction.json")
    try:
        experiment, rows = found["experiment"], found["rows"]
        hidden = {
            line["name"]
            for line in experiment["lines"]
            if (line["measure"] or experiment["measure"]).startswith(UNPROTECTED)
        }
        if not unprotected:
            rows = [row for row in rows if row["line"] not in hidden]
            if experiment.get("draw", "").startswith(UNPROTECTED):
                rows = [row | {"series": []} for row in rows]
            experiment = experiment | {"lines": [one for one in experiment["lines"] if one["name"] not in hidden]}
        return Reproduction(folder.resolve().name, experiment, rows, found["command"])
    except (KeyError, TypeError) as error:
        raise SettingError("run", str(folder / "reproduction.json"), f"a complete file ({error!r})") from None


def _row(values: dict[str, Any], path: Path) -> ComparedRow:
    try:
        level, spread, seeds = values["noise_multiplier"], values["deviation"], int(values["seeds"])
        return ComparedRow(
            values["method"],
            float(level) if level else None,
            float(values["epsilon"]),
            float(values["mean"]),
            float(spread) if spread and seeds > 1 else None,
            seeds,
            float(values["seconds"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SettingError("run", str(path), f"a table that gnomon compare has written ({error!r})") from None


def _protected(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.startswith(UNPROTECTED)}


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingError("run", str(path), f"readable JSON ({error})") from None
    if not isinstance(found, dict):
        raise SettingError("run", str(path), "a JSON object")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """One object a line. The last line may be torn: the run was killed while it wrote."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise SettingError("run", f"{path}, line {number}", f"readable JSON ({error})") from None
    return found
