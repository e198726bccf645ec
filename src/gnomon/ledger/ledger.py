"""The ledger: the privacy spending on each data set over all runs, durable before anything is released.

Entries record events (sampling, noise, adjacency, steps), never values of epsilon: these are computed on request.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import get_ident
from typing import Any

from gnomon import validate
from gnomon.accounting import Account, Epsilon, composed, filtered
from gnomon.errors import SettingError
from gnomon.ledger.budget import (
    exceeds_budget,
    refuse_over_budget,
    refuse_unnamed,
    runs_of_infinite_epsilon,
    tightest_budget,
)
from gnomon.ledger.file import Entry, Head, LedgerFile, LedgerFileError, LedgerRows, LedgerStateError
from gnomon.ledger.identity import NAME_PREFIX, Identity, identity_of_name, identity_of_records, is_declared_name
from gnomon.ledger.state import KEY, RECORD, Budget, LedgerRun, State
from gnomon.version import __version__

BLOCK = 16
"""Steps per reservation. Each costs one durable write, and a killed run loses at most this many unused steps."""

NO_LEDGER = "none"
"""The value in place of a path that turns the ledger off."""


@dataclass(frozen=True)
class Total:
    """The spending of all runs on a data set together, over all reserved steps.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger(Path(folder) / "ledger.sqlite")
    ...     total = ledger.total(ledger.dataset("patients"), 1e-5)
    ...     ledger.close()
    >>> total.runs, float(total.epsilon)
    (0, 0.0)
    """

    epsilon: Epsilon
    """The total if the settings of a run may depend on the results of earlier runs. If results also decided how many
    runs there are, it is a guarantee only within a budget that was set beforehand; without a budget it is the smallest
    epsilon for which the filter passes all runs."""
    declared: Epsilon
    """The total if all settings were fixed before the first result was seen."""
    runs: int
    steps: int
    budget: Budget | None
    infinite_runs: tuple[str, ...] = ()
    """The ids of the runs that make the total infinite."""

    @property
    def counted(self) -> Epsilon:
        """The total that is compared with the budget: `declared` if the budget is for declared settings."""
        return self.declared if self.budget is not None and self.budget.declared else self.epsilon


class Ledger:
    """A durable record of the privacy spending of all runs, safe across processes, threads and crashes.

    Steps are reserved, and the reservation is on disk, before their noise is drawn: a crash may over-count the
    spending, never under-count it.

    Args:
        path: the ledger file. It is created if it does not exist; its folder must exist.
        block: the number of steps per reservation.

    Raises:
        LedgerFileError: if the file cannot be created, read or trusted.

    >>> import tempfile
    >>> from gnomon.accounting import Poisson
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger(Path(folder) / "ledger.sqlite")
    ...     patients = ledger.dataset("patients")
    ...     run = ledger.open_run(patients, Account(Poisson(0.025), 10.0), steps=3200)
    ...     granted = ledger.reserve(run)  # before the first of these steps is computed
    ...     total = ledger.total(patients, 1e-5)
    ...     ledger.close()
    >>> granted, total.steps, total.runs
    (16, 16, 1)
    """

    def __init__(self, path: str | Path, *, block: int = BLOCK) -> None:
        self.path = Path(path).expanduser()
        self.block = validate.whole("block", block)
        self._store = LedgerFile(self.path, make_folder=self.path == _user_path())
        self._states: dict[int, State] = {}  # by thread id
        self._key = b""
        with self._transaction():
            pass  # reports a damaged file at once

    # -- data sets and budgets -------------------------------------------------------------------

    def identify(self, data: Any, name: str | None = None) -> Identity:
        """Return the identity of a data set: by the contents of its records, or as its holder declares it.

        Args:
            data: the records, or a Loader of them; not read if a name is given.
            name: a declared name, or the id of a data set that this ledger knows by its records, so that a changed
                copy of them counts for the same data set.
        """
        if name is None:
            return identity_of_records(data, self._key)
        if not is_declared_name(name) and name in self.state().datasets:
            return Identity(name, frozenset())
        return identity_of_name(name)

    def dataset(self, data: Identity | str, label: str = "") -> str:
        """Return the id of a data set, after adding it to the ledger on its first use.

        A data set that is identified by content leaves one entry each time, known or not: statements carry the number
        of entries, which must not reveal whether one record was added or removed.

        Args:
            data: an identity, or a declared name.
            label: how to display a new data set; by default its name or id.
        """
        identity = identity_of_name(data) if isinstance(data, str) else data
        with self._transaction() as (rows, state):
            if identity.id in state.datasets:
                if identity.sketch:
                    self._append(rows, state, "again", {"dataset": identity.id})
                return identity.id
            refuse_unnamed(state, identity)
            joins = state.matches(identity)
            name = label or identity.id.removeprefix(NAME_PREFIX)
            size = {} if identity.records is None else {"records": identity.records}
            content = {"id": identity.id, "name": name, "sketch": sorted(identity.sketch), "joins": joins}
            self._append(rows, state, "dataset", content | size)
            return identity.id

    def describe_possible_copies(self, identity: Identity) -> str:
        """Return a list, as text, of data sets of which unknown records may be a changed copy; empty if none."""
        state = self.state()
        return _describe(state, state.possible_copies(identity))

    def datasets_named(self, name: str) -> list[str]:
        """Return the ids of the data sets with this declared name or display name."""
        with self._transaction() as (_, state):
            return [
                id for id, dataset in state.datasets.items() if name in (dataset.name, id.removeprefix(NAME_PREFIX))
            ]

    def find_dataset(self, text: str) -> str:
        """Return the id of the data set with this id, name, beginning of an id, or label of a run.

        Raises:
            SettingError: if none matches, or if several match that share no records.
        """
        state, named = self.state(), self.datasets_named(text)
        exact = [id for id in state.datasets if id == text]
        prefixed = [id for id in state.datasets if id.startswith(text)]
        by_content = [id for id in state.datasets if not is_declared_name(id)]
        labelled = [] if exact or named or prefixed else [id for id in by_content if text in state.labels(id)]
        for candidates in (exact, named, prefixed, labelled):
            if candidates and all(id in state.related(candidates[0]) for id in candidates):
                return candidates[0]
            if candidates:
                raise SettingError("dataset", text, f"the id of one of these: {_describe(state, candidates)}")
        known = _describe(state, list(state.datasets)) or "none yet"
        raise SettingError("dataset", text, f"one of the data sets of this ledger: {known}")

    def set_budget(self, dataset: str, budget: Budget, unit: str = RECORD) -> None:
        """Refuse from now on every run that could bring the total of a data set above a budget.

        Args:
            dataset: the id of the data set; the budget also holds for data sets that share records with it.
            budget: the budget. It replaces earlier ones.
            unit: the privacy unit that it is about.
        """
        with self._transaction() as (rows, state):
            self._append(rows, state, "budget", {"dataset": dataset, "unit": unit} | asdict(budget))

    # -- runs ------------------------------------------------------------------------------------

    def open_run(self, dataset: str, account: Account, steps: int, *, label: str = "", unit: str = RECORD) -> str:
        """Add a run that will take at most `steps` steps, and return its id.

        Raises:
            OverBudget: if all declared steps together could exceed a budget; nothing is added then.
        """
        run = _new_run(dataset, account, steps, label, unit)
        content = {key: getattr(run, key) for key in ("id", "dataset", "unit", "settings", "declared", "label")}
        with self._transaction() as (rows, state):
            exceeded = exceeds_budget(state, run)
            if not exceeded:
                self._append(rows, state, "run", content)
        if exceeded:  # outside the transaction: the search for fitting settings must not block other processes
            refuse_over_budget(state, run)
        return run.id

    def check_budget(self, identity: Identity, account: Account, steps: int, unit: str = RECORD) -> None:
        """Raise the errors that `dataset` and `open_run` would raise, without adding anything."""
        state = self.state()
        refuse_unnamed(state, identity)
        for dataset in state.matches(identity):
            refuse_over_budget(state, _new_run(dataset, account, steps, "", unit))

    def reopen_run(self, run: str, *, lost: int = 0) -> LedgerRun:
        """Let a run continue after its process ended.

        Args:
            run: the id of the run.
            lost: steps that cannot be taken any more and count as taken.

        Raises:
            OverBudget: if the run was closed and its remaining steps no longer fit the budget.
        """
        with self._transaction() as (rows, state):
            entry = self._run(state, run)
            exceeded = not entry.open and exceeds_budget(state, entry)
            if not entry.open and not exceeded:
                self._append(rows, state, "reopen", {"run": run})
            lost = 0 if exceeded else min(lost, entry.declared - entry.reserved)
            if lost:
                self._append(rows, state, "steps", {"run": run, "steps": lost})
        if exceeded:
            refuse_over_budget(state, entry)
        return entry

    def redeclare(self, run: str, steps: int) -> None:
        """Change the total number of steps that a run declares; never below the number it has reserved.

        Raises:
            OverBudget: if more steps could exceed a budget.
        """
        with self._transaction() as (rows, state):
            present = self._run(state, run)
            changed = replace(present, declared=max(validate.whole("steps", steps), present.reserved))
            exceeded = changed.declared > present.declared and exceeds_budget(state, changed)
            if changed.declared != present.declared and not exceeded:
                self._append(rows, state, "declare", {"run": run, "steps": changed.declared})
        if exceeded:
            refuse_over_budget(state, changed)

    def reserve(self, run: str, steps: int | None = None) -> int:
        """Reserve the next steps of a run (default: one block) and return how many were granted.

        The reservation is on disk when this returns, and is never given back.

        Raises:
            LedgerStateError: if the run is closed or has reserved all the steps that it declared.
        """
        with self._transaction() as (rows, state):
            entry = self._run(state, run)
            granted = min(self.block if steps is None else steps, entry.declared - entry.reserved)
            if granted < 1 or not entry.open:
                raise LedgerStateError(
                    f"run {run} has declared {entry.declared} steps and reserved {entry.reserved}"
                    f"{'' if entry.open else ', and is closed'}: no step is left; start another run"
                )
            self._append(rows, state, "steps", {"run": run, "steps": granted})
            return granted

    def pay(self, run: str, steps: int) -> None:
        """Reserve steps that were released but are missing from a ledger that was restored from a backup.

        Raises:
            SettingError: if the run has not declared so many further steps.
        """
        entry, missing = self.run(run), validate.whole("steps", steps)
        if missing > (left := entry.declared - entry.reserved):
            expected = f"at most {left}: run {run} has paid for {entry.reserved} of the {entry.declared} it declared"
            raise SettingError("steps", steps, expected)
        self.reserve(run, missing)

    def close_run(self, run: str) -> None:
        """End a run: the steps that it declared and never reserved no longer count against the budget."""
        with self._transaction() as (rows, state):
            if self._run(state, run).open:
                self._append(rows, state, "close", {"run": run})

    # -- queries ---------------------------------------------------------------------------------

    def total(self, data: Identity | str, delta: float, unit: str = RECORD) -> Total:
        """Return the spending of all runs on a data set and on data sets that share records with it.

        Args:
            data: the id of a data set, or an identity, which need not be in the ledger.
            delta: the delta at which epsilon is computed.
            unit: the privacy unit.
        """
        with self._transaction() as (_, state):
            datasets = [data] if isinstance(data, str) else state.matches(data)
            runs = {run.id: run for dataset in datasets for run in state.runs_on(dataset, unit) if run.reserved}
            budgets = {budget for dataset in datasets for budget in state.budgets_on(dataset, unit)}
        accounts = [run.account() for run in runs.values()]
        spent = filtered(accounts, delta)
        infinite = runs_of_infinite_epsilon(list(runs.values()), delta) if spent == math.inf else []
        return Total(
            spent,
            composed(accounts, delta),
            runs=len(runs),
            steps=sum(run.reserved for run in runs.values()),
            budget=tightest_budget(list(budgets), accounts),
            infinite_runs=tuple(run.id for run in infinite),
        )

    def runs_with_label(self, label: str) -> list[LedgerRun]:
        """Return the runs with a label, the oldest first."""
        return [run for run in self.state().runs.values() if run.label == label]

    def run(self, run: str) -> LedgerRun:
        """Return the run with this id.

        Raises:
            LedgerStateError: if the ledger has no such run.
        """
        with self._transaction() as (_, state):
            return self._run(state, run)

    def state(self) -> State:
        """Return the present data sets, budgets and runs."""
        with self._transaction() as (_, state):
            return state

    def head(self) -> Head:
        """Return the head: the last entry's number and hash. Stored elsewhere, it later proves a loss of entries."""
        with self._transaction() as (_, state):
            return state.head

    def first_run(self) -> LedgerRun | None:
        """Return the earliest run of this ledger, or None."""
        return next(iter(self.state().runs.values()), None)

    def verify(self, head: Head | None = None) -> int:
        """Verify the whole hash chain, and that a head stored elsewhere is part of it. Return the number of entries.

        Raises:
            LedgerFileError: if entries were edited or are missing.
        """
        with self._store.transaction() as rows:
            state = State(rows.start)
            self._catch_up(rows, state)
            if head is not None:
                rows.entries_after(head)
            return state.head.number

    def export(self) -> Iterator[str]:
        """Yield the ledger as lines of JSON: a header, every entry, and the head. The secret key is not exported."""
        with self._store.transaction() as rows:
            self._catch_up(rows, State(rows.start))
            entries = rows.entries_after(rows.start)
            header = {"ledger": rows.about["id"], "gnomon": __version__}
        yield json.dumps(header)
        for entry in entries:
            yield json.dumps(asdict(entry))
        last = entries[-1] if entries else None
        yield json.dumps({"head": str(Head(last.number, last.hash)) if last else None})

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        self._store.close()

    # -- transactions ----------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[tuple[LedgerRows, State]]:
        """Hold the file's write lock, with a state that includes the entries of other processes."""
        with self._store.transaction() as rows:
            # An exception discards the cached state, which may include entries that are rolled back.
            state = self._states.pop(get_ident(), None) or State(rows.start)
            self._catch_up(rows, state)
            self._key = bytes.fromhex(rows.about["key"])
            yield rows, state
        self._states[get_ident()] = state

    def _catch_up(self, rows: LedgerRows, state: State) -> None:
        """Apply the entries that the state does not include yet, and verify the key against their commitment."""
        for entry in rows.entries_after(state.head):
            state.apply(entry)
        if state.key not in (None, rows.commitment):
            raise LedgerFileError(
                f"ledger {self.path}",
                "has another key than the one its entries commit to, so known records would not be recognised and "
                "would get a fresh budget",
                "restore a backup",
            )

    def _append(self, rows: LedgerRows, state: State, kind: str, content: dict[str, Any]) -> Entry:
        if state.key is None:
            content = content | {KEY: rows.commitment}
        entry = rows.append(kind, content, state.head)
        state.apply(entry)
        return entry

    def _run(self, state: State, run: str) -> LedgerRun:
        if run not in state.runs:
            raise LedgerStateError(
                f"ledger {self.path} has no run {run}: the run belongs to another ledger, or entries are lost; use the "
                "ledger that the run was started with, or restore a backup"
            )
        return state.runs[run]


