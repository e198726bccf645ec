"""The noise a budget asks for."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import optimize

from gnomon import validate
from gnomon.accounting import bounds, gaussian
from gnomon.accounting.composition import GaussianComposition
from gnomon.accounting.epsilon import Accountant, chosen_accountant, chosen_sampler
from gnomon.accounting.result import digits
from gnomon.accounting.sketch import Expansion
from gnomon.errors import SettingError
from gnomon.sampling.scheme import Sampling

LEAST, MOST = 1e-3, 1e5  # the multipliers that are searched
COARSER = 10.0  # the grid of the first search, in units of the final one
CLOSE = 1e-3


def noise_multiplier(
    *,
    target_epsilon: float,
    steps: int,
    delta: float,
    sample_rate: float | None = None,
    sampler: Sampling | None = None,
    accountant: Accountant = "pld",
    adjacency: str | None = None,
    expansion: Expansion | None = None,
) -> float:
    """The smallest noise multiplier, to 0.1 %, whose `epsilon` with the same settings is at most the target.

    It lies between 0.001 and 100000. The target is always met as `epsilon` reports it.

    >>> sigma = noise_multiplier(target_epsilon=0.5, steps=3200, delta=1e-5, sample_rate=0.025)
    >>> round(sigma, 1)
    10.0
    """
    target = validate.positive("target_epsilon", target_epsilon)
    sampler = chosen_sampler(sample_rate, sampler)
    count = validate.whole("steps", steps)
    delta = validate.probability("delta", delta)
    relation = sampler.adjacency(adjacency)
    kind = chosen_accountant(accountant)
    if kind == "gdp":
        raise SettingError("accountant", kind, "'pld', 'rdp' or 'rdp-classic': 'gdp' is no guarantee")

    def spent(sigma: float, coarser: float = 1.0) -> float:
        return bounds.bound(kind, GaussianComposition(sampler, sigma, count, delta, relation, expansion), coarser).value

    if spent(LEAST) <= target:
        return LEAST
    if (smallest := spent(MOST)) > target:
        reached = digits(smallest, significant=3)
        allowed = f"{reached} or above, which noise_multiplier = {MOST:g} reaches here, or fewer steps"
        raise SettingError("target_epsilon", target_epsilon, allowed)
    guess = gaussian.multiplier_at_limit(target, sampler.uses(count), delta, sampler.rate)
    start, slope = _rough(lambda sigma: spent(sigma, COARSER), target, guess)
    return _finish(spent, target, start, slope)


def _rough(spent: Callable[[float], float], target: float, guess: float) -> tuple[float, float]:
    """A multiplier that about meets the target, and the power of it with which epsilon falls there."""

    def excess(log_sigma: float) -> float:
        ratio = spent(math.exp(log_sigma)) / target
        return math.log(min(max(ratio, 1e-9), 1e9))

    low = high = min(max(math.log(guess), math.log(LEAST)), math.log(MOST))
    at_low = at_high = excess(low)
    while at_low <= 0 and low > math.log(LEAST):
        high, at_high = low, at_low
        low = max(low - 0.5, math.log(LEAST))
        at_low = excess(low)
    while at_high > 0 and high < math.log(MOST):
        low, at_low = high, at_high
        high = min(high + 0.5, math.log(MOST))
        at_high = excess(high)
    slope = min(max((at_low - at_high) / max(high - low, 1e-9), 0.7), 10.0)
    if at_low <= 0 or at_high > 0:  # the coarse grid may miss by a little at the very ends
        return math.exp(low if at_low <= 0 else high), slope
    return math.exp(float(optimize.brentq(excess, low, high, xtol=CLOSE / 4, rtol=1e-9))), slope


def _finish(spent: Callable[[float], float], target: float, start: float, slope: float) -> float:
    """The end of the search, on the grid that is reported: steps by the slope, halving where they fail."""
    low, high, sigma = LEAST, MOST, start  # spent(low) > target >= spent(high) throughout
    while True:
        value = spent(sigma)
        if value <= target:
            high = sigma
            if value >= target * (1 - CLOSE):
                return sigma
        else:
            low = sigma
        if high <= low * (1 + CLOSE):
            return high
        aim = target * (1 - CLOSE / 2)
        move = min(max((value / aim) ** (1 / slope), 0.5), 2.0)
        sigma *= move
        if not low * (1 + CLOSE / 8) < sigma < high * (1 - CLOSE / 8):
            sigma = math.sqrt(low * high)
