"""The formulas of the recipes: every setting follows from the number of records, epsilon, delta and public facts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gnomon import validate
from gnomon.accounting import noise_multiplier
from gnomon.features import PublicWhitening
from gnomon.sampling import FullBatch

CLIP = 0.5
"""The clip bound of every recipe. Features have norm one, so the gradient of a softmax head is at most sqrt(2) long."""

FINAL_NOISE = 0.5
"""The standard deviation of the noise in each final weight, whatever the number of steps is."""

LEAST_STEPS = 10
"""The smallest number of steps."""

STEP_SIZE = 1.0
"""The learning rate times the clip bound, relative to the effective dimension of the features."""


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
        """The number of public directions that the budget can fill, 10 sqrt(rho)."""
        return max(1, int(10 * math.sqrt(self.signal)))

    @property
    def lam(self) -> float:
        """The regularisation of the whitening, 1 / sqrt(rho)."""
        return 1 / math.sqrt(self.signal)


@dataclass(frozen=True)
class Schedule:
    """The settings of the private part of a recipe: full batches and plain SGD.

    Attributes:
        steps: the number of steps.
        lr: the learning rate, constant.
        max_grad_norm: the clip bound C.
    """

    steps: int
    lr: float
    max_grad_norm: float = CLIP


def schedule(budget: Budget, effective_dimension: float) -> Schedule:
    """Return the schedule for features of an effective dimension.

    The noise multiplier of T full batches is sqrt(T) times that of one, and T steps of noise add up as sqrt(T), so the
    noise in the final weights is `FINAL_NOISE` whatever T is. T only has to be large enough for plain SGD to be stable.

    >>> schedule(Budget(10_000, 1.0, 1e-5), effective_dimension=60.0)
    Schedule(steps=23, lr=116.5, max_grad_norm=0.5)
    """
    distance = FINAL_NOISE * budget.signal
    steps = max(LEAST_STEPS, math.ceil(distance / (STEP_SIZE * effective_dimension)))
    return Schedule(steps, float(f"{distance / (steps * CLIP):.4g}"))


def whitened(budget: Budget, whitening: PublicWhitening) -> PublicWhitening:
    """Return a public whitening with the number of directions and the regularisation that the budget allows."""
    return whitening.with_(k=min(budget.directions, whitening.rank), lam=max(budget.lam, 1e-6))
