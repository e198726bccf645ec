"""The formulas of the recipes: every setting follows from the number of records, epsilon, delta and public facts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gnomon import validate
from gnomon.accounting import noise_multiplier
from gnomon.sampling import FullBatch

COLD_NOISE = 0.5
"""The standard deviation of the noise in each final weight without a start from public records."""

MOST_NOISE = 0.7
"""The largest such deviation with a start from public records."""

START_NOISE = 0.02
"""The same for small budgets, relative to sqrt(rho): a good start has more to lose than to win there."""

LEAST_STEPS = 10
"""The smallest number of steps."""

LEAST_DIRECTIONS, MOST_DIRECTIONS = 300, 4000
"""The smallest and the largest number of public directions. A start from public records needs many, whatever the
budget is."""

LARGEST_LAM = 0.05
"""The largest regularisation of the whitening."""


@dataclass(frozen=True)
class Budget:
    """The public facts that a recipe starts from.

    Args:
        records: the declared number of private records.
        epsilon: the epsilon to spend.
        delta: the delta at which it is stated.
        clients: the number of clients that hold the records. Each adds the noise that protects its own records.

    >>> budget = Budget(records=10_000, epsilon=1.0, delta=1e-5)
    >>> round(budget.noise, 2), round(budget.signal)
    (3.73, 2679)
    >>> round(Budget(records=10_000, epsilon=1.0, delta=1e-5, clients=4).signal)
    1340
    """

    records: int
    epsilon: float
    delta: float
    clients: int = 1

    def __post_init__(self) -> None:
        validate.whole("records", self.records)
        validate.whole("clients", self.clients)
        validate.positive("target_epsilon", self.epsilon)
        validate.probability("target_delta", self.delta)

    @cached_property
    def noise(self) -> float:
        """The noise multiplier of a single release of all records, or of all records of a client, at this epsilon."""
        return noise_multiplier(target_epsilon=self.epsilon, steps=1, delta=self.delta, sampler=FullBatch())

    @property
    def signal(self) -> float:
        """The number of records for each unit of noise, rho: the one number behind all settings.

        A sum over all records holds the noise of every client, whose variances add up: rho = records / (noise
        sqrt(clients)), however the records are distributed.
        """
        return self.records / (self.noise * math.sqrt(self.clients))

    @property
    def directions(self) -> int:
        """The number of public directions that the budget can fill: 10 sqrt(rho) or rho / 6, whichever is more.

        Only features on a grid have as many directions; others are limited by the rank of the public features.
        """
        wanted = max(10 * math.sqrt(self.signal), self.signal / 6)
        return max(LEAST_DIRECTIONS, min(MOST_DIRECTIONS, int(wanted)))

    @property
    def lam(self) -> float:
        """The regularisation of the whitening: 1 / sqrt(rho), at most `LARGEST_LAM`."""
        return max(1e-6, min(LARGEST_LAM, 1 / math.sqrt(self.signal)))

    def final_noise(self, start: bool) -> float:
        """Return the standard deviation of the noise in each final weight.

        Args:
            start: whether training starts from a model that is trained on public records.

        >>> Budget(10_000, 1.0, 1e-5).final_noise(start=True)
        0.7
        >>> round(Budget(10_000, 0.01, 1e-5).final_noise(start=True), 3)
        0.128
        """
        return min(MOST_NOISE, START_NOISE * math.sqrt(self.signal)) if start else COLD_NOISE


@dataclass(frozen=True)
class Schedule:
    """The settings of the private part of a recipe: full batches and plain SGD.

    Attributes:
        steps: the number of steps.
        lr: the learning rate, constant.
        max_grad_norm: the clip bound C.
        final_noise: the standard deviation of the noise in each final weight.

    >>> Schedule(steps=10, lr=2.0, max_grad_norm=0.5, final_noise=0.7).steps
    10
    """

    steps: int
    lr: float
    max_grad_norm: float
    final_noise: float


def schedule(budget: Budget, step: float, *, clip: float, start: bool) -> Schedule:
    """Return the schedule of a budget.

    The noise multiplier of T full batches is sqrt(T) times that of one, and T steps of noise add up as sqrt(T), so the
    noise in the final weights is the same whatever T is. T only has to be large enough for plain SGD to be stable.

    Args:
        budget: the budget.
        step: the largest learning rate times clip bound at which plain SGD is stable: the effective dimension of
            whitened features.
        clip: the clip bound.
        start: whether training starts from a model that is trained on public records.

    >>> schedule(Budget(10_000, 1.0, 1e-5), step=60.0, clip=0.5, start=True)
    Schedule(steps=32, lr=117.2, max_grad_norm=0.5, final_noise=0.7)
    """
    noise = budget.final_noise(start)
    distance = noise * budget.signal
    steps = max(LEAST_STEPS, math.ceil(distance / step))
    return Schedule(steps, float(f"{distance / (steps * clip):.4g}"), clip, noise)
