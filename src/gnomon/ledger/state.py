"""The state of a ledger: its data sets, budgets and runs, computed by applying the entries in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gnomon import validate
from gnomon.accounting import Account
from gnomon.ledger.file import Entry, Head, LedgerError
from gnomon.ledger.identity import SKETCH_SIZE, Identity, is_declared_name
from gnomon.sampling.adjacency import Adjacency, parse_adjacency

FEDERATION_TOKEN = re.compile(r" \([0-9a-f]{12}\)$")
"""The suffix of a label that distinguishes the runs of different federations; removed where labels are displayed."""

KEY = "key"
"""The field of an entry's content that holds the commitment to the ledger's key."""

RECORD = "one record"
"""The default privacy unit."""


@dataclass(frozen=True)
class Budget:
    """The epsilon that all runs on a data set together may spend.

    Attributes:
        epsilon: the total that is allowed.
        delta: the delta at which the total is computed.
        declared: the data holder's assurance that the settings of all runs were fixed before the first result was
            seen. Tight composition is valid then; otherwise a Renyi filter enforces the budget.
        adjacency: the neighbouring relation of the total; None for the relation that is valid for all runs.

    >>> Budget(epsilon=3.0, delta=1e-5).declared
    False
    """

    epsilon: float
    delta: float
    declared: bool = False
    adjacency: Adjacency | None = None

    def __post_init__(self) -> None:
        validate.positive("epsilon", self.epsilon)
        validate.probability("delta", self.delta)
        if self.adjacency is not None:
            parse_adjacency(self.adjacency)


@dataclass(frozen=True)
class LedgerDataset:
    """A data set as the ledger records it."""

    name: str
    sketch: frozenset[str]
    """The smallest keyed hashes of its records; empty for a declared name."""
    joins: tuple[str, ...]
    """The ids of data sets that were in the ledger before and share records with this one."""
    records: int | None
    """The number of records, where it is known."""


@dataclass
class LedgerRun:
    """A run as the ledger records it: its settings, the steps it declared and the steps it has reserved so far."""

    id: str
    dataset: str
    unit: str
    settings: dict[str, Any]
    declared: int
    label: str
    time: str
    reserved: int = 0
    open: bool = True
    last: int = 0
    """The number of steps in the latest reservation, some of which a stopped run may not have taken."""

    def account(self, steps: int | None = None) -> Account:
        """Return the privacy account of the run after `steps` steps (default: all reserved steps)."""
        return Account.from_dict(self.settings | {"steps": self.reserved if steps is None else steps})

    @property
    def committed(self) -> int:
        """The number of steps that count against a budget: all declared ones while the run is open."""
        return self.declared if self.open else self.reserved


@dataclass
class State:
    """The data sets, budgets and runs of a ledger after the entry `head`."""

    head: Head
    datasets: dict[str, LedgerDataset] = field(default_factory=dict)
    budgets: dict[tuple[str, str], Budget] = field(default_factory=dict)
    runs: dict[str, LedgerRun] = field(default_factory=dict)
    key: str | None = None
    """The commitment to the key; None in a ledger without any, until its next entry."""

    def apply(self, entry: Entry) -> None:
        """Apply the next entry.

        Raises:
            LedgerError: if the entry's kind or content is invalid.
        """
        content = dict(entry.content)
        key = content.pop(KEY, None)
        try:
            _HANDLERS[entry.kind](self, entry.time, **content)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise LedgerError(
                f"entry {entry.number} ({entry.kind}) of the ledger is invalid ({error}): a newer version of gnomon or "
                "another program wrote it; use that version, or restore a backup"
            ) from error
        self.head = Head(entry.number, entry.hash)
        self.key = key if self.key is None else self.key  # a later commitment must not replace the first one

    def _add_dataset(
        self, time: str, id: str, name: str, sketch: list[str], joins: list[str], records: int | None = None
    ) -> None:
        if records is None and len(sketch) < SKETCH_SIZE:  # an entry without a count: the sketch holds every record
            records = len(sketch) or None
        self.datasets[id] = LedgerDataset(name, frozenset(sketch), tuple(joins), records)

    def _use_dataset(self, time: str, dataset: str) -> None:
        if dataset not in self.datasets:
            raise KeyError(dataset)

    def _set_budget(self, time: str, dataset: str, unit: str, **values: Any) -> None:
        for member in self.related(dataset):
            self.budgets.pop((member, unit), None)
        self.budgets[dataset, unit] = Budget(**values)

    def _open_run(self, time: str, id: str, dataset: str, unit: str, settings: Any, declared: int, label: str) -> None:
        run = LedgerRun(id, dataset, unit, settings, validate.whole("declared", declared), label, time)
        run.account()  # validates every setting
        self.runs[id] = run

    def _redeclare_steps(self, time: str, run: str, steps: int) -> None:
        self.runs[run].declared = validate.whole("steps", steps)

    def _reserve_steps(self, time: str, run: str, steps: int) -> None:
        self.runs[run].reserved += validate.whole("steps", steps)
        self.runs[run].last = steps

    def _close_run(self, time: str, run: str) -> None:
        self.runs[run].open = False

    def _reopen_run(self, time: str, run: str) -> None:
        self.runs[run].open = True

    def matches(self, identity: Identity) -> list[str]:
        """Return the ids of the data sets that have this identity or share records with it."""
        if identity.id in self.datasets:
            return [identity.id]
        return [id for id, dataset in self.datasets.items() if dataset.sketch & identity.sketch]

    def possible_copies(self, identity: Identity) -> list[str]:
        """Return the ids of data sets of which unknown records may be a changed copy.

        These are the data sets with as many records, and all with a declared name.
        """
        if not identity.sketch or self.matches(identity):
            return []
        return [
            id for id, dataset in self.datasets.items() if is_declared_name(id) or dataset.records == identity.records
        ]

    def named_budgets(self) -> list[str]:
        """Return the ids of data sets that have a declared name and a budget."""
        return list(dict.fromkeys(dataset for dataset, _ in self.budgets if is_declared_name(dataset)))

    def related(self, dataset: str) -> set[str]:
        """Return the ids of all data sets that share records with this one, directly or transitively, and its own."""
        members: set[str] = set()
        frontier = {dataset}
        while frontier:
            members |= frontier
            frontier = {
                id
                for id, candidate in self.datasets.items()
                if id not in members
                and (members & set(candidate.joins) or any(id in self.datasets[member].joins for member in members))
            }
        return members

    def same_data(self, dataset: str, identity: Identity) -> bool:
        """Return whether an identity is, or shares records with, a data set or one related to it."""
        return not self.related(dataset).isdisjoint(self.matches(identity))

    def groups(self, datasets: Iterable[str]) -> list[list[str]]:
        """Return the given data sets grouped by shared records, each group with all related data sets."""
        groups: list[list[str]] = []
        for dataset in datasets:
            if not any(dataset in group for group in groups):
                members = self.related(dataset)
                groups.append([id for id in self.datasets if id in members])
        return groups

    def labels(self, dataset: str) -> list[str]:
        """Return the names and run labels of a data set and all related ones, without federation tokens."""
        members = self.related(dataset)
        names = [known.name for id, known in self.datasets.items() if id in members]
        names += [run.label for run in self.runs.values() if run.dataset in members and run.label]
        return list(dict.fromkeys(FEDERATION_TOKEN.sub("", name) for name in names))

    def budgets_on(self, dataset: str, unit: str) -> list[Budget]:
        """Return the budgets of a data set and all related ones; several, if each had one before they were related."""
        members = self.related(dataset)
        return [budget for (id, its_unit), budget in self.budgets.items() if id in members and its_unit == unit]

    def runs_on(self, dataset: str, unit: str) -> list[LedgerRun]:
        """Return all runs on a data set and all related ones."""
        members = self.related(dataset)
        return [run for run in self.runs.values() if run.dataset in members and run.unit == unit]


_HANDLERS: dict[str, Callable[..., None]] = {
    "dataset": State._add_dataset,
    "again": State._use_dataset,
    "budget": State._set_budget,
    "run": State._open_run,
    "declare": State._redeclare_steps,
    "steps": State._reserve_steps,
    "close": State._close_run,
    "reopen": State._reopen_run,
}
"""The method that applies each kind of entry."""
