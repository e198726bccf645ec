"""The statistics of an audit: what scores and releases prove, at which confidence.

Throughout, `mu` is how many standard deviations apart one record can move a release: a Gaussian release with noise
multiplier sigma has mu = 1 / sigma. Everything here is a lower bound on mu or a test of a law; `alpha` is the
probability with which a bound may lie above the truth, or a test may fail, by chance.
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
"""Beyond this a release might as well carry no noise."""


@dataclass(frozen=True)
class Band:
    """The smallest and the largest of some values, and where they may lie."""

    smallest: float
    largest: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        return self.low <= self.smallest and self.largest <= self.high


def singular_values(rows: Tensor, alpha: float, declared: float = 1.0) -> Band:
    """All singular values of N releases in d coordinates, and the Davidson-Szarek band that holds them.

    For independent normals of the declared deviation they lie in `|sqrt N - sqrt d| - t` to `sqrt N + sqrt d + t`,
    t = sqrt(2 ln(2 / alpha)). Reused or correlated noise exceeds the band, a direction without noise falls below.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(200, 20, dtype=torch.float64)
    >>> singular_values(noise, 1e-6).ok, singular_values(noise[:1].expand(200, -1), 1e-6).ok
    (True, False)
    """
    count, size = rows.shape
    small = rows @ rows.T if count < size else rows.T @ rows
    found = torch.linalg.eigvalsh(small).clamp_min(0).sqrt() / declared
    slack = math.sqrt(2 * math.log(2 / alpha))
    middle, half = max(count, size) ** 0.5, min(count, size) ** 0.5
    return Band(float(found[0]), float(found[-1]), middle - half - slack, middle + half + slack)


def scale(rows: Tensor, alpha: float, declared: float = 1.0) -> Band:
    """The deviation of all releases together, as a fraction of the declared one, and its chi-squared band.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(500, 64, dtype=torch.float64)
    >>> scale(noise, 1e-6).ok, scale(0.95 * noise, 1e-6).ok
    (True, False)
    """
    length = float(torch.linalg.vector_norm(rows)) / declared  # makes no copy of the rows
    return deviation(length**2, rows.numel(), alpha)


def deviation(squares: float, count: int, alpha: float) -> Band:
    """The deviation of `count` standard normals whose squares have this sum, and its exact chi-squared band.

    >>> deviation(1.0e6, 10**6, 1e-6).ok, deviation(0.98e6, 10**6, 1e-6).ok
    (True, False)
    """
    found = (squares / count) ** 0.5
    low, high = stats.chi2.ppf([alpha / 2, 1 - alpha / 2], count) / count
    return Band(found, found, float(low) ** 0.5, float(high) ** 0.5)


def occurrences(count: int, trials: int, probability: float, alpha: float) -> Band:
    """How often an event occurred, and the exact binomial band: each side fails with probability alpha / 2 at most.

    >>> band = occurrences(0, 10**6, 1e-4, 1e-6)  # 100 expected
    >>> band.low, band.high, band.ok
    (55.0, 153.0, False)
    """
    low, high = stats.binom.ppf([alpha / 2, 1 - alpha / 2], trials, probability)
    return Band(count, count, float(low), float(high))


def blocks(rows: Tensor, sizes: Mapping[str, int], alpha: float, declared: float = 1.0) -> tuple[str, Band]:
    """The block of coordinates whose deviation is furthest off, by name, and its band; alpha is shared by all blocks.

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
    """The deviation of each coordinate, as a fraction of the declared one, and the band that holds all of them.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(100, 300, dtype=torch.float64)
    >>> silent = noise.clone()
    >>> silent[:, 7] = 0
    >>> coordinates(noise, 1e-6).ok, coordinates(silent, 1e-6).ok
    (True, False)
    """
    count, size = rows.shape
    found = torch.linalg.vector_norm(rows, dim=0) / count**0.5 / declared
    each = alpha / size
    low, high = stats.chi2.ppf([each / 2, 1 - each / 2], count) / count
    return Band(float(found.min()), float(found.max()), float(low) ** 0.5, float(high) ** 0.5)


def likeness(rows: Tensor, alpha: float) -> Band:
    """The largest absolute cosine between any two rows, and what independent normals would not exceed.

    Between releases it finds a draw that was used twice, at any distance; between coordinates (the transpose) one that
    was used for two of them. A singular value sees either only if it happens often.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> noise = torch.randn(100, 30, dtype=torch.float64)
    >>> twice = torch.cat([noise, noise[:1]])
    >>> likeness(noise, 1e-6).ok, likeness(twice, 1e-6).ok
    (True, False)
    """
    count, size = rows.shape
    if count < 2 or size < 2:
        return Band(0.0, 0.0, 0.0, 1.0)
    unit = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    cosines = (unit @ unit.T).abs().fill_diagonal_(0.0)
    # the squared cosine of two independent directions follows a beta law
    most = float(stats.beta.isf(alpha / (count * (count - 1) / 2), 0.5, (size - 1) / 2)) ** 0.5
    return Band(0.0, float(cosines.max()), 0.0, most)


def sigma_at_most(rows: Tensor, alpha: float) -> float:
    """An upper bound on the deviation of independent centred normals: `sqrt(sum R^2 / chi2_{alpha; N d})`.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> 2.0 < sigma_at_most(2.0 * torch.randn(500, 64, dtype=torch.float64), 1e-3) < 2.05
    True
    """
    return math.sqrt(float(rows.square().sum()) / float(stats.chi2.ppf(alpha, rows.numel())))


