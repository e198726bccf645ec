"""Epsilon from privacy loss distributions (dp-accounting, connect-the-dots): the tight upper bound.

A distribution is discretised on a grid, which has to resolve the privacy loss of one step and yet stay short enough
for the available time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from scipy import stats

from gnomon.accounting import gaussian, renyi
from gnomon.accounting.gaussian import GaussianComposition
from gnomon.sampling.adjacency import Adjacency

RELATIONS: dict[Adjacency, NeighboringRelation] = {
    "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero-out": NeighboringRelation.REPLACE_SPECIAL,
    "replace-one": NeighboringRelation.REPLACE_ONE,
}
"""The name that dp-accounting has for each adjacency."""

USUAL_POINTS, MAX_POINTS = 200_000, 500_000
MAX_STEPS = 1_000_000  # dp-accounting computes size ** steps as an exact integer, which takes too long beyond
FINEST, USUAL, COARSEST = 1e-7, 1e-4, 1.0
SMALLEST_DELTA = 1e-10  # for a smaller delta, rounding in the Fourier transform is no longer negligible
TAIL = 1e-15  # the probability mass that dp-accounting truncates


@dataclass(frozen=True)
class Grid:
    """The interval between grid points, and whether it is wider than the intended accuracy requires."""

    interval: float
    widened: bool


def epsilon(run: GaussianComposition, interval: float, others: Sequence[GaussianComposition] = ()) -> float:
    """Return an upper bound on the epsilon of a run, composed with `others` on the same records.

    >>> from gnomon.sampling.poisson import Poisson
    >>> round(epsilon(GaussianComposition(Poisson(0.025), 10.0, 3200, 1e-5, "add-remove"), 1e-4), 3)
    0.5
    """
    accountant = PLDAccountant(RELATIONS[run.adjacency], value_discretization_interval=interval)
    with np.errstate(over="ignore"):
        for composition in (run, *others):
            accountant.compose(composition.event(composition.noise_multiplier))
        return max(0.0, float(accountant.get_epsilon(run.delta)))


def grid(run: GaussianComposition, coarser: float = 1.0, others: Sequence[GaussianComposition] = ()) -> Grid | None:
    """Return the grid for a run composed with `others`, or None if no grid is both fine and short enough.

    Args:
        run: The run to account for.
        coarser: A factor for the interval: a larger one is faster and gives a looser upper bound.
        others: Further runs on the same records.

    >>> from gnomon.sampling.poisson import Poisson
    >>> grid(GaussianComposition(Poisson(0.025), 10.0, 3200, 1e-5, "add-remove"))
    Grid(interval=0.0001, widened=False)
    >>> grid(GaussianComposition(Poisson(0.025), 1e-3, 3200, 1e-5, "add-remove")) is None
    True
    """
    runs = (run, *others)
    steps = sum(composition.steps for composition in runs)
    if run.delta < SMALLEST_DELTA or steps > MAX_STEPS:
        return None
    # rounding to the grid adds at most interval / 2 to the spread of the loss of one step
    spread = min(
        composition.sampler.rate * math.sqrt(math.expm1(min(composition.noise_multiplier**-2, 50.0)))
        for composition in runs
    )
    width = sum(_width(composition) for composition in runs)
    usual = min(max(USUAL, width / USUAL_POINTS), COARSEST)
    accurate = min(usual, max(FINEST, spread / 10, 1e-5 / math.sqrt(steps)))
    shortest = width / MAX_POINTS
    interval = max(accurate, shortest)
    return Grid(coarser * interval, widened=shortest > accurate) if interval <= COARSEST else None


def _width(run: GaussianComposition) -> float:
    """Estimate the width of the privacy losses of one step and of all steps, up to the truncated tail."""
    components = run.sampler.loss_components(run.noise_multiplier, run.adjacency)
    one_step = max(_width_of_step(sigma, run.sampler.rate) for sigma, _ in components)
    all_steps = sum(_width_of_run(sigma, probability, run.steps) for sigma, probability in components)
    return max(one_step, all_steps)


def _width_of_step(sigma: float, q: float) -> float:
    """Estimate the width for one step, with noise up to 10 standard deviations."""
    largest = 10 / sigma + 1 / sigma**2
    return 2 * (math.log1p(q * math.expm1(largest)) if largest < 500 else largest)


def _width_of_run(sigma: float, q: float, steps: int) -> float:
    """Bound the width for all steps by Renyi divergence, or by Gaussian releases as often as a record can be drawn."""
    used = min(steps, 1 + int(stats.poisson.isf(TAIL, steps * q)))
    return 2 * min(renyi.classic(sigma, steps, TAIL, q), gaussian.exact(sigma, used, TAIL))
