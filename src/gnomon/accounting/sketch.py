"""The privacy cost of sketching a sum of clipped updates before noise is added.

A record changes the sum by a vector x of length at most 1 (in units of the clip bound). A sketch is drawn anew for
each step, independently of the data, and can stretch x; the distribution of the stretched length is known.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from gnomon import validate

SHARE = 0.1
"""The share of delta that pays for sketches that stretch a change by more than the assumed factor."""


class Expansion(ABC):
    """A bound on how far a random map from a sum to coordinates stretches the change that one record makes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A description for privacy statements."""

    @property
    @abstractmethod
    def note(self) -> str:
        """A caveat for privacy statements; empty if there is none."""

    @abstractmethod
    def factor(self, chance: float) -> float:
        """Return the factor that the stretch of one step exceeds with probability at most `chance`."""

    def exact(self, noise_multiplier: float, uses: int, delta: float, coarser: float = 1.0) -> float | None:
        """Return epsilon of full-batch steps if there is a closed form, else None; a larger `coarser` is faster."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the expansion as plain values for JSON; `from_dict` reads them."""
        return {"kind": type(self).__name__} | dict(vars(self))

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Expansion:
        """Return the expansion that `to_dict` described.

        >>> Expansion.from_dict(LinearSketch(20).to_dict())
        LinearSketch(directions=20)
        """
        kinds: dict[str, type[Expansion]] = {"LinearSketch": LinearSketch, "NormalisedSketch": NormalisedSketch}
        fields = dict(values)
        return kinds[fields.pop("kind")](**fields)


@dataclass(frozen=True)
class LinearSketch(Expansion):
    """`Phi S` with m x d fresh N(0, 1/m) entries: a change of length 1 gets length chi_m / sqrt(m).

    >>> round(LinearSketch(100).factor(1e-8), 3)
    1.416
    """

    directions: int

    def __post_init__(self) -> None:
        validate.whole("directions", self.directions)

    @property
    def name(self) -> str:
        return f"Gaussian sketch of the sum, {self.directions} directions"

    @property
    def note(self) -> str:
        return ""

    def factor(self, chance: float) -> float:
        return math.sqrt(float(stats.chi2.isf(chance, self.directions)) / self.directions)

    def exact(self, noise_multiplier: float, uses: int, delta: float, coarser: float = 1.0) -> float:
        return sketched_gaussian(noise_multiplier, self.directions, uses, delta, coarser)


@dataclass(frozen=True)
class NormalisedSketch(Expansion):
    """`|S| Phi S / |Phi S|`, the published whole-batch normaliser: stretches a change by at most kappa(chance).

    The published sensitivity lacks the factor kappa and is false: for a known Phi, one record can move the normalised
    sketch by twice the length of the whole sum.

    >>> round(NormalisedSketch(100).factor(1e-8), 2)
    1.88
    """

    directions: int

    def __post_init__(self) -> None:
        validate.whole("directions", self.directions, least=2)

    @property
    def name(self) -> str:
        return f"normalised Gaussian sketch of the sum, {self.directions} directions"

    @property
    def note(self) -> str:
        return (
            "the published whole-batch normaliser: its stated sensitivity is false; this epsilon counts the factor "
            f"kappa for {self.directions} fresh directions a step and reserves {SHARE:.0%} of delta for bad draws"
        )

    def factor(self, chance: float) -> float:
        return kappa(self.directions, chance)


def kappa(directions: int, chance: float) -> float:
    """Return the x with `P(condition number of an m x 2 Gaussian matrix > x) = chance`.

    The normalised sketches of two sums differ by at most this condition number times the difference of the sums, and
    `P(kappa > x) = (2 x / (x^2 + 1))^(m - 1)`.

    >>> [round(kappa(m, 1e-8), 2) for m in (20, 50, 1000)]
    [5.08, 2.52, 1.21]
    """
    m = validate.whole("directions", directions, least=2)
    t = math.exp(math.log(validate.probability("chance", chance)) / (m - 1))
    return (1 + math.sqrt(max(0.0, 1 - t * t))) / t


def lemma_constant(directions: int) -> float:
    """Return `C_m = sqrt(2/m) Gamma((m + 1)/2) / Gamma(m/2)`, the mean factor of inner products after normalising.

    >>> round(lemma_constant(1), 4), round(lemma_constant(100), 4)
    (0.7979, 0.9975)
    """
    m = validate.whole("directions", directions)
    return float(np.exp(special.gammaln((m + 1) / 2) - special.gammaln(m / 2)) * math.sqrt(2 / m))


def sketched_gaussian(noise_multiplier: float, directions: int, uses: int, delta: float, coarser: float = 1.0) -> float:
    """Return epsilon of `uses` steps that each release a fresh linear sketch of the sum with Gaussian noise.

    Given the sketches, all steps together are a Gaussian mechanism with `mu^2 = X / (m sigma^2)`, where X is chi-square
    with m `uses` degrees of freedom, however later steps depend on earlier releases. Delta is the mean over X, as an
    upper sum, so the result is an upper bound that is exact to about 1e-3; a coarser sum gives a larger one.

    >>> round(sketched_gaussian(1 / 0.3, 20, 1, 1e-5), 2)
    1.3
    """
    law = stats.chi2(directions * uses)
    points = np.unique(np.concatenate([
        law.isf(np.logspace(np.log10(delta) - 3, np.log10(0.5), int(8000 / coarser))),
        law.ppf(np.linspace(0, 0.5, int(2000 / coarser))),
    ]))  # fmt: skip
    weights = -np.diff(law.sf(points))
    tail = float(law.sf(points[-1]))
    mu = np.sqrt(points[1:] / directions) / noise_multiplier

    def delta_at(epsilon: float) -> float:
        inner = special.ndtr(-epsilon / mu + mu / 2)
        with np.errstate(over="ignore", invalid="ignore"):
            outer = np.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
        return float(weights @ np.clip(inner - outer, 0.0, 1.0)) + tail

    low, high = 0.0, 1.0
    if delta_at(0.0) <= delta:
        return 0.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
        if high > 1e7:
            return math.inf
    while high - low > 1e-6 * coarser * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def published_noise(
    *, lipschitz: float, records: int, steps: int, epsilon: float, delta: float, batch_size: int | None = None
) -> float:
    """Return the noise that Huang, Lei and Kaban (2023) print for DP-CompGD: for comparison only, no guarantee.

    The result is the standard deviation of the noise on the averaged, normalised sketch; with `batch_size`, that of the
    mini-batch method. The sensitivity behind the formula is false, and the mini-batch formula is garbled in print and
    derived anew here. Use `noise_multiplier` for a guarantee.

    Warns:
        UserWarning: Always, because the formula gives no guarantee.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     round(published_noise(lipschitz=1.0, records=1000, steps=100, epsilon=1.0, delta=1e-5), 4)
    0.1919
    """
    reach = validate.positive("lipschitz", lipschitz)
    n, t = validate.whole("records", records), validate.whole("steps", steps)
    eps, delta = validate.positive("epsilon", epsilon), validate.probability("delta", delta)
    warnings.warn(
        "published_noise gives no guarantee: the published sensitivity 2L/n of the whole-batch normaliser is false "
        "(one record can move it by up to 2L); use gnomon.accounting.noise_multiplier instead",
        stacklevel=2,
    )
    variance = 32 * reach**2 * t * math.log(1 / delta) / (n * eps) ** 2
    if batch_size is not None:
        share = t * validate.whole("batch_size", batch_size) / (delta * n)
        variance *= 8 * math.log(2.5 * share)
    return math.sqrt(variance)
