"""The result of accounting: an epsilon with its settings, and how epsilons are printed."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Self

from gnomon.sampling.adjacency import Adjacency


def digits(epsilon: float | None, decimals: int = 3, *, significant: int | None = None, lower: bool = False) -> str:
    """Return an epsilon as text, rounded up, so that a printed epsilon is never below the exact one.

    Every epsilon in output for people, and every number derived from one, is formatted by this function. JSON files
    keep the exact value.

    Args:
        epsilon: The value; None stands for infinity, as in JSON.
        decimals: The number of decimals. A value below 10^(1 - decimals) or above 10^6 is printed with this many
            significant digits instead.
        significant: The number of significant digits, in place of `decimals`; for axis labels.
        lower: Round down instead: for the lower bound of an audit, or the remainder of a budget.

    >>> digits(1.0), digits(0.01006), digits(0.000421), digits(None)
    ('1.000', '0.011', '0.000421', 'infinite')
    >>> digits(0.8812, significant=2), digits(0.8812, 2), digits(0.8893, 2, lower=True)
    ('0.89', '0.89', '0.88')
    """
    if epsilon is None or epsilon == float("inf"):
        return "infinite"
    if not math.isfinite(epsilon):
        return str(float(epsilon))
    if significant is None and (epsilon == 0 or 10.0 ** (1 - decimals) <= abs(epsilon) < 1e6):
        return f"{_rounded(epsilon, -decimals, lower):.{decimals}f}"
    count = decimals if significant is None else significant
    place = Decimal(repr(float(epsilon))).adjusted() + 1 - count  # the exponent of the last printed digit
    return f"{float(_rounded(epsilon, place, lower)):.{count}g}"


def _rounded(value: float, place: int, lower: bool) -> Decimal:
    """Round to a multiple of 10^place, from the shortest decimal form: 0.1 is 0.1, not a nearby binary fraction."""
    rounding = ROUND_FLOOR if lower else ROUND_CEILING
    return Decimal(repr(float(value))).quantize(Decimal(1).scaleb(place), rounding=rounding)


class Epsilon(float):
    """A float that carries the settings it was computed from: delta, adjacency, sampler, accountant and others.

    `guarantee` is False for an approximation that may lie below the true value; `note` then explains why.

    >>> eps = Epsilon(0.5, delta=1e-5, adjacency="add-remove", sampler="Poisson q = 0.025",
    ...               accountant="PLD", noise_multiplier=10.0, steps=3200)
    >>> eps
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    >>> f"{eps:.1f}", eps < 1, str(eps)
    ('0.5', True, '0.5')
    """

    delta: float
    adjacency: Adjacency
    sampler: str
    accountant: str
    noise_multiplier: float
    steps: int
    guarantee: bool
    note: str

    def __new__(
        cls,
        value: float,
        *,
        delta: float,
        adjacency: Adjacency,
        sampler: str,
        accountant: str,
        noise_multiplier: float,
        steps: int,
        guarantee: bool = True,
        note: str = "",
    ) -> Self:
        self = super().__new__(cls, value)
        self.delta, self.adjacency = delta, adjacency
        self.sampler, self.accountant = sampler, accountant
        self.noise_multiplier, self.steps = noise_multiplier, steps
        self.guarantee, self.note = guarantee, note
        return self

    def describe(self) -> str:
        """Return epsilon and its settings on one line."""
        claim = "" if self.guarantee else "; not a guarantee"
        return (
            f"epsilon = {digits(self)} at delta = {self.delta:.6g} "
            f"({self.adjacency}, {self.sampler}, {self.accountant}{claim})"
        )

    def __repr__(self) -> str:
        return self.describe()

    def __str__(self) -> str:
        return float.__repr__(self)

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, Any]]:
        return (float(self),), dict(vars(self))