def by_chance(value: float, mean: float, log_mgf: Callable[[float], float]) -> float:
    """How probable a value as far from the mean as this one is at most, on either side: Chernoff's bound.

    `log_mgf(t)` is the logarithm of `E exp(t X)`, exact. Any t gives a bound that holds, the best one a bound that is
    tight up to a factor that hardly matters far out, and none relies on a large sample.

    >>> round(by_chance(5.0, 0.0, lambda t: t * t / 2) / (2 * math.exp(-12.5)), 4)
    1.0
    >>> by_chance(0.0, 0.0, lambda t: t * t / 2)
    1.0
    """
    side = 1.0 if value >= mean else -1.0

    def exponent(log_t: float) -> float:
        t = side * math.exp(log_t)
        return log_mgf(t) - t * value

    best = optimize.minimize_scalar(exponent, bounds=(-15.0, 4.0), method="bounded", options={"xatol": 1e-4})
    return min(1.0, 2 * math.exp(min(0.0, float(best.fun))))


def mu_by_noncentral_t(inside: Tensor, outside: Tensor, alpha: float) -> float:
    """A lower bound on the distance of two normals of one deviation, in units of it, from samples of both.

    With `t = (mean - mean') / (s h)`, h = sqrt(1/n + 1/m), the bound is `nu h` for the nu that solves
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
    found = shift / math.sqrt(spread / freedom) / width
    return max(0.0, _noncentrality(found, freedom, alpha)) * width


def _noncentrality(found: float, freedom: int, alpha: float) -> float:
    """The nu at which a noncentral t is at least `found` with probability alpha.

    T >= t means Z + nu >= t S with S = sqrt(chi2 / freedom). Given S that is one normal probability, averaged
    over S by Gauss-Legendre quadrature: scipy's own noncentral t loses its digits for long samples.
    """
    ends = stats.chi2.ppf([1e-12, 1 - 1e-12], freedom)
    points, weights = _quadrature()
    middle, half = (ends[1] + ends[0]) / 2, (ends[1] - ends[0]) / 2
    squares = middle + half * points
    mass = half * weights * stats.chi2.pdf(squares, freedom)
    roots = np.sqrt(squares / freedom)

    def excess(nu: float) -> float:
        return float((mass * special.ndtr(nu - found * roots)).sum() - alpha)

    reach = stats.norm.isf(alpha) + 1
    low, high = found * roots[0] - reach - 10, found * roots[-1] + reach
    return float(optimize.brentq(excess, low, high, xtol=1e-9))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Numbers, Numbers]:
    points, weights = np.polynomial.legendre.leggauss(200)
    return points, weights


def mu_by_threshold(inside: Tensor, outside: Tensor, alpha: float) -> float:
    """A lower bound on mu from errors alone: a threshold from one half of the scores, Clopper-Pearson on the other.

    `mu = invPhi(1 - FPR) - invPhi(FNR)` at the upper bounds of both rates, alpha / 2 each. Unlike the noncentral t
    it needs no law of the scores, only that the release is no better than a Gaussian one.

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
    """The bound on mu at each threshold."""
    false = len(outside) - np.searchsorted(np.sort(outside), thresholds, side="left")
    missed = np.searchsorted(np.sort(inside), thresholds, side="left")
    rates = [upper_rate(hits, len(them), alpha / 2) for hits, them in ((false, outside), (missed, inside))]
    with np.errstate(invalid="ignore"):
        found = -special.ndtri(rates[0]) - special.ndtri(rates[1])
    return np.nan_to_num(found, nan=-np.inf, neginf=-np.inf)


def upper_rate(hits: Numbers, trials: int, alpha: float) -> Numbers:
    """The Clopper-Pearson upper bound on a probability, for each number of hits.

    >>> upper_rate(np.array([0, 100]), 100, 0.05).round(4)
    array([0.0295, 1.    ])
    """
    found = special.betaincinv(hits + 1.0, np.maximum(trials - hits, 1.0), 1 - alpha)
    return np.where(hits >= trials, 1.0, found)


def one_run_epsilon(right: int, guesses: int, canaries: int, delta: float, alpha: float) -> float:
    """A lower bound on epsilon from one run with coin-flip canaries (Steinke et al. 2023, Theorem 5.2).

    Of `canaries` records each was in by a fair coin; `right` of `guesses` guesses about them were right. The number of
    guesses must not depend on the scores. With p = e^eps / (1 + e^eps), an (eps, delta) run has
    `P[V >= right] <= beta + 2 m delta kappa`; epsilon is rejected while that is at most alpha.

    >>> one_run_epsilon(50, 100, 1000, 1e-5, 0.05)
    0.0
    >>> round(one_run_epsilon(100, 100, 1000, 1e-5, 0.05), 2)
    3.47
    """

    def rejected(epsilon: float) -> bool:
        p = 1 / (1 + math.exp(-epsilon))
        # P[Bin(guesses, p) >= k] for k = right, right - 1, ..., 0
        tails = special.bdtrc(np.arange(right, -1, -1) - 1.0, guesses, p)
        tails = np.where(np.arange(right, -1, -1) == 0, 1.0, tails)
        kappa = float(np.max((tails[1:] - tails[0]) / np.arange(1, right + 1))) if right else 0.0
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
