"""What several runs on the same records cost together.

Two questions with two answers. If noise, rate and length of every run were fixed before the first result
was seen, privacy loss distributions compose and the answer is tight. If somebody looked at one run before
setting the next, they do not (arXiv:2602.06756), and a Renyi filter at a fixed order does (arXiv:2008.11193).
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
from gnomon.accounting.composition import GaussianComposition
from gnomon.accounting.epsilon import epsilon
from gnomon.accounting.result import Epsilon
from gnomon.accounting.sketch import SHARE, Expansion
from gnomon.sampling.adjacency import Adjacency, checked
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.scheme import Sampling
from gnomon.sampling.truncated_poisson import TruncatedPoisson


def composed(accounts: Sequence[Account], delta: float, adjacency: str | None = None) -> Epsilon:
    """The epsilon of all accounts together, if their settings were fixed before the first result was seen.

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
    plain = gaussian.exact(sum(run.steps / _multiplier(run) ** 2 for run in joint.runs) ** -0.5, 1, joint.left)
    if not any(run.sampler.amplified for run in joint.runs):
        return joint.answer(plain, "exact Gaussian")
    first, *others = joint.runs
    grid = pld.grid(first, others=others)
    tight = math.inf if grid is None else pld.epsilon(first, grid.interval, others)
    bounds = (tight, "PLD"), (plain, "Gaussian without amplification"), (_filter(joint), "RDP filter")
    return joint.answer(*min(bounds))


def filtered(accounts: Sequence[Account], delta: float, adjacency: str | None = None) -> Epsilon:
    """The smallest budget whose Renyi filter lets all accounts pass, however their settings were chosen.

    With a single setting throughout nothing was chosen, and without sampling the Gaussian filter is exact
    (arXiv:2210.17520); the answer of `composed` then holds.

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
    """Whether the filter of this budget lets all accounts pass: the order depends on the budget alone.

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
    position = int(np.count_nonzero(_largest(joint.left) >= target)) - 1
    return float(_spent(joint)[position]) <= target


@dataclass(frozen=True)
class Joint:
    """All accounts as runs under one adjacency, equal settings added up."""

    runs: tuple[GaussianComposition, ...]
    delta: float
    left: float
    """What is left of delta when sketches that stretch more than assumed are paid for."""
    adjacency: Adjacency
    steps: int

    @classmethod
    def of(cls, accounts: Sequence[Account], delta: float, adjacency: str | None = None) -> Joint:
        """Steps of equal settings are added up; batches that are not drawn at random count as full ones.

        Beside other settings, a sketched sum counts with a stretch that all its steps keep to but for part of delta.
        """
        delta = validate.probability("delta", delta)
        relation = common_adjacency(accounts) if adjacency is None else checked(adjacency)
        counts: Counter[tuple[Sampling, float, Expansion | None]] = Counter()
        for account in accounts:
            account.sampler.adjacency(relation)  # refuses one under which its steps cost something else
            sampler = account.sampler if account.sampler.amplified else FullBatch()
            if uses := account.sampler.uses(account.steps):
                counts[sampler, account.noise_multiplier, account.expansion] += uses
        stretched = sum(uses for (_, _, expansion), uses in counts.items() if expansion is not None)
        left = (1 - SHARE) * delta if stretched and len(counts) > 1 else delta
        runs = []
        for (sampler, sigma, expansion), uses in counts.items():
            if expansion is not None and len(counts) > 1:
                sigma, expansion = sigma / expansion.factor(SHARE * delta / stretched), None  # noqa: PLW2901
            runs.append(GaussianComposition(sampler, sigma, uses, left, relation, expansion))
        return cls(tuple(runs), delta, left, relation, sum(account.steps for account in accounts))

    @property
    def noiseless(self) -> bool:
        return any(run.noise_multiplier == 0 for run in self.runs)

    @property
    def fixed(self) -> bool:
        """Whether the tight composition holds even if somebody looked between two runs."""
        return len(self.runs) < 2 or self.noiseless or not any(run.sampler.amplified for run in self.runs)

    def answer(self, value: float, accountant: str) -> Epsilon:
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
    """The adjacency under which all accounts can be read: what was released does not depend on the reading.

    >>> from gnomon.sampling.poisson import Poisson
    >>> from gnomon.sampling.shuffled import Shuffled
    >>> common_adjacency([Account(Poisson(0.1), 1.0), Account(Shuffled(10), 1.0)])
    'zero-out'
    """
    found = {account.adjacency for account in accounts}
    if len(found) < 2:
        return found.pop() if found else "add-remove"
    return "replace-one" if "replace-one" in found else "zero-out"


def _filter(joint: Joint) -> float:
    """The smallest epsilon that passes the filter of its own order."""
    spent, largest = _spent(joint), _largest(joint.left)
    smallest = np.append(largest[1:], 0.0)
    values = np.maximum(spent, np.where(smallest > 0, np.nextafter(smallest, math.inf), 0.0))
    return float(values[values <= largest].min())


def _largest(delta: float) -> NDArray[np.float64]:
    """For each order the largest epsilon that it is the order of; the next smaller order begins there.

    Any assignment will do that depends on nothing but epsilon and delta. This one gives an epsilon the order that is
    best for the Gaussian noise which uses it up.
    """
    cost = _conversion(delta)
    meeting = renyi.ORDERS[:-1] * (cost[:-1] - cost[1:]) + cost[:-1]  # where two neighbours are equally good
    falling = np.maximum.accumulate(np.maximum(meeting, 0.0)[::-1])[::-1]
    return np.concatenate([[math.inf], falling])


def _conversion(delta: float) -> NDArray[np.float64]:
    """What an order adds to its divergence (Balle et al. 2020, Canonne et al. 2020)."""
    orders = renyi.ORDERS
    return np.asarray(np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1), dtype=np.float64)


def _spent(joint: Joint) -> NDArray[np.float64]:
    """Epsilon at each of the integer orders from 2."""
    total = np.zeros_like(renyi.ORDERS)
    for run in joint.runs:
        amplified = run.sampler.amplified and run.adjacency != "replace-one"
        amplified = amplified and not isinstance(run.sampler, TruncatedPoisson)
        rate = run.sampler.rate if amplified else 1.0
        total += run.steps * (renyi.curve(_multiplier(run), rate) + renyi.ROUNDING)
    return np.maximum(0.0, total + _conversion(joint.left))


def _multiplier(run: GaussianComposition) -> float:
    """Noise in units of what one record can move; in a full truncated batch it also pushes another one out."""
    return run.noise_multiplier / 2 if isinstance(run.sampler, TruncatedPoisson) else run.multiplier
