"""The session of one run with the ledger: it reserves steps in blocks, before their noise is drawn."""

from __future__ import annotations

import os
import warnings
from typing import Any

from gnomon.accounting import Account, steps_per_epoch
from gnomon.data import Loader
from gnomon.ledger.file import Head, LedgerStateError
from gnomon.ledger.identity import Identity, is_declared_name
from gnomon.ledger.ledger import Ledger, Total
from gnomon.ledger.state import RECORD, LedgerRun


class LedgerSession:
    """Add a run to the ledger at its first step and reserve its steps block by block.

    Call `admit` with the data, `start`, `charge` before each release, and `stop` at the end. Without a ledger, as for
    seeded noise, every call does nothing.

    Args:
        ledger: the ledger, or None.
        account: the privacy account of one run; its settings are recorded.
        steps: the number of steps that the run declares.
        dataset: a declared name or a known id of the data set; None to identify it by its records.
        label: how the ledger displays the run.

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
        self._cached: tuple[bytes, Identity] | None = None
        """The digest of the last data in memory that were identified by content, and their identity."""
        self._dataset, self._left, self._process, self._open = "", 0, -1, False
        self._warned = False

    @property
    def identified(self) -> bool:
        """Whether the identity of the data set is known, in the ledger or not."""
        return self._identity is not None

    @property
    def named(self) -> bool:
        """Whether the data set has a declared name, so that no record influences which runs count together."""
        return self._name is not None and is_declared_name(
            self._dataset or (self._identity.id if self._identity else "")
        )

    @property
    def dataset(self) -> str:
        """The id of the data set under which the ledger lists the run; empty before `start`."""
        return self._dataset

    def identify(self, data: Any) -> None:
        """Identify the data set, so that `total` is available. The budget is not checked.

        Raises:
            LedgerStateError: if the run has started on a data set that shares no records with these.
        """
        if self.ledger is None:
            return
        identity = self._identify(self.ledger, data)
        if self._dataset and self._identity is not None:
            self._relate(identity)
        self._identity = identity

    def admit(self, data: Any) -> None:
        """Identify the data set, and refuse a new run that would exceed its budget.

        Raises:
            OverBudget: if the declared steps could exceed a budget.
            LedgerStateError: if the run has started on a data set that shares no records with these.
        """
        previous = self._identity
        self.identify(data)
        if self.ledger is not None and self._identity is not None and not self.run:
            self.ledger.check_budget(self._identity, self._account, self._steps)
            if previous is None or previous.id != self._identity.id:
                self._warn_of_copies(self._identity)
            self._warn_without_noise()

    def _identify(self, ledger: Ledger, data: Any) -> Identity:
        """Return the identity of the data; hash records in memory only if their bytes changed since the last call."""
        if self._name is not None:
            return ledger.identify(data, self._name)
        loader = data if isinstance(data, Loader) else Loader(data)
        digest = loader.digest()
        if digest is None:
            return ledger.identify(loader)
        if self._cached is None or self._cached[0] != digest:
            self._cached = digest, ledger.identify(loader)
        return self._cached[1]

    def _warn_of_copies(self, identity: Identity) -> None:
        """Warn the data holder that a preprocessed copy of known records is not recognised."""
        assert self.ledger is not None
        if copies := self.ledger.describe_possible_copies(identity):
            warnings.warn(
                "these records are not in the ledger, which contains a data set of the same size or with a declared "
                f"name: {copies}; if these are the same people, pass its name or id with --data-id (dataset= in "
                "Python), otherwise the records get a fresh budget",
                RuntimeWarning,
                stacklevel=3,
            )

    def _warn_without_noise(self) -> None:
        """Warn once, before the run is added, that its infinite epsilon cannot be removed again."""
        if self._account.noise_multiplier == 0 and not self._warned:
            warnings.warn(
                "this run has no noise and permanently adds an infinite epsilon to the ledger; for a study without "
                "privacy use --insecure-noise-seed or --ledger none",
                RuntimeWarning,
                stacklevel=2,
            )
            self._warned = True

    def _relate(self, identity: Identity) -> None:
        """Record that the running run also reads records that were added since; refuse unrelated records."""
        assert self.ledger is not None
        if not self.ledger.state().same_data(self._dataset, identity):
            raise LedgerStateError(
                f"run {self.run} was started on other records: pass the records that it started with, or make another "
                "Trainer for these"
            )
        self.ledger.dataset(identity, self._label)

    @property
    def _label(self) -> str:
        """The display name of a new data set: the run's label, unless the data set has a declared name."""
        return self.label if self._name is None else ""

    def start(self) -> None:
        """Add the run to the ledger, or reopen it."""
        if self.ledger is None or self._open:
            return
        if self.run:
            self.ledger.reopen_run(self.run)
        else:
            if self._identity is None:
                raise LedgerStateError(
                    "the ledger does not know the data of this run: call fit(train) or batches(train) first"
                )
            self._dataset = self.ledger.dataset(self._identity, self._label)
            self.run = self.ledger.open_run(self._dataset, self._account, self._steps, label=self.label)
        self._open = True

    def charge(self) -> None:
        """Charge one step. The charge is on disk when this returns, so call it before the noise is drawn."""
        if self.ledger is None:
            return
        if not self._open:
            raise LedgerStateError(
                "the run is not in the ledger: draw the batches with fit(train) or batches(train) first"
            )
        if self._left == 0 or self._process != os.getpid():  # a forked copy must not spend the same block again
            self._left, self._process = self.ledger.reserve(self.run), os.getpid()
        self._left -= 1

    def stop(self) -> None:
        """Close the run: its declared steps that were never reserved no longer count against the budget."""
        if self.ledger is not None and self._open:
            self.ledger.close_run(self.run)
            self._open = False

    def can_resume(self, run: LedgerRun, data: Any) -> bool:
        """Return whether `resume(..., redeclare=True)` would accept a run: same settings, and the same records."""
        assert self.ledger is not None
        return self._same_settings(run) and self.ledger.state().same_data(
            run.dataset, self._identify(self.ledger, data)
        )

    def _same_settings(self, run: LedgerRun) -> bool:
        settings = self._account.to_dict()
        return all(settings[key] == value for key, value in run.settings.items())

    def resume(self, run: str, data: Any, *, redeclare: bool = False) -> int:
        """Continue a run of an earlier process, and return the number of steps that count as taken.

        Steps that were reserved and perhaps never taken stay charged. A shuffled epoch cannot be continued, because
        its order is lost, so its remaining steps count as taken too.

        Args:
            run: the id of the run.
            data: its records.
            redeclare: accept a run that declared another number of steps, and declare this session's number instead.

        Raises:
            LedgerStateError: if the run has other settings or was on other records, or if there is no ledger.
            OverBudget: if the redeclared steps could exceed a budget.
        """
        if self.ledger is None:
            raise LedgerStateError(
                "a run without a ledger cannot be resumed, because the number of steps it released is not recorded: "
                "start a new run"
            )
        entry = self.ledger.run(run)
        if not self._same_settings(entry) or (entry.declared != self._steps and not redeclare):
            raise LedgerStateError(
                f"run {run} was started with other settings: {entry.settings}, {entry.declared} steps; use these, or "
                "start a new run"
            )
        identity = self._identify(self.ledger, data)
        if not self.ledger.state().same_data(entry.dataset, identity):
            raise LedgerStateError(f"run {run} was started on other records: pass the records that it started with")
        self.run, self._identity = run, identity
        self.ledger.dataset(identity, self._label)  # records that were added since are related to the data set
        lost = 0
        if not self._account.sampler.interruptible:
            lost = -entry.reserved % steps_per_epoch(self._account.sampler)
        self._dataset, self._left = entry.dataset, 0
        if redeclare:
            self.ledger.redeclare(run, self._steps)
        self.ledger.reopen_run(run, lost=lost)
        self._open = True
        return self.ledger.run(run).reserved

    def total(self, delta: float) -> Total | None:
        """Return the spending of all runs on these data, also before this run is added.

        Returns:
            The total, or None without a ledger or if the ledger has no run on these data.
        """
        if self.ledger is None:
            return None
        if self._dataset:
            return self.ledger.total(self._dataset, delta, RECORD)
        total = None if self._identity is None else self.ledger.total(self._identity, delta, RECORD)
        return total if total is not None and total.runs else None

    def is_first_run(self) -> bool:
        """Return whether this run is the earliest one of its ledger."""
        first = None if self.ledger is None or not self.run else self.ledger.first_run()
        return first is not None and first.id == self.run

    def head(self) -> Head | None:
        """Return the head of the ledger, or None without a ledger."""
        return None if self.ledger is None else self.ledger.head()
