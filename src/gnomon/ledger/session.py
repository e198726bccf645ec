"""One run's hand on the ledger: pays for steps in blocks, before their noise is drawn."""

from __future__ import annotations

import os
import warnings
from typing import Any

from gnomon.accounting import Account, steps_per_epoch
from gnomon.ledger.file import Head, LedgerError
from gnomon.ledger.identity import Identity, is_name
from gnomon.ledger.ledger import Ledger, Total
from gnomon.ledger.state import RECORD, LedgerRun


class LedgerSession:
    """Enters a run on its first step and pays block by block. Without a ledger, or with seeded noise, it does nothing.

    Order of calls: `admit` the data, `start`, then `charge` before each release, `stop` at the end.

    >>> from gnomon.accounting import Poisson
    >>> session = LedgerSession(None, Account(Poisson(0.1), 1.0), steps=10)
    >>> session.charge()
    >>> session.total(1e-5) is None
    True
    """

    def __init__(
        self, ledger: Ledger | None, account: Account, steps: int, *, dataset: str | None = None, label: str = ""
    ) -> None:
        self.ledger, self.run, self.label = ledger, "", label
        self._account, self._steps, self._name = account, steps, dataset
        self._identity: Identity | None = None
        self._dataset, self._left, self._process, self._open = "", 0, -1, False
        self._warned = False

    @property
    def recognised(self) -> bool:
        """Whether the run knows its data set, entered or not."""
        return self._identity is not None

    @property
    def named(self) -> bool:
        """Whether the holder declared the data set by a name, so that no record decides what it counts with."""
        return self._name is not None and is_name(self._dataset or (self._identity.mark if self._identity else ""))

    @property
    def dataset(self) -> str:
        """The id of the data set that the run was entered for; empty before."""
        return self._dataset

    def recognise(self, data: Any) -> None:
        """Find out which data set this is: enough to say what it has paid, and nothing is refused for its budget."""
        if self.ledger is None:
            return
        identity = self.ledger.identify(data, self._name)
        if self._dataset and self._identity is not None:
            self._enter(identity)
        self._identity = identity

    def admit(self, data: Any) -> None:
        """Find out which data set this is, and refuse a run that its budget cannot pay for."""
        before = self._identity
        self.recognise(data)
        if self.ledger is not None and self._identity is not None and not self.run:
            self.ledger.check(self._identity, self._account, self._steps)
            if before is None or before.mark != self._identity.mark:
                self._warn_of_copies(self._identity)
            self._warn_without_noise()

    def _warn_of_copies(self, identity: Identity) -> None:
        """For the data holder: a preprocessed copy of known records is not recognised."""
        assert self.ledger is not None
        if known := self.ledger.resembling(identity):
            warnings.warn(
                "these records were never seen in this ledger, which knows a set of the same size, or one by name: "
                f"{known}; if these are the same people, pass --data-id with its name or id (dataset= in Python), "
                "or they get a fresh budget",
                RuntimeWarning,
                stacklevel=3,
            )

    def _warn_without_noise(self) -> None:
        """Once, before it is entered: what no noise costs cannot be taken back."""
        if self._account.noise_multiplier == 0 and not self._warned:
            warnings.warn(
                "this run adds an infinite epsilon to the ledger for good; for a study without privacy use "
                "--insecure-noise-seed or --ledger none",
                RuntimeWarning,
                stacklevel=2,
            )
            self._warned = True

    def _enter(self, identity: Identity) -> None:
        """Records that have come since the run began count too; other records are refused."""
        assert self.ledger is not None
        state = self.ledger.state()
        if not state.family(self._dataset) & set(state.matches(identity)):
            raise LedgerError(
                f"run {self.run} was entered for other records: give it the ones that it started with, or make another "
                "Trainer for these"
            )
        self.ledger.dataset(identity, self._label)

    @property
    def _label(self) -> str:
        """What the ledger calls a new data set: by default its name, where it has one."""
        return self.label if self._name is None else ""

    def start(self) -> None:
        """Enter the run, or open it again."""
        if self.ledger is None or self._open:
            return
        if self.run:
            self.ledger.reopen(self.run)
        else:
            if self._identity is None:
                raise LedgerError("a ledger needs to know the data: use fit(train) or batches(train)")
            self._dataset = self.ledger.dataset(self._identity, self._label)
            self.run = self.ledger.open(self._dataset, self._account, self._steps, label=self.label)
        self._open = True

    def charge(self) -> None:
        """Pay for one step; when this returns the payment is on disk."""
        if self.ledger is None:
            return
        if not self._open:
            raise LedgerError("the run has not been entered: draw batches with fit(train) or batches(train)")
        if self._left == 0 or self._process != os.getpid():  # a forked copy must not spend the same block again
            self._left, self._process = self.ledger.reserve(self.run), os.getpid()
        self._left -= 1

    def stop(self) -> None:
        """No more steps for now: frees what was declared and never reserved."""
        if self.ledger is not None and self._open:
            self.ledger.close(self.run)
            self._open = False

    def suits(self, run: LedgerRun, data: Any) -> bool:
        """Whether `resume` could take up a run, if steps may be declared anew: it has these settings and records."""
        assert self.ledger is not None
        state, identity = self.ledger.state(), self.ledger.identify(data, self._name)
        return self._same(run) and bool(state.family(run.dataset) & set(state.matches(identity)))

    def _same(self, run: LedgerRun) -> bool:
        mine = self._account.to_dict()
        return all(mine[key] == value for key, value in run.settings.items())

    def resume(self, run: str, data: Any, *, redeclare: bool = False) -> int:
        """Take up a run of an earlier process; how many steps count as taken.

        Steps that were reserved and perhaps never taken stay paid. A shuffled epoch cannot be continued, since its
        order is gone, so the rest of it counts as taken too. With `redeclare` the run may have declared another number
        of steps, and has this one from now on if the budget can pay for it.
        """
        if self.ledger is None:
            raise LedgerError(
                "only a run with a ledger can go on: nobody knows how many steps another one has released"
            )
        found = self.ledger.run(run)
        if not self._same(found) or (found.declared != self._steps and not redeclare):
            raise LedgerError(f"run {run} was entered with other settings: {found.settings}, {found.declared} steps")
        identity = self.ledger.identify(data, self._name)
        state = self.ledger.state()
        if not state.family(found.dataset) & set(state.matches(identity)):
            raise LedgerError(f"run {run} was on other data: give it the records that it started with")
        self.run, self._identity = run, identity
        self.ledger.dataset(identity, self._label)  # records that have come since count too
        lost = 0
        if not self._account.sampler.interruptible:
            lost = -found.reserved % steps_per_epoch(self._account.sampler)
        self._dataset, self._left = found.dataset, 0
        if redeclare:
            self.ledger.redeclare(run, self._steps)
        self.ledger.reopen(run, lost=lost)
        self._open = True
        return self.ledger.run(run).reserved

    def total(self, delta: float) -> Total | None:
        """What all runs on these data have cost together, also before this one is entered.

        None without a ledger, or if nothing has been entered for them.
        """
        if self.ledger is None:
            return None
        if self._dataset:
            return self.ledger.total(self._dataset, delta, RECORD)
        found = None if self._identity is None else self.ledger.total(self._identity, delta, RECORD)
        return found if found is not None and found.runs else None

    def began_ledger(self) -> bool:
        """Whether this run is the first one of its ledger."""
        first = None if self.ledger is None or not self.run else self.ledger.first()
        return first is not None and first.id == self.run

    def head(self) -> Head | None:
        """The ledger's last entry."""
        return None if self.ledger is None else self.ledger.head()
