"""Epsilon from privacy loss distributions (dp-accounting, connect-the-dots): the tight upper bound.

The distribution lives on a grid. The grid is fine enough for the losses of one step, and never so long that
time or memory run away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import PLDAccountant
from scipy import stats

from gnomon.accounting import gaussian, renyi
from gnomon.accounting.composition import GaussianComposition
from gnomon.sampling.adjacency import RELATIONS, sensitivity
from gnomon.sampling.truncated_poisson import TruncatedPoisson

USUAL_POINTS, MAX_POINTS = 200_000, 500_000
MAX_STEPS = 1_000_000  # dp-accounting computes size ** steps as a whole number: endless for many more
FINEST, USUAL, COARSEST = 1e-7, 1e-4, 1.0
SMALLEST_DELTA = 1e-10  # below, rounding in the Fourier transform is no longer small beside delta
TAIL = 1e-15  # the mass that dp-accounting cuts off


@dataclass(frozen=True)
class Grid:
    """A distance between grid points, and whether it is wider than accuracy asks for."""

    interval: float
    widened: bool


def epsilon(run: GaussianComposition, interval: float, others: Sequence[GaussianComposition] = ()) -> float:
    """An upper bound on epsilon, on a grid of the given interval; `others` read the same records.

    >>> from gnomon.sampling.poisson import Poisson
    >>> round(epsilon(GaussianComposition(Poisson(0.025), 10.0, 3200, 1e-5, "add-remove"), 1e-4), 3)
    0.5
    """
    accountant = PLDAccountant(RELATIONS[run.adjacency], value_discretization_interval=interval)
    with np.errstate(over="ignore"):
        for one in (run, *others):
            accountant.compose(one.event(one.noise_multiplier))
        return max(0.0, float(accountant.get_epsilon(run.delta)))


def grid(run: GaussianComposition, coarser: float = 1.0, others: Sequence[GaussianComposition] = ()) -> Grid | None:
    """The grid to use, or None where no grid would do. `coarser` trades accuracy for time in searches.

    >>> from gnomon.sampling.poisson import Poisson
    >>> grid(GaussianComposition(Poisson(0.025), 10.0, 3200, 1e-5, "add-remove"))
    Grid(interval=0.0001, widened=False)
    >>> grid(GaussianComposition(Poisson(0.025), 1e-3, 3200, 1e-5, "add-remove")) is None
    True
    """
    runs = (run, *others)
    steps = sum(one.steps for one in runs)
    if run.delta < SMALLEST_DELTA or steps > MAX_STEPS:
        return None
    # Rounding to the grid adds at most interval / 2 to the spread of the loss of one step.
    spread = min(one.sampler.rate * math.sqrt(math.expm1(min(one.noise_multiplier**-2, 50.0))) for one in runs)
    width = sum(_width(one) for one in runs)
    usual = min(max(USUAL, width / USUAL_POINTS), COARSEST)
    wanted = min(usual, max(FINEST, spread / 10, 1e-5 / math.sqrt(steps)))
    needed = width / MAX_POINTS
    interval = max(wanted, needed)
    return Grid(coarser * interval, widened=needed > wanted) if interval <= COARSEST else None


def _width(run: GaussianComposition) -> float:
    """About the width of the losses that can occur in one step or in all, up to the tail that is cut off."""
    q, sigma = run.sampler.rate, run.noise_multiplier / sensitivity(run.adjacency)
    one, everything = _one_step(sigma, q), _all_steps(sigma, q, run.steps)
    if isinstance(run.sampler, TruncatedPoisson):
        # Full batches are accounted as replace-one with twice the reach.
        full = q * float(stats.binom.sf(run.sampler.max_batch_size - 1, run.sampler.dataset_size - 1, q))
        if full > 0:
            one = max(one, _one_step(run.noise_multiplier / 4, q))
            everything += _all_steps(run.noise_multiplier / 4, full, run.steps)
    return max(one, everything)


def _one_step(sigma: float, q: float) -> float:
    """For one step: noise up to 10 standard deviations."""
    largest = 10 / sigma + 1 / sigma**2
    return 2 * (math.log1p(q * math.expm1(largest)) if largest < 500 else largest)


def _all_steps(sigma: float, q: float, steps: int) -> float:
    """For all steps: a Renyi bound, or Gaussian noise as often as a record can be drawn."""
    used = min(steps, 1 + int(stats.poisson.isf(TAIL, steps * q)))
    return 2 * min(renyi.classic(sigma, steps, TAIL, q), gaussian.exact(sigma, used, TAIL))
