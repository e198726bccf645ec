"""The privacy statement of a run: what is guaranteed, for whom, and what is not covered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from gnomon.accounting import Account, Epsilon, digits
from gnomon.errors import SettingError
from gnomon.ledger.ledger import unknown_before
from gnomon.ledger.session import LedgerSession
from gnomon.statement.explanation import describe_neighbours
from gnomon.text import counted
from gnomon.version import __version__

NOT_COVERED = (
    "Choosing hyper-parameters by results on the private data: every run whose results were seen counts.",
    "Values logged under 'unprotected/' (training loss, clipped fraction): they must stay with the data holder.",
    "People in the validation set: their scores are computed without noise.",
    "Floating point: noise is drawn in float64 and rounded to a grid, which resists the known attacks, "
    "but the proof assumes real numbers.",
    "Refusals before the first step (samples that interact, public records that are also private): whether a run is "
    "refused can depend on a record.",
    "Side channels such as running time, and everything outside the training run.",
)

"""What a statement says that no guarantee covers."""

DECLARED = "declared, not counted"

TOTAL_NOT_STATED = (
    "for the data holder: `gnomon ledger show`. The data set was recognised by its records, so the total may depend "
    "on a single record; declare a name for the data set (--data-id) to have it stated here"
)
"""What a statement says in place of the total over all runs on a data set without a declared name."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Statement:
    """The privacy claim of a run. `text()` is for readers, `json()` for programs.

    `guarantee` is True only if epsilon is a finite upper bound and the noise is secret.

    >>> from gnomon.accounting import epsilon
    >>> spent = epsilon(noise_multiplier=10.0, sample_rate=0.025, steps=3200, delta=1e-5)
    >>> print(Statement.of(spent, method="dp-sgd", max_grad_norm=1.0, expected_batch_size=250,
    ...                    private_noise=True).text().splitlines()[2])
    epsilon = 0.500, delta = 1e-05
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    sampler: str
    accountant: str
    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: float
    steps: int
    method: str
    guarantee: bool
    caveats: tuple[str, ...]
    ledger: dict[str, Any] | None = None
    """The run's entry in the ledger and, for a data set with a declared name, the total of all runs on it."""
    not_covered: tuple[str, ...] = NOT_COVERED
    divisor: str = DECLARED
    """The origin of the divisor `expected_batch_size`."""
    sample_rate: float | None = None
    """The sampling rate in full precision; None for schemes without one."""
    account: dict[str, Any] | None = None
    """Everything that epsilon was computed from (`Account.to_dict`); None if the sampler is not registered."""
    files: dict[str, str] | None = None
    """The SHA-256 of the run's files beside this statement, by file name."""
    written: str = field(default_factory=_now, compare=False)
    """When the statement was written, in UTC."""
    gnomon: str = __version__

    @classmethod
    def of(
        cls,
        spent: Epsilon,
        *,
        method: str,
        max_grad_norm: float,
        expected_batch_size: float,
        private_noise: bool,
        notes: Sequence[str] = (),
        ledger: dict[str, Any] | None = None,
        account: Account | None = None,
    ) -> Statement:
        """Return the statement of a run.

        Args:
            spent: The epsilon of all released steps.
            method: The name of the training method.
            max_grad_norm: The clip bound.
            expected_batch_size: The declared divisor of each step.
            private_noise: Whether the noise is secret. Seeded noise gives no guarantee.
            notes: Further caveats of the run.
            ledger: The run's entry in the ledger, from `ledger_note`.
            account: The account that `spent` was computed from.
        """
        caveats = list(notes)
        if not private_noise:
            caveats.append("not private: seeded noise. Whoever knows the seed can subtract the noise.")
        if float(spent) == float("inf"):
            caveats.append("not private: no noise was added.")
        if not spent.guarantee:
            caveats.append(f"not a guarantee: {spent.note}")
        elif spent.note and spent.steps and spent.noise_multiplier:
            caveats.append(spent.note)
        return cls(
            epsilon=float(spent),
            delta=spent.delta,
            unit="one record",
            adjacency=spent.adjacency,
            sampler=spent.sampler,
            accountant=spent.accountant,
            noise_multiplier=spent.noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_batch_size,
            steps=spent.steps,
            method=method,
            guarantee=spent.guarantee and private_noise and float(spent) < float("inf"),
            caveats=tuple(caveats),
            ledger=ledger,
            sample_rate=getattr(account.sampler, "sample_rate", None) if account is not None else None,
            account=_account_dict(account),
        )

    def text(self) -> str:
        """Return the statement as text."""
        claim = (
            "The trained model is differentially private with"
            if self.guarantee
            else "NO GUARANTEE. By the numbers alone the run would have"
        )
        lines = [
            "PRIVACY STATEMENT",
            claim,
            f"epsilon = {digits(self.epsilon)}, delta = {self.delta:g}",
            "",
            f"  protected unit        {self.unit}",
            f"  neighbouring data     {describe_neighbours(self.adjacency, self.unit)} ({self.adjacency})",
            f"  sampling              {self.sampler}",
            f"  accountant            {self.accountant}",
            f"  noise multiplier      {self.noise_multiplier:.6g}",
            f"  clip bound            {f'{self.max_grad_norm:g}' if self.max_grad_norm < float('inf') else 'none'}",
            f"  divisor               {self.expected_batch_size:g} ({self.divisor})",
            f"  noisy steps released  {self.steps}",
            f"  method                {self.method}",
            *self._ledger_lines(),
            *(f"  {name:<20}  sha256 {sha256}" for name, sha256 in (self.files or {}).items()),
            f"  written               {self.written} by gnomon {self.gnomon}",
        ]
        lines += ["", *(f"CAVEAT: {caveat}" for caveat in self.caveats)] if self.caveats else []
        lines += ["", "Not covered:", *(f"  - {item}" for item in self.not_covered)]
        return "\n".join(lines) + "\n"

    def _ledger_lines(self) -> list[str]:
        if self.ledger is None:
            return ["  all runs on the data  not known: this run is in no ledger"]
        entered = f"run {self.ledger['run']}, " if self.ledger["run"] else ""
        if "epsilon" not in self.ledger:
            return [
                f"  all runs on the data  {TOTAL_NOT_STATED}",
                f"  ledger                {entered}head {self.ledger['head']}",
            ]
        value = digits(self.ledger["epsilon"])
        runs, steps = counted(self.ledger["runs"], "run"), counted(self.ledger["steps"], "step")
        budget = self.ledger["budget"]
        allowed = "" if budget is None else f", of a budget of {budget['epsilon']:.15g} at delta = {budget['delta']:g}"
        if budget is not None and budget.get("declared"):
            allowed += ", both for settings that were fixed before the first result was seen"
        entered += f"data set {self.ledger['dataset']}, " if self.ledger.get("dataset") else ""
        return [
            f"  all runs on the data  epsilon = {value}, delta = {self.delta:g} "
            f"({runs}, {steps} reserved, {self.ledger['accountant']}){allowed}",
            f"  ledger                {entered}head {self.ledger['head']}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values; an infinite epsilon or clip bound is None, as JSON has no infinity."""
        values = asdict(self)
        for name in ("epsilon", "max_grad_norm"):
            values[name] = values[name] if values[name] < float("inf") else None
        return values

    def json(self) -> str:
        """Return the content of `statement.json`."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def __str__(self) -> str:
        return self.text()


def _account_dict(account: Account | None) -> dict[str, Any] | None:
    """Return the account as plain values, or None if its sampler is not a registered scheme."""
    try:
        return None if account is None else account.to_dict()
    except SettingError:
        return None


def ledger_caveats(ledger_session: LedgerSession) -> list[str]:
    """Return the caveats about the ledger that a statement has to mention.

    >>> from gnomon.accounting import Account, Poisson
    >>> ledger_caveats(LedgerSession(None, Account(Poisson(0.1), 1.0), steps=10))
    []
    """
    if ledger_session.ledger is None or not ledger_session.began_ledger():
        return []
    return [f"{unknown_before(ledger_session.ledger.path.name)}."]


def ledger_note(ledger_session: LedgerSession, delta: float) -> dict[str, Any] | None:
    """Return what a statement says about the ledger, as plain values; None without a ledger.

    The total over all runs is stated only for a data set with a declared name. For a data set that is recognised by
    its records, a single record can decide which other runs share records with this run, and the id of the data set;
    a statement is passed on, so it must not reveal either.

    >>> from gnomon.accounting import Account, Poisson
    >>> ledger_note(LedgerSession(None, Account(Poisson(0.1), 1.0), steps=10), 1e-5) is None
    True
    """
    if ledger_session.ledger is None:
        return None
    if not ledger_session.named:
        return {"run": ledger_session.run, "head": str(ledger_session.head())} if ledger_session.recognised else None
    total = ledger_session.total(delta)
    if total is None:
        return None
    return {
        "epsilon": float(total.counted) if total.counted < float("inf") else None,
        "accountant": total.counted.accountant,
        "adjacency": total.counted.adjacency,
        "runs": total.runs,
        "steps": total.steps,
        "budget": None if total.budget is None else asdict(total.budget),
        "run": ledger_session.run,
        "dataset": ledger_session.dataset,
        "head": str(ledger_session.head()),
    }
