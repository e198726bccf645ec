"""Searches for the settings that meet a target epsilon: the noise multiplier, or the number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import optimize

from gnomon import validate
from gnomon.accounting import bounds, gaussian
from gnomon.accounting.epsilon import Accountant, parse_accountant, resolve_sampler
from gnomon.accounting.gaussian import GaussianComposition
from gnomon.accounting.result import digits
from gnomon.accounting.sketch import Expansion
from gnomon.errors import SettingError
from gnomon.sampling.scheme import Sampling

LEAST, MOST = 1e-3, 1e5  # the range of multipliers that is searched
COARSER = 10.0  # the grid interval of the first search, in units of the final one
TOLERANCE = 1e-3


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
    """Return the smallest noise multiplier, to 0.1 %, that meets a target epsilon.

    The result lies between 0.001 and 100000. With the same settings, `epsilon` reports at most the target for it.

    Args:
        target_epsilon: The largest epsilon that the run may have.
        steps: The number of steps of the run.
        delta: The delta of the guarantee.
        sample_rate: Short for `sampler=Poisson(sample_rate)`.
        sampler: The sampling scheme.
        accountant: "pld", "rdp" or "rdp-classic"; see `epsilon`.
        adjacency: The adjacency relation; the sampler's default if None.
        expansion: For methods that sketch the sum before noise is added.

    Raises:
        SettingError: A setting is invalid, or no multiplier up to 100000 meets the target.

    >>> sigma = noise_multiplier(target_epsilon=0.5, steps=3200, delta=1e-5, sample_rate=0.025)
    >>> round(sigma, 1)
    10.0
    """
    target = validate.positive("target_epsilon", target_epsilon)
    sampler = resolve_sampler(sample_rate, sampler)
    count = validate.whole("steps", steps)
    delta = validate.probability("delta", delta)
    relation = sampler.resolve_adjacency(adjacency)
    kind = parse_accountant(accountant)
    if kind == "gdp":
        raise SettingError("accountant", kind, "'pld', 'rdp' or 'rdp-classic': 'gdp' gives no guarantee")

    def spent(sigma: float, coarser: float = 1.0) -> float:
        return bounds.bound(kind, GaussianComposition(sampler, sigma, count, delta, relation, expansion), coarser).value

    if spent(LEAST) <= target:
        return LEAST
    if (smallest := spent(MOST)) > target:
        reached = digits(smallest, significant=3)
        allowed = f"{reached} or above, which noise_multiplier = {MOST:g} reaches with these settings, or fewer steps"
        raise SettingError("target_epsilon", target_epsilon, allowed)
    guess = gaussian.multiplier_at_limit(target, sampler.uses(count), delta, sampler.rate)
    start, slope = _search_coarsely(lambda sigma: spent(sigma, COARSER), target, guess)
    return _refine(spent, target, start, slope)


def _search_coarsely(spent: Callable[[float], float], target: float, guess: float) -> tuple[float, float]:
    """Return a multiplier that approximately meets the target, and the power at which epsilon falls with it there."""

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
    if at_low <= 0 or at_high > 0:  # at the ends of the range, the coarse grid can miss the target slightly
        return math.exp(low if at_low <= 0 else high), slope
    return math.exp(float(optimize.brentq(excess, low, high, xtol=TOLERANCE / 4, rtol=1e-9))), slope


def _refine(spent: Callable[[float], float], target: float, start: float, slope: float) -> float:
    """Finish the search on the reported grid: move by the slope, and bisect where that leaves the bracket."""
    low, high, sigma = LEAST, MOST, start  # spent(low) > target >= spent(high) throughout
    while True:
        value = spent(sigma)
        if value <= target:
            high = sigma
            if value >= target * (1 - TOLERANCE):
                return sigma
        else:
            low = sigma
        if high <= low * (1 + TOLERANCE):
            return high
        aim = target * (1 - TOLERANCE / 2)
        move = min(max((value / aim) ** (1 / slope), 0.5), 2.0)
        sigma *= move
        if not low * (1 + TOLERANCE / 8) < sigma < high * (1 - TOLERANCE / 8):
            sigma = math.sqrt(low * high)


def largest_integer(condition: Callable[[int], bool], start: int, stride: int, most: int) -> int:
    """Return the largest n in 0..most for which a condition holds.

    Args:
        condition: Holds for 0, and for no integer above one for which it fails.
        start: Where the search begins.
        stride: The first stride of the search; strides double until the result is bracketed.
        most: The largest integer to try.

    >>> largest_integer(lambda n: n * n <= 1000, start=20, stride=1, most=10**9)
    31
    """
    low, high = 0, most + 1  # the condition holds for low and fails for high
    n = min(max(start, 1), most)
    while high - low > 1:
        if condition(n):
            low, n = n, n + stride
        else:
            high, n = n, n - stride
        stride *= 2
        if not low < n < high:
            n = (low + high) // 2
    return low
