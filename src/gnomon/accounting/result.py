"""An epsilon that remembers what it is an epsilon of."""

from __future__ import annotations

from typing import Any, Self

from gnomon.accounting.adjacency import Adjacency


def digits(epsilon: float | None) -> str:
    """An epsilon as people read it: three decimals, more where it is so small that they would say zero.

    >>> digits(1.0), digits(0.00042), digits(None)
    ('1.000', '0.00042', 'infinite')
    """
    if epsilon is None or epsilon == float("inf"):
        return "infinite"
    return f"{float(epsilon):.3f}" if epsilon == 0 or 0.01 <= epsilon < 1e6 else f"{float(epsilon):.3g}"


class Epsilon(float):
    """A float that carries the rest of the statement: delta, adjacency, sampling and accountant.

    `guarantee` is False for an approximation that may lie below the true value; `note` then says so.

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
        """The whole statement on one line."""
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