def default_path() -> Path | None:
    """Return the default path of the ledger: GNOMON_LEDGER, or a file in the user's data folder.

    Returns:
        The path, or None if GNOMON_LEDGER is "none".

    Raises:
        SettingError: if GNOMON_LEDGER is a relative path, which would name another ledger in each working directory.

    >>> default_path().suffix
    '.sqlite'
    """
    value = os.environ.get("GNOMON_LEDGER")
    if value == NO_LEDGER:
        return None
    if value:
        if not Path(value).expanduser().is_absolute():
            expected = "an absolute path, or 'none': a relative path would be another ledger in each working directory"
            raise SettingError("GNOMON_LEDGER", value, expected)
        return Path(value).expanduser()
    return _user_path()


def _user_path() -> Path:
    """Return the ledger in the user's data folder, the only ledger whose folder is created on demand."""
    folder = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(folder) / "gnomon" / "ledger.sqlite"


def new_ledger_notice(ledger: str) -> str:
    """Return the notice for a new ledger, which the command line prints and the statement of its first run carries.

    >>> new_ledger_notice("l.sqlite")
    'new ledger l.sqlite: earlier runs are not recorded in it'
    """
    return f"new ledger {ledger}: earlier runs are not recorded in it"


def required_path(path: str | Path | None = None) -> Path:
    """Return the given path or the default path, for a command that cannot work without a ledger.

    Raises:
        SettingError: if the ledger is turned off.

    >>> required_path("ledger.sqlite").name
    'ledger.sqlite'
    >>> required_path("none")
    Traceback (most recent call last):
    gnomon.errors.SettingError: ledger = 'none' is invalid; expected the path of a file: this command needs a ledger
    """
    chosen = Path(path).expanduser() if path else default_path()
    if chosen is None or str(chosen) == NO_LEDGER:
        where = " (GNOMON_LEDGER is 'none')" if not path else ""
        raise SettingError("ledger", NO_LEDGER, f"the path of a file: this command needs a ledger{where}")
    return chosen


def _describe(state: State, datasets: list[str]) -> str:
    """List data sets for a message: id, names, and how each is recognised. Related data sets are listed as one."""

    def describe_group(group: list[str]) -> str:
        id = next(dataset for dataset in datasets if dataset in group)
        how = "by --data-id" if is_declared_name(id) else "by its records"
        return f"{id} ({', '.join(state.labels(id))}, known {how})"

    return ", ".join(map(describe_group, state.groups(datasets)))


def _new_run(dataset: str, account: Account, steps: int, label: str, unit: str) -> LedgerRun:
    settings = account.to_dict()
    del settings["steps"]
    return LedgerRun(uuid.uuid4().hex[:12], dataset, unit, settings, validate.whole("steps", steps), label, "")
