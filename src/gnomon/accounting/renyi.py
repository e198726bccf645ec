"""Epsilon from Renyi divergences: fast, always finite, and slightly loose."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from numpy.typing import NDArray
from scipy import special

ORDERS: NDArray[np.float64] = np.arange(2, 513, dtype=np.float64)
REAL_ORDERS = [*np.arange(1.1, 12.0, 0.1), *range(12, 64), *range(64, 256, 8), *range(256, 1025, 64)]
ROUNDING = 1e-13
"""The allowance for rounding in the divergence of one step."""


def improved(event: DpEvent, steps: int, delta: float) -> float:
    """Return epsilon with real orders and the conversion of Balle et al. 2020 and Canonne et al. 2020.

    The divergences come from dp-accounting. For very large noise, rounding makes them negative and epsilon 0; an
    allowance for rounding in every step keeps the result an upper bound.

    Args:
        event: What all steps release.
        steps: The number of steps, for the rounding allowance.
        delta: The delta of the guarantee.

    >>> from gnomon.sampling.poisson import Poisson
    >>> round(improved(Poisson(0.025).event(10.0, 3200), 3200, 1e-5), 3)
    0.549
    """
    accountant = RdpAccountant(REAL_ORDERS)
    with _without_order_warnings():
        accountant.compose(event)
    divergences = np.maximum(accountant.rdp, 0.0) + steps * ROUNDING
    value, _ = compute_epsilon(accountant.orders, divergences, delta)
    return max(0.0, float(value))


@contextmanager
def _without_order_warnings() -> Iterator[None]:
    """Silence dp-accounting's warnings about excluded orders: fewer orders give a looser bound, never a wrong one."""
    logger = logging.getLogger("absl")

    def concerns_something_else(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in str(record.msg)

    logger.addFilter(concerns_something_else)
    try:
        yield
    finally:
        logger.removeFilter(concerns_something_else)


def curve(noise_multiplier: float, sample_rate: float) -> NDArray[np.float64]:
    """Return the Renyi divergence of one Poisson-sampled Gaussian mechanism at the integer orders 2..512.

    >>> float(curve(2.0, 1.0)[0])  # order / (2 sigma^2)
    0.25
    """
    if sample_rate == 1:
        return ORDERS / (2 * noise_multiplier**2)
    a, j = ORDERS[:, None], np.arange(513.0)[None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        log_binomial = special.gammaln(a + 1) - special.gammaln(j + 1) - special.gammaln(a - j + 1)
    log_weight = log_binomial + (a - j) * np.log1p(-sample_rate) + j * np.log(sample_rate)
    x = j * (j - 1) / (2 * noise_multiplier**2)
    with np.errstate(divide="ignore"):
        log_excess = x + np.log(-np.expm1(-x))  # ln(e^x - 1), without cancellation when the noise is large
    excess = special.logsumexp(np.where(j <= a, log_weight + log_excess, -np.inf), axis=1)
    return np.asarray(np.logaddexp(0.0, excess), dtype=np.float64) / (ORDERS - 1)


def classic(noise_multiplier: float, steps: int, delta: float, sample_rate: float) -> float:
    """Return epsilon = min over orders a of R(a) + ln(1 / delta) / (a - 1), as early papers report it.

    The minimum is over the integer orders up to 512 and, if the best of them is small, the real orders around it.

    >>> round(classic(10.0, 3200, 1e-5, 0.025), 3)
    0.693
    """
    bound = steps * curve(noise_multiplier, sample_rate) - np.log(delta) / (ORDERS - 1)
    best = float(bound.min())
    best_order = float(ORDERS[int(bound.argmin())])
    if best_order < 64 and sample_rate < 1 and np.isfinite(best):
        accountant = RdpAccountant(np.arange(max(1.05, best_order - 1), best_order + 1, 0.05))
        with _without_order_warnings():
            accountant.compose(PoissonSampledDpEvent(sample_rate, GaussianDpEvent(noise_multiplier)))
        usable = accountant.rdp > 0  # rounding can make a divergence negative
        if usable.any():
            orders = accountant.orders[usable]
            real = steps * accountant.rdp[usable] - np.log(delta) / (orders - 1)
            best = min(best, float(real.min()))
    return max(0.0, best)
