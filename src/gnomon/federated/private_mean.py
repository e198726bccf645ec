"""Differential privacy for whole clients: the server clips each client's change and noises their sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gnomon import validate
from gnomon.accounting import Account
from gnomon.clipping import Flat
from gnomon.federated.message import Arrays
from gnomon.release import Door, NoiseSource, SecureNoise
from gnomon.updates import Dense, Updates


@dataclass(frozen=True, eq=False)
class PrivateMean:
    """The mean over clients, through the same door as a mean over records: a client is one sample.

    Every change is clipped to `max_norm`, noise of `account.noise_multiplier * max_norm` is added to the sum, and the
    sum is divided by the declared number of clients a round, never by how many answered. The server sees changes
    before that and must be trusted.

    >>> from gnomon.accounting import FullBatch
    >>> from gnomon.release import SeededNoise
    >>> mean = PrivateMean(1.0, Account(FullBatch(), 0.0), clients=2, noise=SeededNoise(0))
    >>> changes = {"a": {"w": torch.tensor([30.0, 40.0])}, "b": {"w": torch.tensor([0.0, 0.2])}}
    >>> mean.move(changes, {}, {}, {"w": torch.zeros(2)})["w"], mean.account.steps
    (tensor([0.3000, 0.5000]), 1)
    """

    max_norm: float
    account: Account
    clients: float
    lr: float = 1.0
    noise: NoiseSource = field(default_factory=SecureNoise)
    affordable: float = math.inf
    """How many rounds its target epsilon pays for."""
    always = True
    """Noise is released also if nobody answered: silence would tell."""

    def __post_init__(self) -> None:
        validate.positive("max_norm", self.max_norm)
        validate.positive("clients", self.clients)
        validate.positive("lr", self.lr)

    @property
    def spent(self) -> bool:
        """Whether one more round would cost more than the target."""
        return self.account.steps + 1 > self.affordable

    @property
    def name(self) -> str:
        return f"mean of clients clipped to {self.max_norm:g}, noised"

    def with_lr(self, lr: float) -> PrivateMean:
        return replace(self, lr=lr)

    def move(
        self,
        changes: Mapping[str, Arrays],
        weights: Mapping[str, float],
        losses: Mapping[str, float],
        like: Mapping[str, Tensor],
    ) -> Arrays:
        door = Door(like, self.max_norm, self.account.noise_multiplier, self.clients, self.noise, self.account.charge)
        if changes:
            stacked = {name: torch.stack([change[name] for change in changes.values()]) for name in like}
            updates = Updates(
                {name: Dense(value) for name, value in stacked.items()}, torch.zeros(len(changes), dtype=torch.float32)
            )
            door.admit(updates, Flat())
        return {name: self.lr * value for name, value in door.release().items()}
