"""Differential privacy for whole clients: the server clips each client's change and adds noise to the sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gnomon import validate
from gnomon.accounting import Account
from gnomon.clipping import Flat
from gnomon.federated.aggregation import Aggregator
from gnomon.federated.message import Arrays
from gnomon.release import Door, NoiseSource, SecureNoise
from gnomon.updates import Dense, Updates


@dataclass(frozen=True, eq=False)
class PrivateMean(Aggregator):
    """The mean over clients, released through the same door as a mean over records: a client counts as one sample.

    Guarantee: every change is clipped to `max_norm`, noise of standard deviation `account.noise_multiplier * max_norm`
    is added to the sum, and the sum is divided by the declared number of clients in a round, never by the number of
    uploads. Each release charges `account` before it draws noise. The server sees the changes without noise and must
    be trusted.

    Args:
        max_norm: the clip bound of a client's change.
        account: the privacy account of the releases.
        clients: the declared number of clients in a round.
        lr: the learning rate of the server.
        noise: the noise source.
        max_rounds: the number of rounds that the target epsilon pays for.

    >>> from gnomon.accounting import FullBatch
    >>> from gnomon.release import SeededNoise
    >>> mean = PrivateMean(1.0, Account(FullBatch(), 0.0), clients=2, noise=SeededNoise(0))
    >>> changes = {"a": {"w": torch.tensor([30.0, 40.0])}, "b": {"w": torch.tensor([0.0, 0.2])}}
    >>> mean.aggregate(changes, {}, {}, {"w": torch.zeros(2)})["w"], mean.account.steps
    (tensor([0.3000, 0.5000]), 1)
    """

    max_norm: float
    account: Account
    clients: float
    lr: float = 1.0
    noise: NoiseSource = field(default_factory=SecureNoise)
    max_rounds: float = math.inf
    releases_without_uploads = True  # a step without noise would reveal that no client replied

    def __post_init__(self) -> None:
        validate.positive("max_norm", self.max_norm)
        validate.positive("clients", self.clients)
        validate.positive("lr", self.lr)

    @property
    def exhausted(self) -> bool:
        return self.account.steps + 1 > self.max_rounds

    @property
    def name(self) -> str:
        return f"mean of clients clipped to {self.max_norm:g}, noised"

    def with_lr(self, lr: float) -> PrivateMean:
        return replace(self, lr=lr)

    def aggregate(
        self,
        changes: Mapping[str, Arrays],
        weights: Mapping[str, float],
        losses: Mapping[str, float],
        template: Mapping[str, Tensor],
    ) -> Arrays:
        noise_multiplier = self.account.noise_multiplier
        door = Door(template, self.max_norm, noise_multiplier, self.clients, self.noise, self.account.charge)
        if changes:
            stacked = {name: torch.stack([change[name] for change in changes.values()]) for name in template}
            leaves = {name: Dense(value) for name, value in stacked.items()}
            door.admit(Updates(leaves, torch.zeros(len(changes), dtype=torch.float32)), Flat())
        return {name: self.lr * value for name, value in door.release().items()}
