"""Budget checks: refuse a run that would exceed the budget of its data set, and suggest settings that fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gnomon.accounting import Account, Epsilon, composed, digits, filtered
from gnomon.accounting.calibrate import largest_integer
from gnomon.accounting.joint import passes
from gnomon.errors import SettingError
from gnomon.text import counted

if TYPE_CHECKING:
    from gnomon.ledger.identity import Identity
    from gnomon.ledger.state import Budget, LedgerRun, State

LARGEST_NOISE = 1e5
"""The largest noise multiplier that is tried in search of one that fits."""


class OverBudget(SettingError):
    """A run would exceed the budget of its data set.

    >>> raise OverBudget.with_message("800 steps on patients exceed the budget")
    Traceback (most recent call last):
    gnomon.ledger.budget.OverBudget: 800 steps on patients exceed the budget
    """


def runs_of_infinite_epsilon(runs: Sequence[LedgerRun], delta: float) -> list[LedgerRun]:
    """Return the runs that make an infinite total infinite: those without noise, else those with too little."""
    noiseless = [run for run in runs if run.account().noise_multiplier == 0]
    return noiseless or [run for run in runs if run.account().epsilon(delta) == math.inf]


def exceeds_budget(state: State, run: LedgerRun) -> bool:
    """Return whether this run and all others on its data could together exceed a budget.

    An open run counts with all the steps that it declared, because it may take them without a further check.
    """
    return bool(_exceeded_budgets(state, run))


def _exceeded_budgets(state: State, run: LedgerRun) -> list[Budget]:
    budgets = state.budgets_on(run.dataset, run.unit)
    accounts = [*_other_accounts(state, run), run.account(run.declared)] if budgets else []
    return [budget for budget in budgets if not within(accounts, budget)]


def tightest_budget(budgets: list[Budget], accounts: list[Account]) -> Budget | None:
    """Return the budget of which the accounts have spent the largest fraction; None without a budget."""
    if len(budgets) < 2:
        return next(iter(budgets), None)
    return max(budgets, key=lambda budget: (float(cost(accounts, budget)) / budget.epsilon, -budget.epsilon))


def refuse_over_budget(state: State, run: LedgerRun) -> None:
    """Raise OverBudget if the run exceeds a budget, with settings that would fit.

    The search for these settings is slow: do not call this inside a transaction.
    """
    exceeded = _exceeded_budgets(state, run)
    accounts, budgets = _other_accounts(state, run), state.budgets_on(run.dataset, run.unit)
    budget = tightest_budget(exceeded, [*accounts, run.account(run.declared)])
    if budget is None:
        return

    def fits(account: Account) -> bool:
        return all(within([*accounts, account], each) for each in budgets)

    spent = cost([*accounts, run.account()], budget)
    others = _other_runs(state, run)
    name = state.datasets[run.dataset].name
    refused = (
        f"{counted(run.declared, 'step')} with noise multiplier {run.account().noise_multiplier:.4g} on {name} would "
        f"exceed the budget epsilon = {budget.epsilon:.15g} at delta = {budget.delta:g}"
    )
    if spent == math.inf:
        spending = [other for other in others if other.committed > 0]
        infinite = ", ".join(each.id for each in runs_of_infinite_epsilon([*spending, run], budget.delta))
        raise OverBudget.with_message(
            f"{refused}: run {infinite} has an infinite epsilon, so the total is infinite and no further run on these "
            "data fits",
            name="run",
        )
    unfinished = [other for other in others if other.committed > other.reserved]
    raise OverBudget.with_message(
        f"{refused}: {digits(spent)} is spent or reserved for open runs, "
        f"{digits(max(0.0, budget.epsilon - spent), lower=True)} is left. "
        f"{_suggest_steps(run, fits)}{_suggest_noise(run, fits)}{_list_open_runs(unfinished)}",
        name="run",
    )


def refuse_unnamed(state: State, identity: Identity) -> None:
    """Refuse unknown records without a declared name in a ledger that has a budget for a declared name.

    A changed copy of the named data is not recognised by content and would escape that budget.
    """
    names = [dataset.removeprefix("name:") for dataset in state.named_budgets()]
    if not names or not identity.sketch or state.matches(identity):
        return
    raise SettingError.with_message(
        f"data-id is not set: this ledger has a budget by name, for {', '.join(names)}, and these records are not in "
        "it. Declare the name of the data set (--data-id NAME, dataset=NAME in Python): that name if the records are "
        "of the same people, changed or not; a new name if they are of others",
        name="data-id",
    )


def _other_runs(state: State, run: LedgerRun) -> list[LedgerRun]:
    return [other for other in state.runs_on(run.dataset, run.unit) if other.id != run.id]


def _other_accounts(state: State, run: LedgerRun) -> list[Account]:
    return [other.account(other.committed) for other in _other_runs(state, run) if other.committed > 0]


def within(accounts: list[Account], budget: Budget) -> bool:
    """Return whether the accounts together stay within the budget."""
    if budget.declared:
        return composed(accounts, budget.delta, budget.adjacency) <= budget.epsilon
    return passes(accounts, budget.epsilon, budget.delta, budget.adjacency)


def cost(accounts: list[Account], budget: Budget) -> Epsilon:
    """Return the total epsilon of the accounts by the composition that the budget uses."""
    return (composed if budget.declared else filtered)(accounts, budget.delta, budget.adjacency)


def _suggest_steps(run: LedgerRun, fits: Callable[[Account], bool]) -> str:
    half, stride = run.declared // 2, max(1, run.declared // 8)
    steps = largest_integer(lambda n: fits(run.account(n)), half, stride, run.declared)
    if steps <= run.reserved:
        return "No further step fits with this noise"
    return f"{steps} of the {run.declared} steps ({steps / run.declared:.0%} of the epochs) fit with this noise"


def _suggest_noise(run: LedgerRun, fits: Callable[[Account], bool]) -> str:
    """Return a sentence with the noise multiplier at which the whole run fits, rounded up to three digits."""

    def enough(sigma: float) -> bool:
        settings = run.settings | {"noise_multiplier": sigma, "steps": run.declared}
        return fits(Account.from_dict(settings))

    low = max(run.account().noise_multiplier, 1e-3)
    high = low
    while not enough(high):
        if high > LARGEST_NOISE:
            return "; no noise multiplier makes all of them fit."
        low, high = high, 2 * high
    while high > 1.005 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return f"; all of them fit with a noise multiplier of {digits(high, significant=3)} or more."


def _list_open_runs(runs: list[LedgerRun]) -> str:
    if not runs:
        return ""
    names = ", ".join(f"{run.id} ({counted(run.declared - run.reserved, 'step')})" for run in runs[:3])
    more = " ..." if len(runs) > 3 else ""
    return (
        f" Open runs hold declared steps: {names}{more}; `gnomon ledger close RUN` frees the steps of a run that will "
        "not continue."
    )
