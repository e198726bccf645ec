"""How the server puts the clients' changes together, with weights that are fixed and public.

Only q-FFL also weighs what a client claims: its noisy loss, within limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gnomon import validate
from gnomon.federated.message import Arrays, total_norm

LEAST_LOSS = 0.1
"""q-FFL counts smaller losses as this: with q < 1 one near zero would outweigh everybody."""


class Aggregate(Protocol):
    """From the accepted changes `w_global - w_client`, by client, to what the server subtracts from its weights.

    `like` are the weights, for their shapes.
    """

    @property
    def name(self) -> str:
        """For reports."""

    def with_lr(self, lr: float) -> Aggregate:
        """Return the same aggregate with another step size of the server."""

    def move(
        self,
        changes: Mapping[str, Arrays],
        weights: Mapping[str, float],
        losses: Mapping[str, float],
        like: Mapping[str, Tensor],
    ) -> Arrays: ...


@dataclass(frozen=True)
class Mean:
    """The mean with fixed weights over the clients that were accepted, times the server's step size.

    Guarantee: never longer than `lr` times the longest accepted change.

    >>> changes = {"a": {"w": torch.tensor([1.0])}, "b": {"w": torch.tensor([4.0])}}
    >>> Mean().move(changes, {"a": 2.0, "b": 1.0}, {}, {})
    {'w': tensor([2.])}
    """

    lr: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("lr", self.lr)

    @property
    def name(self) -> str:
        return "mean" + (f" x {self.lr:g}" if self.lr != 1 else "")

    def with_lr(self, lr: float) -> Mean:
        return replace(self, lr=lr)

    def move(
        self,
        changes: Mapping[str, Arrays],
        weights: Mapping[str, float],
        losses: Mapping[str, float],
        like: Mapping[str, Tensor],
    ) -> Arrays:
        whole = sum(weights[name] for name in changes)
        return combined(changes, {name: self.lr * weights[name] / whole for name in changes})


@dataclass(frozen=True)
class QFair:
    """q-FedAvg (Li et al. 2020): clients with a larger loss F pull harder, as F^q.

    `Delta_k = F_k^q L d_k`, `h_k = q F_k^(q-1) |L d_k|^2 + L F_k^q`, and the server subtracts
    `lr sum p_k Delta_k / sum p_k h_k` with the clients' fixed weights p. The losses are those that clients released
    with noise. With q = 0 it is the plain mean.

    >>> changes = {"a": {"w": torch.tensor([1.0])}, "b": {"w": torch.tensor([3.0])}}
    >>> QFair(q=0.0, smoothness=10.0).move(changes, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}, {})
    {'w': tensor([2.])}
    """

    q: float = 1.0
    smoothness: float = 1.0
    """L, for which 1 / local learning rate is usual."""
    lr: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("lr", self.lr)
        validate.non_negative("q", self.q)
        validate.positive("smoothness", self.smoothness)

    @property
    def name(self) -> str:
        return f"q-fair {self.q:g}"

    def with_lr(self, lr: float) -> QFair:
        return replace(self, lr=lr)

    def move(
        self,
        changes: Mapping[str, Arrays],
        weights: Mapping[str, float],
        losses: Mapping[str, float],
        like: Mapping[str, Tensor],
    ) -> Arrays:
        loss = {name: max(LEAST_LOSS, losses[name]) for name in changes}
        pull = {name: weights[name] * loss[name] ** self.q * self.smoothness for name in changes}
        bend = {
            name: weights[name] * self.q * loss[name] ** (self.q - 1) * (self.smoothness * total_norm(change)) ** 2
            for name, change in changes.items()
        }
        whole = sum(bend.values()) + sum(pull.values())
        return combined(changes, {name: self.lr * pull[name] / whole for name in changes})


def combined(changes: Mapping[str, Arrays], weights: Mapping[str, float]) -> Arrays:
    """A weighted sum of changes, formed in float64.

    >>> combined({"a": {"w": torch.tensor([2.0])}}, {"a": 0.5})
    {'w': tensor([1.])}
    """
    first = next(iter(changes.values()))
    return {
        key: torch.stack([weights[name] * change[key].double() for name, change in changes.items()]).sum(0).to(like)
        for key, like in first.items()
    }
