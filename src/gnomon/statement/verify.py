"""Verification of a run folder: its statement against its files, its own numbers and the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.accounting import digits
from gnomon.errors import DataError, SettingError
from gnomon.ledger.file import Head, LedgerError
from gnomon.ledger.ledger import BLOCK, Ledger
from gnomon.ledger.state import RECORD, LedgerRun
from gnomon.statement.consistency import HASHED_FILES, contradictions, file_hashes, recompute_epsilon

SETTINGS = ("noise_multiplier", "sampler", "adjacency", "accountant", "expansion")
"""The settings of a run that its ledger entry and its statement have in common."""


@dataclass(frozen=True)
class Check:
    """The result of one comparison.

    >>> print(Check("steps", False, "12 stated, 40 reserved"))
    WRONG        steps: 12 stated, 40 reserved
    """

    name: str
    passed: bool | None
    """None if there was nothing to compare."""
    detail: str

    def __str__(self) -> str:
        verdict = {True: "right", False: "WRONG", None: "not checked"}[self.passed]
        return f"{verdict:<11}  {self.name}: {self.detail}"


def check_run(folder: Path, ledger: Ledger) -> list[Check]:
    """Compare the statement in a run folder with the model, the configuration, its own numbers and the ledger.

    Args:
        folder: The run folder.
        ledger: The ledger that the run was entered in.

    Returns:
        One result for each comparison.

    Raises:
        SettingError: The folder has no statement.
        DataError: The statement cannot be read.

    >>> check_run(Path("nowhere"), None)
    Traceback (most recent call last):
    gnomon.errors.SettingError: run = 'nowhere' is invalid; expected a run folder with its statement.json
    """
    path = folder / "statement.json"
    if not path.is_file():
        raise SettingError("run", str(folder), "a run folder with its statement.json")
    try:
        statement = json.loads(path.read_text())
        float(statement["delta"]), int(statement["steps"])  # raises here, before anything is compared
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"is not a complete privacy statement ({error!r})"
        raise DataError(path, problem, "restore the file that the run wrote") from None
    return [*_check_files(statement, folder), _check_epsilon(statement), *_check_entry(statement, ledger)]


def _check_files(statement: Mapping[str, Any], folder: Path) -> Iterator[Check]:
    stated, actual = statement.get("files") or {}, file_hashes(folder)
    for name in HASHED_FILES:
        if name not in stated:
            yield Check(name, None, "the statement records no SHA-256 of this file")
        elif name not in actual:
            yield Check(name, False, "the file is missing")
        else:
            same = stated[name] == actual[name]
            detail = f"sha256 {actual[name][:16]}..." + ("" if same else f", stated {stated[name][:16]}...")
            yield Check(name, same, detail)


def _check_epsilon(statement: Mapping[str, Any]) -> Check:
    if messages := contradictions(statement):
        return Check("epsilon", False, "; ".join(messages))
    spent = recompute_epsilon(statement)
    if spent is None:
        return Check("epsilon", None, "the statement's numbers do not determine epsilon")
    return Check("epsilon", True, f"{digits(spent)} from the statement's own numbers")


def _check_entry(statement: Mapping[str, Any], ledger: Ledger) -> Iterator[Check]:
    stated = statement.get("ledger")
    if not stated:
        yield Check("ledger", False, "the statement says that the run is in no ledger")
        return
    try:
        head = Head.read(stated["head"])
        ledger.verify(head)
        yield Check("head", True, f"entry {head.number} was the last entry when the statement was written")
    except LedgerError as error:
        yield Check("head", False, str(error))
    state = ledger.state()
    run = state.runs.get(stated["run"])
    if run is None:
        yield Check("run", False, f"{ledger.path} has no entry of the run {stated['run'] or 'of this statement'}")
        return
    yield Check("run", True, f"{run.id} was entered at {run.time}")
    if stated.get("dataset"):
        same = stated["dataset"] in state.family(run.dataset)
        yield Check("data set", same, f"{run.dataset}" + ("" if same else f", stated {stated['dataset']}"))
    else:
        yield Check("data set", None, f"{run.dataset} in the ledger; a statement names a declared data set only")
    if statement.get("unit") != RECORD or run.unit != RECORD:
        yield Check("settings and steps", None, "every client of a federation has an entry of its own")
        return
    yield from _check_settings(statement, run)
    yield _check_steps(statement["steps"], run)


def _check_settings(statement: Mapping[str, Any], run: LedgerRun) -> Iterator[Check]:
    """Compare the settings in the ledger with the statement's account or, without one, with its texts."""
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
            detail = str(entered[name]) + ("" if same else f" entered, {stated.get(name)} stated")
            yield Check(name.replace("_", " "), same, detail)


def _check_steps(stated: int, run: LedgerRun) -> Check:
    """Compare numbers of steps: steps are reserved in blocks, so a stopped run has slightly more in the ledger."""
    plausible = stated <= run.reserved < stated + max(BLOCK, run.last)
    return Check("steps", plausible, f"{stated} stated, {run.reserved} reserved")
