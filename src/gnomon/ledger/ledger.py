"""The ledger: what was spent on each data set, durable before anything is released.

Entries are events (sampling, noise, adjacency, steps), never epsilons: those are computed when somebody asks.
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
from gnomon.ledger.budget import binding, endless, exceeds, refuse_excess, refuse_nameless
from gnomon.ledger.file import Entry, Head, LedgerError, LedgerFile, LedgerRows
from gnomon.ledger.identity import Identity, by_content, declared, is_name
from gnomon.ledger.state import KEY, RECORD, Budget, LedgerRun, State
from gnomon.version import __version__

BLOCK = 16
"""How many steps are reserved at a time: one durable write each, and as many lost at most when a run is killed."""

NO_LEDGER = "none"
"""In the place of a path: runs count alone."""


@dataclass(frozen=True)
class Total:
    """What all runs on a data set have cost together, as far as steps were reserved.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     ledger = Ledger(Path(place) / "ledger.sqlite")
    ...     total = ledger.total(ledger.dataset("patients"), 1e-5)
    ...     ledger.shut()
    >>> total.runs, float(total.epsilon)
    (0, 0.0)
    """

    epsilon: Epsilon
    """Holds also if somebody looked at one run before setting the next. If results decided how many runs there are,
    it is a guarantee only within a budget set beforehand; without one it is the smallest that all of them pass."""
    declared: Epsilon
    """Holds if all settings were fixed before the first result was seen."""
    runs: int
    steps: int
    budget: Budget | None
    endless: tuple[str, ...] = ()
    """The runs that made it infinite, if it is."""

    @property
    def counted(self) -> Epsilon:
        """What the budget counts: the declared one if it is for declared settings."""
        return self.declared if self.budget is not None and self.budget.declared else self.epsilon


class Ledger:
    """A file that outlives runs, processes and kills.

    >>> import tempfile
    >>> from gnomon.accounting import Poisson
    >>> with tempfile.TemporaryDirectory() as place:
    ...     ledger = Ledger(Path(place) / "ledger.sqlite")
    ...     patients = ledger.dataset("patients")
    ...     run = ledger.open(patients, Account(Poisson(0.025), 10.0), steps=3200)
    ...     granted = ledger.reserve(run)  # before the first of these steps is computed
    ...     total = ledger.total(patients, 1e-5)
    ...     ledger.shut()
    >>> granted, total.steps, total.runs
    (16, 16, 1)
    """

    def __init__(self, path: str | Path, *, block: int = BLOCK) -> None:
        self.path = Path(path).expanduser()
        self.block = validate.whole("block", block)
        self._store = LedgerFile(self.path, make_folder=self.path == _users_own())
        self._states: dict[int, State] = {}  # by thread
        self._key = b""
        with self._rows():
            pass  # whatever is wrong with the file shows now

    # -- data sets and budgets -------------------------------------------------------------------

    def identify(self, data: Any, name: str | None = None) -> Identity:
        """Which data set this is: by the content of its records, or the one that its holder declares.

        The holder gives a name, or the id of a data set that this ledger knows by its records: then a changed copy of
        them counts for the same data set.
        """
        if name is None:
            return by_content(data, self._key)
        if not is_name(name) and name in self.state().datasets:
            return Identity(name, frozenset())
        return declared(name)

    def dataset(self, data: Identity | str, label: str = "") -> str:
        """The id of a data set, entered on its first use. Text is a name that its holder declares.

        Records that are recognised by content leave one entry each time, known or not. Statements carry the number of
        entries, and one record more or less must not show in it.
        """
        identity = declared(data) if isinstance(data, str) else data
        with self._rows() as (rows, state):
            if identity.mark in state.datasets:
                if identity.sketch:
                    self._add(rows, state, "again", {"dataset": identity.mark})
                return identity.mark
            refuse_nameless(state, identity)
            joins = state.matches(identity)
            name = label or identity.mark.removeprefix("name:")
            counted = {} if identity.records is None else {"records": identity.records}
            content = {"id": identity.mark, "name": name, "sketch": sorted(identity.sketch), "joins": joins}
            self._add(rows, state, "dataset", content | counted)
            return identity.mark

    def resembling(self, identity: Identity) -> str:
        """The data sets, in words, that records never seen here may be a changed copy of; empty if there are none."""
        state = self.state()
        return _list(state, state.resembling(identity))

    def named(self, text: str) -> list[str]:
        """The ids of the data sets with this name: declared, and known by content."""
        with self._rows() as (_, state):
            return [one for one, about in state.datasets.items() if text in (about["name"], one.removeprefix("name:"))]

    def find(self, text: str) -> str:
        """The id of the data set that a person means by an id, a name, the beginning of an id, or a run's label.

        Data sets of one name that share no record are told apart by their ids only.
        """
        state, named = self.state(), self.named(text)
        exact = [one for one in state.datasets if one == text]
        begun = [one for one in state.datasets if one.startswith(text)]
        content = [one for one in state.datasets if not one.startswith("name:")]
        called = [] if exact or named or begun else [one for one in content if text in state.labels(one)]
        for found in (exact, named, begun, called):
            if found and all(one in state.family(found[0]) for one in found):
                return found[0]
            if found:
                raise SettingError("dataset", text, f"the id of one of these: {_list(state, found)}")
        known = _list(state, list(state.datasets)) or "none yet"
        raise SettingError("dataset", text, f"one data set of this ledger: {known}")

    def set_budget(self, dataset: str, budget: Budget, unit: str = RECORD) -> None:
        """From now on refuse runs that could bring the total of a data set above a budget."""
        with self._rows() as (rows, state):
            self._add(rows, state, "budget", {"dataset": dataset, "unit": unit} | asdict(budget))

    # -- runs ------------------------------------------------------------------------------------

    def open(self, dataset: str, account: Account, steps: int, *, label: str = "", unit: str = RECORD) -> str:
        """Enter a run that will take at most `steps` steps; refused if the budget could not pay for all of them."""
        run = _new_run(dataset, account, steps, label, unit)
        content = {key: getattr(run, key) for key in ("id", "dataset", "unit", "settings", "declared", "label")}
        with self._rows() as (rows, state):
            over = exceeds(state, run)
            if not over:
                self._add(rows, state, "run", content)
        if over:  # outside, since the search for settings that fit must not keep other processes waiting
            refuse_excess(state, run)
        return run.id

    def check(self, identity: Identity, account: Account, steps: int, unit: str = RECORD) -> None:
        """Refuses what `open` would refuse, and enters nothing."""
        state = self.state()
        refuse_nameless(state, identity)
        for dataset in state.matches(identity):
            refuse_excess(state, _new_run(dataset, account, steps, "", unit))

    def reopen(self, run: str, *, lost: int = 0) -> LedgerRun:
        """Let a run go on after its process ended; `lost` steps that nobody took count as taken."""
        with self._rows() as (rows, state):
            found = self._run(state, run)
            over = not found.open and exceeds(state, found)
            if not found.open and not over:
                self._add(rows, state, "reopen", {"run": run})
            lost = 0 if over else min(lost, found.declared - found.reserved)
            if lost:
                self._add(rows, state, "steps", {"run": run, "steps": lost})
        if over:
            refuse_excess(state, found)
        return found

    def redeclare(self, run: str, steps: int) -> None:
        """Let a run take another number of steps, those that it has reserved included; refused as in `open`."""
        with self._rows() as (rows, state):
            found = self._run(state, run)
            wanted = replace(found, declared=max(validate.whole("steps", steps), found.reserved))
            over = wanted.declared > found.declared and exceeds(state, wanted)
            if wanted.declared != found.declared and not over:
                self._add(rows, state, "declare", {"run": run, "steps": wanted.declared})
        if over:
            refuse_excess(state, wanted)

    def reserve(self, run: str, steps: int | None = None) -> int:
        """Pay for the coming steps, as many as are granted: durable when this returns, and never given back."""
        with self._rows() as (rows, state):
            found = self._run(state, run)
            granted = min(self.block if steps is None else steps, found.declared - found.reserved)
            if granted < 1 or not found.open:
                raise LedgerError(
                    f"run {run} has declared {found.declared} steps and reserved {found.reserved}"
                    f"{'' if found.open else ', and is closed'}: no step is left; start another run"
                )
            self._add(rows, state, "steps", {"run": run, "steps": granted})
            return granted

    def pay(self, run: str, steps: int) -> None:
        """Enter steps that were released and that a ledger from a backup has forgotten; never given back."""
        found, wanted = self.run(run), validate.whole("steps", steps)
        if wanted > (left := found.declared - found.reserved):
            allowed = f"at most {left}: run {run} has paid for {found.reserved} of the {found.declared} it declared"
            raise SettingError("steps", steps, allowed)
        self.reserve(run, wanted)

    def close(self, run: str) -> None:
        """The run takes no more steps; what it declared and never reserved is free for others."""
        with self._rows() as (rows, state):
            if self._run(state, run).open:
                self._add(rows, state, "close", {"run": run})

    # -- questions -------------------------------------------------------------------------------

    def total(self, data: Identity | str, delta: float, unit: str = RECORD) -> Total:
        """What all runs on the data set with this id have cost together, or all on these records, entered or not."""
        with self._rows() as (_, state):
            datasets = [data] if isinstance(data, str) else state.matches(data)
            runs = {run.id: run for one in datasets for run in state.runs_on(one, unit) if run.reserved}
            budgets = {budget for one in datasets for budget in state.budgets_on(one, unit)}
        accounts = [run.account() for run in runs.values()]
        steps = sum(run.reserved for run in runs.values())
        spent = filtered(accounts, delta)
        caused = endless(list(runs.values()), delta) if spent == math.inf else []
        budget = binding(list(budgets), accounts)
        return Total(spent, composed(accounts, delta), len(runs), steps, budget, tuple(run.id for run in caused))

    def labelled(self, label: str) -> list[LedgerRun]:
        """The runs of a label, the oldest first."""
        return [run for run in self.state().runs.values() if run.label == label]

    def run(self, run: str) -> LedgerRun:
        """A run as it stands."""
        with self._rows() as (_, state):
            return self._run(state, run)

    def state(self) -> State:
        """Everything, as it stands."""
        with self._rows() as (_, state):
            return state

    def head(self) -> Head:
        """The last entry; keep it elsewhere to be able to tell later whether entries were lost."""
        with self._rows() as (_, state):
            return state.head

    def first(self) -> LedgerRun | None:
        """The run that was entered first; runs before it are not known here."""
        return next(iter(self.state().runs.values()), None)

    def verify(self, head: Head | None = None) -> int:
        """Check every link from the first entry on, and that a head kept elsewhere is among them. Counts entries."""
        with self._store.transaction() as rows:
            state = State(rows.start)
            self._catch_up(rows, state)
            if head is not None:
                rows.since(head)
            return state.head.number

    def export(self) -> Iterator[str]:
        """Every entry as a line of JSON, the head last. The key of the records' marks stays here."""
        with self._store.transaction() as rows:
            self._catch_up(rows, State(rows.start))
            entries = rows.since(rows.start)
            about = {"ledger": rows.about["id"], "gnomon": __version__}
        yield json.dumps(about)
        for entry in entries:
            yield json.dumps(asdict(entry))
        last = entries[-1] if entries else None
        yield json.dumps({"head": str(Head(last.number, last.hash)) if last else None})

    def shut(self) -> None:
        """Close the file."""
        self._store.close()

    # -- small things ----------------------------------------------------------------------------

    @contextmanager
    def _rows(self) -> Iterator[tuple[LedgerRows, State]]:
        """Alone with the file, with what others added since the last time taken into account."""
        with self._store.transaction() as rows:
            state = self._states.pop(get_ident(), None) or State(rows.start)  # an error leaves nothing half done behind
            self._catch_up(rows, state)
            self._key = bytes.fromhex(rows.about["key"])
            yield rows, state
        self._states[get_ident()] = state

    def _catch_up(self, rows: LedgerRows, state: State) -> None:
        """Take the entries into account that a state does not know yet; an error if the key is not the one they had."""
        for entry in rows.since(state.head):
            state.add(entry)
        if state.key not in (None, rows.commitment):
            raise LedgerError(
                f"{self.path}: the key of the records' marks was changed, so records would not be known again and "
                "would get a fresh budget; restore the ledger from a copy"
            )

    def _add(self, rows: LedgerRows, state: State, kind: str, content: dict[str, Any]) -> Entry:
        if state.key is None:
            content = content | {KEY: rows.commitment}
        entry = rows.append(kind, content, state.head)
        state.add(entry)
        return entry

    def _run(self, state: State, run: str) -> LedgerRun:
        if run not in state.runs:
            raise LedgerError(
                f"{self.path} does not know the run {run}: it belongs to another ledger, or entries are lost"
            )
        return state.runs[run]


