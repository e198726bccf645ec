"""The statistics of an audit: lower bounds on mu and tests of distributions, each at a stated confidence.

Throughout, `mu` is the number of standard deviations by which one record can move a release: a Gaussian release with
noise multiplier sigma has mu = 1 / sigma. `alpha` is the probability with which a lower bound may exceed the true
value, or a test may fail, by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special, stats
from torch import Tensor

Numbers = NDArray[Any]

LARGEST_MU = 1e6
"""Value of mu above which a release is treated as free of noise."""


@dataclass(frozen=True)
class Band:
    """The smallest and the largest of some measured values, and the interval in which they are allowed."""

    smallest: float
    largest: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        """Whether all measured values lie in the allowed interval."""
        return self.low <= self.smallest and self.largest <= self.high


def singular_values(rows: Tensor, alpha: float, declared: float = 1.0) -> Band:
    """Return the extreme singular values of N releases in d coordinates, and their Davidson-Szarek interval.

    For independent normals of the declared standard deviation they lie between `|sqrt N - sqrt d| - t` and
    `sqrt N + sqrt d + t`, t = sqrt(2 ln(2 / alpha)). Reused or correlated noise exceeds the interval, and a direction
    without noise falls below it.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(200, 20, dtype=torch.float64)
    >>> singular_values(noise, 1e-6).ok, singular_values(noise[:1].expand(200, -1), 1e-6).ok
    (True, False)
    """
    count, size = rows.shape
    gram = rows @ rows.T if count < size else rows.T @ rows
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt() / declared
    slack = math.sqrt(2 * math.log(2 / alpha))
    middle, half = max(count, size) ** 0.5, min(count, size) ** 0.5
    return Band(float(values[0]), float(values[-1]), middle - half - slack, middle + half + slack)


def scale(rows: Tensor, alpha: float, declared: float = 1.0) -> Band:
    """Return the standard deviation of all releases, relative to the declared one, and its chi-squared interval.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(500, 64, dtype=torch.float64)
    >>> scale(noise, 1e-6).ok, scale(0.95 * noise, 1e-6).ok
    (True, False)
    """
    length = float(torch.linalg.vector_norm(rows)) / declared  # computed without a copy of the rows
    return deviation(length**2, rows.numel(), alpha)


def deviation(squares: float, count: int, alpha: float) -> Band:
    """Return the standard deviation of `count` standard normals with this sum of squares, and its exact interval.

    >>> deviation(1.0e6, 10**6, 1e-6).ok, deviation(0.98e6, 10**6, 1e-6).ok
    (True, False)
    """
    value = (squares / count) ** 0.5
    low, high = stats.chi2.ppf([alpha / 2, 1 - alpha / 2], count) / count
    return Band(value, value, float(low) ** 0.5, float(high) ** 0.5)


def occurrences(count: int, trials: int, probability: float, alpha: float) -> Band:
    """Return a number of occurrences and its exact binomial interval, alpha / 2 on either side.

    >>> band = occurrences(0, 10**6, 1e-4, 1e-6)  # 100 expected
    >>> band.low, band.high, band.ok
    (55.0, 153.0, False)
    """
    low, high = stats.binom.ppf([alpha / 2, 1 - alpha / 2], trials, probability)
    return Band(count, count, float(low), float(high))


def blocks(rows: Tensor, sizes: Mapping[str, int], alpha: float, declared: float = 1.0) -> tuple[str, Band]:
    """Return the name and band of the block of coordinates whose standard deviation is furthest from the declared.

    `sizes` maps each block to its number of consecutive coordinates. The blocks share alpha equally.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(100, 300, dtype=torch.float64)
    >>> noise[:, 290:] *= 0.8
    >>> name, band = blocks(noise, {"weight": 290, "bias": 10}, 1e-6)
    >>> name, band.ok, scale(noise, 1e-6).ok
    ('bias', False, True)
    """
    parts = rows.split(list(sizes.values()), dim=1)
    bands = {name: scale(part, alpha / len(sizes), declared) for name, part in zip(sizes, parts, strict=True)}

    def excess(name: str) -> float:
        band = bands[name]
        return max((band.largest - 1) / (band.high - 1), (1 - band.smallest) / (1 - band.low))

    worst = max(bands, key=excess)
    return worst, bands[worst]


def coordinates(rows: Tensor, alpha: float, declared: float = 1.0) -> Band:
    """Return the extreme standard deviations of single coordinates, relative to the declared, and their interval.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(100, 300, dtype=torch.float64)
    >>> silent = noise.clone()
    >>> silent[:, 7] = 0
    >>> coordinates(noise, 1e-6).ok, coordinates(silent, 1e-6).ok
    (True, False)
    """
    count, size = rows.shape
    deviations = torch.linalg.vector_norm(rows, dim=0) / count**0.5 / declared
    share = alpha / size
    low, high = stats.chi2.ppf([share / 2, 1 - share / 2], count) / count
    return Band(float(deviations.min()), float(deviations.max()), float(low) ** 0.5, float(high) ** 0.5)


def largest_cosine(rows: Tensor, alpha: float) -> Band:
    """Return the largest absolute cosine between two rows, and the limit for independent normals.

    Applied to releases, the test detects noise that was used in two steps, however far apart; applied to coordinates
    (the transpose), noise that was used for two coordinates. Singular values detect reuse only if it is frequent.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(100, 30, dtype=torch.float64)
    >>> twice = torch.cat([noise, noise[:1]])
    >>> largest_cosine(noise, 1e-6).ok, largest_cosine(twice, 1e-6).ok
    (True, False)
    """
    count, size = rows.shape
    if count < 2 or size < 2:
        return Band(0.0, 0.0, 0.0, 1.0)
    unit = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    cosines = (unit @ unit.T).abs().fill_diagonal_(0.0)
    # The squared cosine of two independent directions has a beta distribution.
    limit = float(stats.beta.isf(alpha / (count * (count - 1) / 2), 0.5, (size - 1) / 2)) ** 0.5
    return Band(0.0, float(cosines.max()), 0.0, limit)


def sigma_upper_bound(rows: Tensor, alpha: float) -> float:
    """Return an upper bound on the standard deviation of centred normals: `sqrt(sum R^2 / chi2_{alpha; N d})`.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> 2.0 < sigma_upper_bound(2.0 * torch.randn(500, 64, dtype=torch.float64), 1e-3) < 2.05
    True
    """
    return math.sqrt(float(rows.square().sum()) / float(stats.chi2.ppf(alpha, rows.numel())))


def chernoff_p_value(value: float, mean: float, log_mgf: Callable[[float], float]) -> float:
    """Return an upper bound on the two-sided p-value of `value`, by Chernoff's bound.

    `log_mgf(t)` is the exact logarithm of the moment generating function, `E exp(t X)`. Every t gives a valid bound,
    also for small samples; the best t gives one that is tight up to a factor that is negligible in the tails.

    >>> round(chernoff_p_value(5.0, 0.0, lambda t: t * t / 2) / (2 * math.exp(-12.5)), 4)
    1.0
    >>> chernoff_p_value(0.0, 0.0, lambda t: t * t / 2)
    1.0
    """
    side = 1.0 if value >= mean else -1.0

    def exponent(log_t: float) -> float:
        t = side * math.exp(log_t)
        return log_mgf(t) - t * value

    best = optimize.minimize_scalar(exponent, bounds=(-15.0, 4.0), method="bounded", options={"xatol": 1e-4})
    return min(1.0, 2 * math.exp(min(0.0, float(best.fun))))


def mu_by_noncentral_t(inside: Tensor, outside: Tensor, alpha: float) -> float:
    """Return a lower bound on the distance between the means of two normals, in units of their standard deviation.

    The two normals have the same standard deviation. With `t = (mean - mean') / (s h)`, h = sqrt(1/n + 1/m), the bound
    is `nu h` for the nu that solves
    `P[T_{n + m - 2, nu} >= t] = alpha`.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> a, b = torch.randn(2, 1000, dtype=torch.float64)
    >>> 0.8 < mu_by_noncentral_t(a + 1, b, 1e-3) < 1
    True
    """
    n, m = len(inside), len(outside)
    spread = float((inside - inside.mean()).square().sum() + (outside - outside.mean()).square().sum())
    shift, width, freedom = float(inside.mean() - outside.mean()), math.sqrt(1 / n + 1 / m), n + m - 2
    if shift <= 0:
        return 0.0
    if spread <= (shift / LARGEST_MU) ** 2 * freedom:
        return LARGEST_MU
    statistic = shift / math.sqrt(spread / freedom) / width
    return max(0.0, _noncentrality(statistic, freedom, alpha)) * width


def _noncentrality(statistic: float, freedom: int, alpha: float) -> float:
    """Return the nu at which a noncentral t variable is at least `statistic` with probability alpha.

    T >= t means Z + nu >= t S with S = sqrt(chi2 / freedom). For given S this is a normal probability, which
    Gauss-Legendre quadrature averages over S: scipy's noncentral t loses precision for large samples.
    """
    ends = stats.chi2.ppf([1e-12, 1 - 1e-12], freedom)
    points, weights = _quadrature()
    middle, half = (ends[1] + ends[0]) / 2, (ends[1] - ends[0]) / 2
    squares = middle + half * points
    mass = half * weights * stats.chi2.pdf(squares, freedom)
    roots = np.sqrt(squares / freedom)

    def excess(nu: float) -> float:
        return float((mass * special.ndtr(nu - statistic * roots)).sum() - alpha)

    reach = stats.norm.isf(alpha) + 1
    low, high = statistic * roots[0] - reach - 10, statistic * roots[-1] + reach
    return float(optimize.brentq(excess, low, high, xtol=1e-9))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Numbers, Numbers]:
    """Return nodes and weights of Gauss-Legendre quadrature; computed once."""
    points, weights = np.polynomial.legendre.leggauss(200)
    return points, weights


def mu_by_threshold(inside: Tensor, outside: Tensor, alpha: float) -> float:
    """Return a lower bound on mu from the error rates of a threshold test.

    The threshold is chosen on one half of the scores; the other half gives Clopper-Pearson upper bounds on both error
    rates, at alpha / 2 each, and `mu = invPhi(1 - FPR) - invPhi(FNR)`. Unlike the noncentral t, the bound assumes no
    distribution of the scores, only that the release is no more distinguishable than a Gaussian one.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> a, b = torch.randn(2, 2000, dtype=torch.float64)
    >>> 0.5 < mu_by_threshold(a + 1, b, 1e-3) < 1
    True
    """
    first, second = (inside[::2].numpy(), outside[::2].numpy()), (inside[1::2].numpy(), outside[1::2].numpy())
    candidates = np.concatenate(first)
    best = candidates[_mu_at(candidates, *first, alpha).argmax()]
    return max(0.0, float(_mu_at(np.array([best]), *second, alpha)[0]))


def _mu_at(thresholds: Numbers, inside: Numbers, outside: Numbers, alpha: float) -> Numbers:
    """Return the lower bound on mu at each threshold."""
    false_positives = len(outside) - np.searchsorted(np.sort(outside), thresholds, side="left")
    false_negatives = np.searchsorted(np.sort(inside), thresholds, side="left")
    counts = ((false_positives, outside), (false_negatives, inside))
    rates = [clopper_pearson_upper(errors, len(scores), alpha / 2) for errors, scores in counts]
    with np.errstate(invalid="ignore"):
        mu = -special.ndtri(rates[0]) - special.ndtri(rates[1])
    return np.nan_to_num(mu, nan=-np.inf, neginf=-np.inf)


def clopper_pearson_upper(hits: Numbers, trials: int, alpha: float) -> Numbers:
    """Return the Clopper-Pearson upper bound on a probability, for each number of hits.

    >>> clopper_pearson_upper(np.array([0, 100]), 100, 0.05).round(4)
    array([0.0295, 1.    ])
    """
    bound = special.betaincinv(hits + 1.0, np.maximum(trials - hits, 1.0), 1 - alpha)
    return np.where(hits >= trials, 1.0, bound)


def one_run_epsilon(correct: int, guesses: int, canaries: int, delta: float, alpha: float) -> float:
    """Return a lower bound on epsilon from one run with randomly included canaries (Steinke et al. 2023, Thm. 5.2).

    A fair coin decided for each of `canaries` records whether it was trained on; `correct` of `guesses` guesses about
    the coins were correct. The number of guesses must not depend on the scores. With p = e^eps / (1 + e^eps), an
    (eps, delta) run has `P[V >= correct] <= beta + 2 m delta kappa`; epsilon is rejected while the right-hand side is
    at most alpha.

    >>> one_run_epsilon(50, 100, 1000, 1e-5, 0.05)
    0.0
    >>> round(one_run_epsilon(100, 100, 1000, 1e-5, 0.05), 2)
    3.47
    """

    def rejected(epsilon: float) -> bool:
        p = 1 / (1 + math.exp(-epsilon))
        # P[Bin(guesses, p) >= k] for k = correct, correct - 1, ..., 0
        tails = special.bdtrc(np.arange(correct, -1, -1) - 1.0, guesses, p)
        tails = np.where(np.arange(correct, -1, -1) == 0, 1.0, tails)
        kappa = float(np.max((tails[1:] - tails[0]) / np.arange(1, correct + 1))) if correct else 0.0
        return bool(tails[0] + 2 * canaries * delta * kappa <= alpha)

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high) and high < 64:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
