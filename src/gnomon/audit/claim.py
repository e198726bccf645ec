"""What a run claims: the numbers an audit holds against it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from gnomon import accounting, validate
from gnomon.accounting import Sampling
from gnomon.accounting.epsilon import Accountant
from gnomon.audit.bounds import LARGEST_MU
from gnomon.training import Trainer


@dataclass(frozen=True)
class Claim:
    """The declared noise, sampling and length of a run.

    >>> claim = Claim(1.4147, accounting.Poisson(0.01), 1000, 1e-5)
    >>> round(claim.epsilon, 2), round(claim.epsilon_at(2 * claim.mu), 1), claim.epsilon_at(0.0)
    (1.0, 4.5, 0.0)
    """

    noise_multiplier: float
    sampler: Sampling
    steps: int
    delta: float
    adjacency: str | None = None
    accountant: Accountant = "pld"
    """That which made the claim. What is proved against it is always converted by PLD, which is tight."""

    def __post_init__(self) -> None:
        validate.positive("noise_multiplier", self.noise_multiplier)

    @classmethod
    def of(cls, trainer: Trainer) -> Claim:
        """The claim of the run that a Trainer has planned."""
        claimed = trainer.mechanism
        return cls(
            claimed.noise_multiplier,
            claimed.sampler,
            claimed.last_step,
            claimed.delta,
            claimed.adjacency,
            claimed.accountant,
        )

    @property
    def mu(self) -> float:
        """How many standard deviations one record may move a release."""
        return 1 / self.noise_multiplier

    @property
    def epsilon(self) -> float:
        """The claimed epsilon, by the claim's accountant."""
        return math.inf if self.mu >= LARGEST_MU else _epsilon(self, self.mu, self.accountant)

    def epsilon_at(self, mu: float) -> float:
        """The epsilon of the same run by PLD, had one record moved each release by `mu` deviations."""
        if mu <= 0:
            return 0.0
        if mu >= LARGEST_MU:
            return math.inf
        return _epsilon(self, mu, "pld")


@lru_cache(maxsize=64)
def _epsilon(claim: Claim, mu: float, accountant: Accountant) -> float:
    return float(
        accounting.epsilon(
            noise_multiplier=1 / mu,
            sampler=claim.sampler,
            steps=claim.steps,
            delta=claim.delta,
            adjacency=claim.adjacency,
            accountant=accountant,
        )
    )
