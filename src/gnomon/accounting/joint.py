"""The joint epsilon of several runs on the same records.

If the noise, rate and length of every run were fixed before the first result was seen, privacy loss distributions
compose, and the joint epsilon is tight (`composed`). If the settings of a run were chosen after an earlier result was
seen, they do not compose (arXiv:2602.06756), but a Renyi filter at a fixed order bounds the total (`filtered`;
arXiv:2008.11193).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnomon import validate
from gnomon.accounting import gaussian, pld, renyi
from gnomon.accounting.account import Account
from gnomon.accounting.epsilon import epsilon
from gnomon.accounting.gaussian import GaussianComposition
from gnomon.accounting.result import Epsilon
from gnomon.accounting.sketch import SHARE, Expansion
from gnomon.sampling.adjacency import Adjacency, parse_adjacency
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.scheme import Sampling


def composed(accounts: Sequence[Account], delta: float, adjacency: str | None = None) -> Epsilon:
    """Return the joint epsilon of accounts whose settings were fixed before the first result was seen.

    Args:
        accounts: The accounts of all runs on the records.
        delta: The delta of the joint guarantee.
        adjacency: The adjacency of the joint guarantee; `common_adjacency` if None.

    Raises:
        SettingError: The sampler of an account allows no privacy claim under this adjacency.

    >>> from gnomon.sampling.poisson import Poisson
    >>> one, two = Account(Poisson(0.025), 10.0), Account(Poisson(0.05), 12.0)
    >>> one.charge(3200); two.charge(800)
    >>> composed([one, two], 1e-5)
    epsilon = 0.667 at delta = 1e-05 (add-remove, 2 settings, PLD)
    """
    joint = Joint.of(accounts, delta, adjacency)
    if len(joint.runs) == 1:
        only = joint.runs[0]
        return epsilon(
            noise_multiplier=only.noise_multiplier,
            steps=only.steps,
            delta=only.delta,
            sampler=only.sampler,
            adjacency=only.adjacency,
            expansion=only.expansion,
        )
    if not joint.runs or joint.noiseless:
        return joint.answer(math.inf if joint.noiseless else 0.0, "PLD")
    unamplified = gaussian.exact(sum(run.steps / run.multiplier**2 for run in joint.runs) ** -0.5, 1, joint.run_delta)
    if not any(run.sampler.amplified for run in joint.runs):
        return joint.answer(unamplified, "exact Gaussian")
    first, *others = joint.runs
    grid = pld.grid(first, others=others)
    tight = math.inf if grid is None else pld.epsilon(first, grid.interval, others)
    bounds = (tight, "PLD"), (unamplified, "Gaussian without amplification"), (_filter(joint), "RDP filter")
    return joint.answer(*min(bounds))


def filtered(accounts: Sequence[Account], delta: float, adjacency: str | None = None) -> Epsilon:
    """Return the joint epsilon of accounts however their settings were chosen, even after earlier results were seen.

    This is the smallest budget whose Renyi filter admits all accounts. If all accounts have equal settings, nothing was
    chosen, and without amplification the Gaussian filter is exact (arXiv:2210.17520); the result is then that of
    `composed`. The arguments and errors are those of `composed`.

    >>> from gnomon.sampling.poisson import Poisson
    >>> one, two = Account(Poisson(0.025), 10.0), Account(Poisson(0.05), 12.0)
    >>> one.charge(3200); two.charge(800)
    >>> filtered([one, two], 1e-5)
    epsilon = 0.731 at delta = 1e-05 (add-remove, 2 settings, RDP filter)
    """
    joint = Joint.of(accounts, delta, adjacency)
    if joint.fixed:
        return composed(accounts, delta, adjacency)
    return joint.answer(_filter(joint), "RDP filter")


def passes(accounts: Sequence[Account], target_epsilon: float, delta: float, adjacency: str | None = None) -> bool:
    """Return whether the Renyi filter of a budget admits all accounts, however their settings were chosen.

    The order of the filter depends on the budget alone.

    >>> from gnomon.sampling.poisson import Poisson
    >>> one, two = Account(Poisson(0.025), 10.0), Account(Poisson(0.05), 12.0)
    >>> one.charge(3200); two.charge(800)
    >>> passes([one, two], 0.75, 1e-5), passes([one, two], 0.7, 1e-5)
    (True, False)
    """
    target = validate.positive("target_epsilon", target_epsilon)
    joint = Joint.of(accounts, delta, adjacency)
    if joint.fixed:
        return composed(accounts, delta, adjacency) <= target
    position = int(np.count_nonzero(_largest_epsilons(joint.run_delta) >= target)) - 1
    return float(_spent(joint)[position]) <= target


@dataclass(frozen=True)
class Joint:
    """All accounts as runs under one adjacency; the steps of runs with equal settings are added up."""

    runs: tuple[GaussianComposition, ...]
    delta: float
    run_delta: float
    """The delta for the runs themselves: what remains after the share for sketches that stretch too much."""
    adjacency: Adjacency
    steps: int

    @classmethod
    def of(cls, accounts: Sequence[Account], delta: float, adjacency: str | None = None) -> Joint:
        """Return the accounts as runs under one adjacency. Without amplification, batches count as full batches.

        Beside runs with other settings, a sketched sum counts with a stretch factor; a share of delta pays for the
        event that any of its steps exceeds the factor.
        """
        delta = validate.probability("delta", delta)
        relation = common_adjacency(accounts) if adjacency is None else parse_adjacency(adjacency)
        counts: Counter[tuple[Sampling, float, Expansion | None]] = Counter()
        for account in accounts:
            account.sampler.resolve_adjacency(relation)  # raises if the accounting does not hold under it
            sampler, sigma = account.sampler, account.noise_multiplier
            if not sampler.amplified:
                sigma *= FullBatch().sensitivity(relation) / sampler.sensitivity(relation)
                sampler = FullBatch()
            if uses := account.sampler.uses(account.steps):
                counts[sampler, sigma, account.expansion] += uses
        stretched = sum(uses for (_, _, expansion), uses in counts.items() if expansion is not None)
        run_delta = (1 - SHARE) * delta if stretched and len(counts) > 1 else delta
        runs = []
        for (sampler, sigma, expansion), uses in counts.items():
            if expansion is not None and len(counts) > 1:
                sigma, expansion = sigma / expansion.factor(SHARE * delta / stretched), None  # noqa: PLW2901
            runs.append(GaussianComposition(sampler, sigma, uses, run_delta, relation, expansion))
        return cls(tuple(runs), delta, run_delta, relation, sum(account.steps for account in accounts))

    @property
    def noiseless(self) -> bool:
        """Whether a run has no noise, so that epsilon is infinite."""
        return any(run.noise_multiplier == 0 for run in self.runs)

    @property
    def fixed(self) -> bool:
        """Whether the tight composition holds even if settings were chosen after earlier results were seen."""
        return len(self.runs) < 2 or self.noiseless or not any(run.sampler.amplified for run in self.runs)

    def answer(self, value: float, accountant: str) -> Epsilon:
        """Return the value with the settings of the joint guarantee."""
        return Epsilon(
            value,
            delta=self.delta,
            adjacency=self.adjacency,
            sampler=f"{len(self.runs)} settings",
            accountant=accountant,
            noise_multiplier=min((run.noise_multiplier for run in self.runs), default=0.0),
            steps=self.steps,
        )


def common_adjacency(accounts: Sequence[Account]) -> Adjacency:
    """Return an adjacency under which the accounting of all accounts holds.

    The adjacency is a matter of interpretation: it does not change what was released.

    >>> from gnomon.sampling.poisson import Poisson
    >>> from gnomon.sampling.shuffled import Shuffled
    >>> common_adjacency([Account(Poisson(0.1), 1.0), Account(Shuffled(10), 1.0)])
    'zero-out'
    """
    adjacencies = {account.adjacency for account in accounts}
    if len(adjacencies) < 2:
        return adjacencies.pop() if adjacencies else "add-remove"
    return "replace-one" if "replace-one" in adjacencies else "zero-out"


def _filter(joint: Joint) -> float:
    """Return the smallest epsilon that passes the filter at the order assigned to it."""
    spent, largest = _spent(joint), _largest_epsilons(joint.run_delta)
    smallest = np.append(largest[1:], 0.0)
    values = np.maximum(spent, np.where(smallest > 0, np.nextafter(smallest, math.inf), 0.0))
    return float(values[values <= largest].min())


def _largest_epsilons(delta: float) -> NDArray[np.float64]:
    """Return for each order the largest epsilon it is assigned to; beyond, the next smaller order is used.

    Any assignment is valid that depends on epsilon and delta alone. This one assigns to an epsilon the order that is
    optimal for a Gaussian mechanism with that epsilon.
    """
    cost = _conversion(delta)
    meeting = renyi.ORDERS[:-1] * (cost[:-1] - cost[1:]) + cost[:-1]  # where two consecutive orders are equally good
    falling = np.maximum.accumulate(np.maximum(meeting, 0.0)[::-1])[::-1]
    return np.concatenate([[math.inf], falling])


def _conversion(delta: float) -> NDArray[np.float64]:
    """Return what the conversion to epsilon adds at each order (Balle et al. 2020, Canonne et al. 2020)."""
    orders = renyi.ORDERS
    return np.asarray(np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1), dtype=np.float64)


def _spent(joint: Joint) -> NDArray[np.float64]:
    """Return the joint epsilon at each of the integer orders `renyi.ORDERS`."""
    total = np.zeros_like(renyi.ORDERS)
    for run in joint.runs:
        rate = run.sampler.poisson_rate(run.adjacency)
        # a step that is no Poisson-sampled Gaussian counts without amplification
        total += run.steps * (renyi.curve(run.multiplier, 1.0 if rate is None else rate) + renyi.ROUNDING)
    return np.maximum(0.0, total + _conversion(joint.run_delta))
