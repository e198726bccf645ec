"""What the entries of a ledger add up to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gnomon import validate
from gnomon.accounting import Account
from gnomon.ledger.file import Entry, Head, LedgerError
from gnomon.ledger.identity import SKETCH, Identity, is_name
from gnomon.sampling.adjacency import Adjacency, parse_adjacency

TOKEN = re.compile(r" \([0-9a-f]{12}\)$")
"""What tells the runs of federations apart at the end of a label; of no use to people."""

KEY = "key"
"""Where an entry has the hash of the ledger's key beside what it says."""

RECORD = "one record"
"""The usual privacy unit."""


@dataclass(frozen=True)
class Budget:
    """What all runs on a data set may cost together.

    `declared` is the holder's word that the settings of all runs were fixed before the first result was seen; the
    tight composition holds then, otherwise a Renyi filter keeps the budget.

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


@dataclass
class LedgerRun:
    """One run: its settings, the steps that it declared and those it has reserved so far."""

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
    """The steps of its last reservation, of which a stopped run may have left some."""

    def account(self, steps: int | None = None) -> Account:
        """The run as an account, by default of the steps that it has reserved."""
        return Account.from_dict(self.settings | {"steps": self.reserved if steps is None else steps})

    @property
    def committed(self) -> int:
        """The steps it may still take without asking again."""
        return self.declared if self.open else self.reserved


@dataclass
class State:
    """Data sets, budgets and runs, entry by entry."""

    head: Head
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    budgets: dict[tuple[str, str], Budget] = field(default_factory=dict)
    runs: dict[str, LedgerRun] = field(default_factory=dict)
    key: str | None = None
    """What the entries say of the key; None in a ledger of an earlier version, until the next entry."""

    def add(self, entry: Entry) -> None:
        """Take one more entry into account; an error if it makes no sense."""
        content = dict(entry.content)
        key = content.pop(KEY, None)
        try:
            getattr(self, f"_{entry.kind}")(entry.time, **content)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise LedgerError(
                f"entry {entry.number} ({entry.kind}) of the ledger makes no sense ({error}): it was written by a "
                "newer version or by something else"
            ) from error
        self.head = Head(entry.number, entry.hash)
        self.key = key if self.key is None else self.key  # the first one counts

    def _dataset(
        self, time: str, id: str, name: str, sketch: list[str], joins: list[str], records: int | None = None
    ) -> None:
        if records is None and len(sketch) < SKETCH:  # an entry of an earlier version: there are as many distinct ones
            records = len(sketch) or None
        self.datasets[id] = {"name": name, "sketch": frozenset(sketch), "joins": joins, "records": records}

    def _again(self, time: str, dataset: str) -> None:
        if dataset not in self.datasets:
            raise KeyError(dataset)

    def _budget(self, time: str, dataset: str, unit: str, **values: Any) -> None:
        for member in self.family(dataset):
            self.budgets.pop((member, unit), None)
        self.budgets[dataset, unit] = Budget(**values)

    def _run(self, time: str, id: str, dataset: str, unit: str, settings: Any, declared: int, label: str) -> None:
        run = LedgerRun(id, dataset, unit, settings, validate.whole("declared", declared), label, time)
        run.account()  # every value is checked
        self.runs[id] = run

    def _declare(self, time: str, run: str, steps: int) -> None:
        self.runs[run].declared = validate.whole("steps", steps)

    def _steps(self, time: str, run: str, steps: int) -> None:
        self.runs[run].reserved += validate.whole("steps", steps)
        self.runs[run].last = steps

    def _close(self, time: str, run: str) -> None:
        self.runs[run].open = False

    def _reopen(self, time: str, run: str) -> None:
        self.runs[run].open = True

    def matches(self, identity: Identity) -> list[str]:
        """The data sets that these records are, or share records with."""
        if identity.mark in self.datasets:
            return [identity.mark]
        return [one for one, about in self.datasets.items() if about["sketch"] & identity.sketch]

    def resembling(self, identity: Identity) -> list[str]:
        """The data sets that records which were never seen may be a changed copy of: as many, or known by name."""
        if not identity.sketch or self.matches(identity):
            return []
        return [one for one, about in self.datasets.items() if is_name(one) or about["records"] == identity.records]

    def named_budgets(self) -> list[str]:
        """The data sets known by name that have a budget."""
        return list(dict.fromkeys(dataset for dataset, _ in self.budgets if is_name(dataset)))

    def family(self, dataset: str) -> set[str]:
        """The data sets that share records with this one, directly or through others, itself included."""
        found: set[str] = set()
        waiting = {dataset}
        while waiting:
            found |= waiting
            waiting = {
                other
                for other, about in self.datasets.items()
                if other not in found
                and (found & set(about["joins"]) or any(other in self.datasets[one]["joins"] for one in found))
            }
        return found

    def groups(self, datasets: Iterable[str]) -> list[list[str]]:
        """Data sets that share records together, each group with all that belong to it."""
        found: list[list[str]] = []
        for one in datasets:
            if not any(one in group for group in found):
                family = self.family(one)
                found.append([other for other in self.datasets if other in family])
        return found

    def labels(self, dataset: str) -> list[str]:
        """What a data set and all that share records with it have been called, by data sets and by runs."""
        family = self.family(dataset)
        names = [about["name"] for one, about in self.datasets.items() if one in family]
        names += [run.label for run in self.runs.values() if run.dataset in family and run.label]
        return list(dict.fromkeys(TOKEN.sub("", name) for name in names))

    def budgets_on(self, dataset: str, unit: str) -> list[Budget]:
        """The budgets of a data set and all that share records with it: several, if they had some when they met."""
        family = self.family(dataset)
        return [budget for (one, of), budget in self.budgets.items() if one in family and of == unit]

    def runs_on(self, dataset: str, unit: str) -> list[LedgerRun]:
        """All runs that read records of this data set."""
        family = self.family(dataset)
        return [run for run in self.runs.values() if run.dataset in family and run.unit == unit]
