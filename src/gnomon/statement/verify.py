"""Checks what a run left in its folder against the ledger that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.accounting import digits
from gnomon.errors import SettingError
from gnomon.ledger.file import Head, LedgerError
from gnomon.ledger.ledger import BLOCK, Ledger
from gnomon.ledger.state import RECORD, LedgerRun
from gnomon.statement.check import misfits, recomputed
from gnomon.statement.sealed import SEALED, fingerprints

SETTINGS = ("noise_multiplier", "sampler", "adjacency", "accountant", "expansion")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    >>> print(Check("steps", False, "12 stated, 40 reserved"))
    WRONG        steps: 12 stated, 40 reserved
    """

    name: str
    right: bool | None
    """None if there was nothing to compare."""
    said: str

    def __str__(self) -> str:
        verdict = {True: "right", False: "WRONG", None: "not checked"}[self.right]
        return f"{verdict:<11}  {self.name}: {self.said}"


def check_run(folder: Path, ledger: Ledger) -> list[Check]:
    """Model, config, epsilon, and the run's entry in the ledger, each against the statement in a run folder.

    >>> check_run(Path("nowhere"), None)
    Traceback (most recent call last):
    gnomon.errors.SettingError: run = 'nowhere' is invalid; expected a run folder with its statement.json
    """
    path = folder / "statement.json"
    if not path.is_file():
        raise SettingError("run", str(folder), "a run folder with its statement.json")
    try:
        statement = json.loads(path.read_text())
        float(statement["delta"]), int(statement["steps"])  # what cannot be read shows now
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError("run", str(path), f"a complete statement ({error!r})") from None
    return [*_files(statement, folder), _epsilon(statement), *_entry(statement, ledger)]


def _files(statement: Mapping[str, Any], folder: Path) -> Iterator[Check]:
    stated, now = statement.get("files") or {}, fingerprints(folder)
    for name in SEALED:
        if name not in stated:
            yield Check(name, None, "the statement has no hash of it")
        elif name not in now:
            yield Check(name, False, "the file is missing")
        else:
            same = stated[name] == now[name]
            yield Check(
                name, same, f"sha256 {now[name][:16]}..." + ("" if same else f", {stated[name][:16]}... stated")
            )


def _epsilon(statement: Mapping[str, Any]) -> Check:
    if wrong := misfits(statement):
        return Check("epsilon", False, "; ".join(wrong))
    spent = recomputed(statement)
    if spent is None:
        return Check("epsilon", None, "the statement does not say enough to recompute it")
    return Check("epsilon", True, f"{digits(spent)} from the statement's own numbers")


def _entry(statement: Mapping[str, Any], ledger: Ledger) -> Iterator[Check]:
    about = statement.get("ledger")
    if not about:
        yield Check("ledger", False, "the statement says that the run is in no ledger")
        return
    try:
        ledger.verify(Head.parse(about["head"]))
        yield Check("head", True, f"entry {Head.parse(about['head']).number} is the one that the statement saw last")
    except LedgerError as error:
        yield Check("head", False, str(error))
    state = ledger.state()
    run = state.runs.get(about["run"])
    if run is None:
        yield Check("run", False, f"{ledger.path} does not know the run {about['run'] or 'of this statement'}")
        return
    yield Check("run", True, f"{run.id} was entered {run.time}")
    if about.get("dataset"):
        same = about["dataset"] in state.related(run.dataset)
        yield Check("data set", same, f"{run.dataset}" + ("" if same else f", {about['dataset']} stated"))
    else:
        yield Check("data set", None, f"{run.dataset} in the ledger; the statement names declared ones alone")
    if statement.get("unit") != RECORD or run.unit != RECORD:
        yield Check("settings and steps", None, "each client of a federation has an entry of its own")
        return
    yield from _settings(statement, run)
    yield _steps(statement["steps"], run)


def _settings(statement: Mapping[str, Any], run: LedgerRun) -> Iterator[Check]:
    """Noise, sampling and neighbours as they were entered; of an older statement those that it has."""
    account = run.account()
    entered = run.settings
    stated = statement.get("account")
    if not stated:
        entered = {"noise_multiplier": account.noise_multiplier, "sampler": account.sampler.name}
        entered["adjacency"] = account.adjacency
        stated = statement
    for name in SETTINGS:
        if name in entered:
            same = stated.get(name) == entered[name]
            said = str(entered[name]) + ("" if same else f" entered, {stated.get(name)} stated")
            yield Check(name.replace("_", " "), same, said)


def _steps(stated: int, run: LedgerRun) -> Check:
    """A block that was begun is reserved whole, so a stopped run has some steps more in the ledger."""
    right = stated <= run.reserved < stated + max(BLOCK, run.last)
    return Check("steps", right, f"{stated} stated, {run.reserved} reserved")
