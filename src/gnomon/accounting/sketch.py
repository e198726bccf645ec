"""What it costs to sketch a sum of clipped updates before noise, where the sketch can stretch a change.

A record changes the sum by a vector x of length at most 1 (in units of the clip bound). A sketch that is drawn afresh
for each step, independently of the data, shows that change with another length, and the law of that length is known.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from gnomon import validate

SHARE = 0.1
"""The part of delta that pays for sketches that stretch more than assumed."""


class Expansion(ABC):
    """How a map from a sum to coordinates can stretch the change that one record makes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """For statements."""

    @property
    @abstractmethod
    def note(self) -> str:
        """What a reader of the statement should know."""

    @abstractmethod
    def factor(self, chance: float) -> float:
        """A change grows by more than this with at most the given chance, in one step."""

    def exact(self, noise_multiplier: float, uses: int, delta: float, coarser: float = 1.0) -> float | None:
        """Epsilon of full-batch steps where it has a closed form, else None. `coarser` trades accuracy for time."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"kind": type(self).__name__} | dict(vars(self))

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Expansion:
        """What `to_dict` described.

        >>> Expansion.from_dict(LinearSketch(20).to_dict())
        LinearSketch(directions=20)
        """
        kinds: dict[str, type[Expansion]] = {"LinearSketch": LinearSketch, "NormalisedSketch": NormalisedSketch}
        fields = dict(values)
        return kinds[fields.pop("kind")](**fields)


@dataclass(frozen=True)
class LinearSketch(Expansion):
    """`Phi S` with m x d fresh N(0, 1/m) entries: a change of length 1 is seen with length chi_m / sqrt(m).

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
    """`|S| Phi S / |Phi S|`, the published normaliser of a whole batch: grows by at most kappa(chance).

    Without the factor kappa the published sensitivity is wrong: for a known Phi one record can move it by twice the
    length of the whole sum.

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
            f"kappa for {self.directions} fresh directions a step and puts {SHARE:.0%} of delta aside for bad draws"
        )

    def factor(self, chance: float) -> float:
        return kappa(self.directions, chance)


def kappa(directions: int, chance: float) -> float:
    """The x with `P(condition number of an m x 2 Gaussian matrix > x) = chance`.

    For two sums and a fresh sketch, normalised sketches differ by at most that condition number times what the sums
    differ by, and `P(kappa > x) = (2 x / (x^2 + 1))^(m - 1)`.

    >>> [round(kappa(m, 1e-8), 2) for m in (20, 50, 1000)]
    [5.08, 2.52, 1.21]
    """
    m = validate.whole("directions", directions, least=2)
    t = math.exp(math.log(validate.probability("chance", chance)) / (m - 1))
    return (1 + math.sqrt(max(0.0, 1 - t * t))) / t


def lemma_constant(directions: int) -> float:
    """`C_m = sqrt(2/m) Gamma((m + 1)/2) / Gamma(m/2)`: how a normalised sketch shrinks inner products on average.

    >>> round(lemma_constant(1), 4), round(lemma_constant(100), 4)
    (0.7979, 0.9975)
    """
    m = validate.whole("directions", directions)
    return float(np.exp(special.gammaln((m + 1) / 2) - special.gammaln(m / 2)) * math.sqrt(2 / m))


def sketched_gaussian(noise_multiplier: float, directions: int, uses: int, delta: float, coarser: float = 1.0) -> float:
    """Epsilon of `uses` steps that release a fresh linear sketch of the sum with Gaussian noise.

    Given the sketches the steps are Gaussian with `mu^2 = X / (m sigma^2)` in all, X chi-square with m `uses` degrees
    of freedom, whatever earlier releases led to. Delta is the mean over X, summed from above, so the result
    is an upper bound that is exact to about 1e-3; a coarser sum gives a larger one.

    >>> round(sketched_gaussian(1 / 0.3, 20, 1, 1e-5), 2)
    1.3
    """
    law = stats.chi2(directions * uses)
    points = np.unique(np.concatenate([
        law.isf(np.logspace(np.log10(delta) - 3, np.log10(0.5), int(8000 / coarser))),
        law.ppf(np.linspace(0, 0.5, int(2000 / coarser))),
    ]))  # fmt: skip
    weights = -np.diff(law.sf(points))
    left_over = float(law.sf(points[-1]))
    mu = np.sqrt(points[1:] / directions) / noise_multiplier

    def spent(epsilon: float) -> float:
        inner = special.ndtr(-epsilon / mu + mu / 2)
        with np.errstate(over="ignore", invalid="ignore"):
            outer = np.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
        return float(weights @ np.clip(inner - outer, 0.0, 1.0)) + left_over

    low, high = 0.0, 1.0
    if spent(0.0) <= delta:
        return 0.0
    while spent(high) > delta:
        low, high = high, 2 * high
        if high > 1e7:
            return math.inf
    while high - low > 1e-6 * coarser * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high
