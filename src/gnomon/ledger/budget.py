"""Refuses a run that the budget of its data set cannot pay for, and says which settings would fit."""

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

MOST_NOISE = 1e5


class OverBudget(SettingError):
    """A run that the budget of its data set cannot pay for.

    >>> raise OverBudget("run", "800 steps", "one that fits")
    Traceback (most recent call last):
    gnomon.ledger.budget.OverBudget: run = '800 steps' is invalid; expected one that fits
    """


def endless(runs: Sequence[LedgerRun], delta: float) -> list[LedgerRun]:
    """The runs that make a total infinite, if it is: those without noise, or with next to none."""
    silent = [run for run in runs if run.account().noise_multiplier == 0]
    return silent or [run for run in runs if run.account().epsilon(delta) == math.inf]


def exceeds(state: State, run: LedgerRun) -> bool:
    """Whether this run and all others on its data could together exceed a budget.

    Runs that are open count with all the steps that they declared: each was promised them.
    """
    return bool(_exceeded(state, run))


def _exceeded(state: State, run: LedgerRun) -> list[Budget]:
    budgets = state.budgets_on(run.dataset, run.unit)
    accounts = [*_others(state, run), run.account(run.declared)] if budgets else []
    return [budget for budget in budgets if not within(accounts, budget)]


def binding(budgets: list[Budget], accounts: list[Account]) -> Budget | None:
    """The budget of which the accounts have used the largest part."""
    if len(budgets) < 2:
        return next(iter(budgets), None)
    return max(budgets, key=lambda budget: (float(cost(accounts, budget)) / budget.epsilon, -budget.epsilon))


def refuse_excess(state: State, run: LedgerRun) -> None:
    """An error if the run exceeds the budget, with the settings that would fit. Searching for them takes its time."""
    exceeded = _exceeded(state, run)
    accounts, budgets = _others(state, run), state.budgets_on(run.dataset, run.unit)
    budget = binding(exceeded, [*accounts, run.account(run.declared)])
    if budget is None:
        return

    def fits(account: Account) -> bool:
        return all(within([*accounts, account], one) for one in budgets)

    spent = cost([*accounts, run.account()], budget)
    others = [one for one in state.runs_on(run.dataset, run.unit) if one.id != run.id]
    waiting = [one for one in others if one.committed > one.reserved]
    name = state.datasets[run.dataset]["name"]
    asked = f"{counted(run.declared, 'step')} with noise multiplier {run.account().noise_multiplier:.4g} on {name}"
    if spent == math.inf:
        caused = ", ".join(one.id for one in endless([*filter(_counts, others), run], budget.delta))
        raise OverBudget(
            "run",
            asked,
            f"none on these data: run {caused} has an infinite epsilon, and so has their total. Nothing fits the "
            f"budget epsilon = {budget.epsilon:.15g} any more",
        )
    raise OverBudget(
        "run",
        asked,
        f"one that fits: of the budget epsilon = {budget.epsilon:.15g} at delta = {budget.delta:g}, "
        f"{digits(spent)} is spent or promised to open runs, "
        f"{digits(max(0.0, budget.epsilon - spent), lower=True)} is left. "
        f"{_fewer(run, fits)}{_noisier(run, fits)}{_open(waiting)}",
    )


def refuse_nameless(state: State, identity: Identity) -> None:
    """An error for records that are new to a ledger with a budget by name: a changed copy would escape the budget."""
    names = [one.removeprefix("name:") for one in state.named_budgets()]
    if not names or not identity.sketch or state.matches(identity):
        return
    raise SettingError(
        "data-id",
        None,
        f"the name of the data set (--data-id NAME, dataset=NAME in Python): this ledger has a budget by name, for "
        f"{', '.join(names)}, and has never seen these records. If they are the same people, changed or not, give "
        "that name; if they are others, give one of their own",
    )


def _others(state: State, run: LedgerRun) -> list[Account]:
    others = (one for one in state.runs_on(run.dataset, run.unit) if one.id != run.id)
    return [one.account(one.committed) for one in others if _counts(one)]


def _counts(run: LedgerRun) -> bool:
    return run.committed > 0


def within(accounts: list[Account], budget: Budget) -> bool:
    """Whether the accounts together keep the budget."""
    if budget.declared:
        return composed(accounts, budget.delta, budget.adjacency) <= budget.epsilon
    return passes(accounts, budget.epsilon, budget.delta, budget.adjacency)


def cost(accounts: list[Account], budget: Budget) -> Epsilon:
    """What the accounts cost together, in the terms of the budget."""
    return (composed if budget.declared else filtered)(accounts, budget.delta, budget.adjacency)


def _fewer(run: LedgerRun, fits: Callable[[Account], bool]) -> str:
    half, stride = run.declared // 2, max(1, run.declared // 8)
    steps = largest_integer(lambda n: fits(run.account(n)), half, stride, run.declared)
    if steps <= run.reserved:
        return "No further step fits with this noise"
    return f"{steps} of the {run.declared} steps ({steps / run.declared:.0%} of the epochs) fit with this noise"


def _noisier(run: LedgerRun, fits: Callable[[Account], bool]) -> str:
    """The noise multiplier at which the whole run fits, rounded up to three digits."""

    def enough(sigma: float) -> bool:
        settings = run.settings | {"noise_multiplier": sigma, "steps": run.declared}
        return fits(Account.from_dict(settings))

    low = max(run.account().noise_multiplier, 1e-3)
    high = low
    while not enough(high):
        if high > MOST_NOISE:
            return "; no noise multiplier makes all of them fit."
        low, high = high, 2 * high
    while high > 1.005 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return f"; all of them fit with a noise multiplier of {digits(high, significant=3)} or more."


def _open(waiting: list[LedgerRun]) -> str:
    if not waiting:
        return ""
    names = ", ".join(f"{run.id} ({counted(run.declared - run.reserved, 'step')})" for run in waiting[:3])
    more = " ..." if len(waiting) > 3 else ""
    return f" Open runs hold steps: {names}{more}; `gnomon ledger close RUN` frees those of a run that will not go on."