def default_path() -> Path | None:
    """Where the command line keeps its ledger: GNOMON_LEDGER, or a file of the user that outlives run folders.

    None if GNOMON_LEDGER is "none". A relative path there would be another ledger in each folder, and is refused.

    >>> default_path().suffix
    '.sqlite'
    """
    named = os.environ.get("GNOMON_LEDGER")
    if named == NO_LEDGER:
        return None
    if named:
        if not Path(named).expanduser().is_absolute():
            allowed = "an absolute path, or 'none': a relative one would be another ledger in each folder"
            raise SettingError("GNOMON_LEDGER", named, allowed)
        return Path(named).expanduser()
    return _users_own()


def _users_own() -> Path:
    """The only file whose folder is made for it."""
    place = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(place) / "gnomon" / "ledger.sqlite"


def unknown_before(ledger: str) -> str:
    """What to say where a ledger begins: to whoever began it, and in the statement of its first run.

    >>> unknown_before("l.sqlite")
    'new ledger l.sqlite: runs before it are not known to it'
    """
    return f"new ledger {ledger}: runs before it are not known to it"


def needed_path(path: str | Path | None = None) -> Path:
    """The given path or the default one, for what cannot do without a ledger.

    >>> needed_path("ledger.sqlite").name
    'ledger.sqlite'
    >>> needed_path("none")
    Traceback (most recent call last):
    gnomon.errors.SettingError: ledger = 'none' is invalid; expected a file: this needs a ledger
    """
    found = Path(path).expanduser() if path else default_path()
    if found is None or str(found) == NO_LEDGER:
        where = " (GNOMON_LEDGER says none)" if not path else ""
        raise SettingError("ledger", NO_LEDGER, f"a file: this needs a ledger{where}")
    return found


def _list(state: State, datasets: list[str]) -> str:
    """Data sets for people: id, names, and how they are recognised. Those that share records are one."""

    def about(group: list[str]) -> str:
        one = next(one for one in datasets if one in group)
        how = "by --data-id" if one.startswith("name:") else "by its records"
        return f"{one} ({', '.join(state.labels(one))}, known {how})"

    return ", ".join(map(about, state.groups(datasets)))


def _new_run(dataset: str, account: Account, steps: int, label: str, unit: str) -> LedgerRun:
    settings = account.to_dict()
    del settings["steps"]
    return LedgerRun(uuid.uuid4().hex[:12], dataset, unit, settings, validate.whole("steps", steps), label, "")
