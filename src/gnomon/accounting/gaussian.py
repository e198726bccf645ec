"""Compositions of the Gaussian mechanism: their settings, the closed form without sampling, and the Gaussian limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting
import numpy as np
from dp_accounting import gaussian_mechanism

from gnomon.accounting.sketch import Expansion
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.scheme import Sampling


@dataclass(frozen=True)
class GaussianComposition:
    """The validated settings of a run that determine its epsilon.

    >>> from gnomon.sampling.shuffled import Shuffled
    >>> run = GaussianComposition(Shuffled(40), noise_multiplier=2.0, steps=1200, delta=1e-5, adjacency="replace-one")
    >>> run.uses, run.multiplier
    (30, 1.0)
    """

    sampler: Sampling
    noise_multiplier: float
    steps: int
    delta: float
    adjacency: Adjacency
    expansion: Expansion | None = None
    """The bound on how far a sketch of the sum stretches the change of one record; None without a sketch."""

    @property
    def uses(self) -> int:
        """The largest number of steps that can read the same record."""
        return self.sampler.uses(self.steps)

    @property
    def multiplier(self) -> float:
        """The standard deviation of the noise over the most that one record can move the sum of a step."""
        return self.noise_multiplier / self.sampler.sensitivity(self.adjacency)

    def event(self, multiplier: float) -> dp_accounting.DpEvent:
        """Return the event of all steps with the given noise multiplier, for dp-accounting."""
        return self.sampler.event(multiplier, self.steps)


def exact(noise_multiplier: float, uses: int, delta: float) -> float:
    """Return the smallest epsilon of `uses` Gaussian releases of sensitivity 1 (exact; arXiv:1805.06530).

    >>> round(exact(2.0, 30, 1e-5), 2)
    14.83
    """
    with np.errstate(divide="ignore"):
        value = gaussian_mechanism.get_epsilon_gaussian(noise_multiplier / math.sqrt(uses), delta)
    return max(0.0, float(value))


def limit(noise_multiplier: float, steps: int, delta: float, sample_rate: float) -> float:
    """Return epsilon of the Gaussian limit of many Poisson-sampled steps (GDP, arXiv:1911.11607).

    This is an approximation, not a bound: it may lie below the true epsilon.

    >>> round(limit(10.0, 3200, 1e-5, 0.025), 4)
    0.4983
    """
    try:
        mu = sample_rate * math.sqrt(steps * math.expm1(noise_multiplier**-2))
    except OverflowError:
        return math.inf
    return exact(1 / mu, 1, delta) if mu > 0 else 0.0


def multiplier_at_limit(epsilon: float, steps: int, delta: float, sample_rate: float) -> float:
    """Return the noise multiplier at which `limit` equals epsilon, as the initial guess of a search.

    >>> round(limit(multiplier_at_limit(0.5, 3200, 1e-5, 0.025), 3200, 1e-5, 0.025), 6)
    0.5
    """
    with np.errstate(divide="ignore"):
        mu = 1 / float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta))
    return 1 / math.sqrt(math.log1p((mu / sample_rate) ** 2 / steps))
