"""How the server combines the clients' changes, with fixed and public weights.

Only q-FFL also weighs a number that a client reports: its noisy loss, within limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnomon import validate
from gnomon.federated.message import Arrays, total_norm

MIN_LOSS = 0.1
"""The smallest loss that q-FFL uses: with q < 1 a client with a loss near zero would outweigh all others."""


class Aggregator(ABC):
    """Combines the accepted changes `w_global - w_client` into the step that the server subtracts from its weights."""

    needs_losses = False
    """Whether the clients must report their losses."""
    releases_without_uploads = False
    """Whether the server's step depends on noise even if no upload was accepted."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The aggregator's name in statements and reports."""

    @property
    def exhausted(self) -> bool:
        """Whether a target epsilon of the aggregator's own cannot pay for another round."""
        return False

    @abstractmethod
    def with_lr(self, lr: float) -> Aggregator:
        """Return the same aggregator with another server learning rate."""

    @abstractmethod
    def aggregate(
        self,
        changes: Mapping[str, Arrays],
        weights: Mapping[str, float],
        losses: Mapping[str, float],
        template: Mapping[str, Tensor],
    ) -> Arrays:
        """Return the step of the server.

        Args:
            changes: the accepted changes, by client.
            weights: the fixed, public weight of each client.
            losses: the loss that each client reported; 1 for clients that report none.
            template: the server's weights, for shapes and dtypes.
        """


@dataclass(frozen=True)
class Mean(Aggregator):
    """The weighted mean of the accepted changes, times the server's learning rate.

    Guarantee: the step is never longer than `lr` times the longest accepted change.

    >>> changes = {"a": {"w": torch.tensor([1.0])}, "b": {"w": torch.tensor([4.0])}}
    >>> Mean().aggregate(changes, {"a": 2.0, "b": 1.0}, {}, {})
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

    def aggregate(
        self,
        changes: Mapping[str, Arrays],
        weights: Mapping[str, float],
        losses: Mapping[str, float],
        template: Mapping[str, Tensor],
    ) -> Arrays:
        total = sum(weights[name] for name in changes)
        return weighted_sum(changes, {name: self.lr * weights[name] / total for name in changes})


@dataclass(frozen=True)
class QFair(Aggregator):
    """q-FedAvg (Li et al. 2020): a client with loss F counts in proportion to F^q.

    `Delta_k = F_k^q L d_k`, `h_k = q F_k^(q-1) |L d_k|^2 + L F_k^q`, and the server subtracts
    `lr sum p_k Delta_k / sum p_k h_k` with the clients' fixed weights p. The losses are those that the clients released
    with noise. With q = 0 the result is the weighted mean.

    >>> changes = {"a": {"w": torch.tensor([1.0])}, "b": {"w": torch.tensor([3.0])}}
    >>> QFair(q=0.0, smoothness=10.0).aggregate(changes, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}, {})
    {'w': tensor([2.])}
    """

    q: float = 1.0
    smoothness: float = 1.0
    """The constant L of the paper, usually 1 / local learning rate."""
    lr: float = 1.0
    needs_losses = True

    def __post_init__(self) -> None:
        validate.positive("lr", self.lr)
        validate.non_negative("q", self.q)
        validate.positive("smoothness", self.smoothness)

    @property
    def name(self) -> str:
        return f"q-fair {self.q:g}"

    def with_lr(self, lr: float) -> QFair:
        return replace(self, lr=lr)

    def aggregate(
        self,
        changes: Mapping[str, Arrays],
        weights: Mapping[str, float],
        losses: Mapping[str, float],
        template: Mapping[str, Tensor],
    ) -> Arrays:
        loss = {name: max(MIN_LOSS, losses[name]) for name in changes}
        scale = {name: weights[name] * loss[name] ** self.q * self.smoothness for name in changes}
        curvature = {
            name: weights[name] * self.q * loss[name] ** (self.q - 1) * (self.smoothness * total_norm(change)) ** 2
            for name, change in changes.items()
        }
        total = sum(curvature.values()) + sum(scale.values())
        return weighted_sum(changes, {name: self.lr * scale[name] / total for name in changes})


def weighted_sum(changes: Mapping[str, Arrays], weights: Mapping[str, float]) -> Arrays:
    """Return the weighted sum of changes, computed in float64.

    >>> weighted_sum({"a": {"w": torch.tensor([2.0])}}, {"a": 0.5})
    {'w': tensor([1.])}
    """
    first = next(iter(changes.values()))
    return {
        key: torch.stack([weights[name] * change[key].double() for name, change in changes.items()]).sum(0).to(like)
        for key, like in first.items()
    }
