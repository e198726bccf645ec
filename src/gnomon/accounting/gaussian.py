"""Gaussian noise without sampling, where epsilon has a closed form, and the limit for many sampled steps."""

from __future__ import annotations

import math

import numpy as np
from dp_accounting import gaussian_mechanism


def exact(noise_multiplier: float, uses: int, delta: float) -> float:
    """The smallest epsilon of `uses` Gaussian releases of sensitivity 1; exact (arXiv:1805.06530).

    >>> round(exact(2.0, 30, 1e-5), 2)
    14.83
    """
    with np.errstate(divide="ignore"):
        value = gaussian_mechanism.get_epsilon_gaussian(noise_multiplier / math.sqrt(uses), delta)
    return max(0.0, float(value))


def limit(noise_multiplier: float, steps: int, delta: float, sample_rate: float) -> float:
    """The Gaussian limit of many Poisson steps (arXiv:1911.11607). May lie below the true epsilon.

    >>> round(limit(10.0, 3200, 1e-5, 0.025), 4)
    0.4983
    """
    try:
        mu = sample_rate * math.sqrt(steps * math.expm1(noise_multiplier**-2))
    except OverflowError:
        return math.inf
    return exact(1 / mu, 1, delta) if mu > 0 else 0.0


def multiplier_at_limit(epsilon: float, steps: int, delta: float, sample_rate: float) -> float:
    """The noise multiplier at which the limit equals epsilon: a first guess for a search.

    >>> round(limit(multiplier_at_limit(0.5, 3200, 1e-5, 0.025), 3200, 1e-5, 0.025), 6)
    0.5
    """
    with np.errstate(divide="ignore"):
        mu = 1 / float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta))
    return 1 / math.sqrt(math.log1p((mu / sample_rate) ** 2 / steps))
