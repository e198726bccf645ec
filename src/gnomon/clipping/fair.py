"""Clip rules that look at a sample's loss: fair weights, and a loss that is released beside the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gnomon import validate
from gnomon.clipping.rules import ClipRule, Flat, finite, uncut

FLAT = Flat()


@runtime_checkable
class LossRule(Protocol):
    """A rule whose weights depend on each sample's own loss. The bound holds as for any other rule."""

    def given(self, losses: Tensor) -> ClipRule:
        """The rule for samples with these losses, (B,)."""


def for_losses(rule: ClipRule, losses: Tensor) -> ClipRule:
    """The rule, told the losses if it asks for them.

    >>> for_losses(Flat(), torch.ones(2)).name
    'flat'
    """
    return rule.given(losses) if isinstance(rule, LossRule) else rule


@dataclass(frozen=True)
class Fair:
    """FedFDP's rule (Ling et al. 2024): a sample counts `1 + strength * (loss - reference)` times, then is clipped.

    The factor is kept within [0, most]: the published one can be negative and then exceeds the bound. `reference` is
    the mean loss of all clients, and must itself have been released with noise; without one everybody counts the
    same.

    >>> rule = Fair(strength=0.5, reference=1.0, most=2.0).given(torch.tensor([1.0, 2.0, 9.0, -9.0]))
    >>> rule.weights(torch.full((4, 1), 0.1, dtype=torch.float64), 1.0).squeeze(1)
    tensor([1.0000, 1.5000, 2.0000, 0.0000], dtype=torch.float64)
    """

    strength: float = 0.1
    reference: float | None = None
    most: float = 2.0
    inner: ClipRule = FLAT

    def __post_init__(self) -> None:
        validate.non_negative("strength", self.strength)
        validate.positive("most", self.most)
        if self.reference is not None:
            validate.number("reference", self.reference)

    @property
    def name(self) -> str:
        return f"fair ({self.strength:g}), {self.inner.name}"

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return self.inner.weights(norms, bound)

    def uncut(self, norms: Tensor) -> Tensor:
        return uncut(self.inner, norms)

    def given(self, losses: Tensor) -> ClipRule:
        inner = for_losses(self.inner, losses)
        if self.reference is None:
            return inner
        factors = (1 + self.strength * (losses.double() - self.reference)).clamp(0.0, self.most)
        return _Scaled(factors[:, None], inner)


@dataclass(frozen=True)
class _Scaled:
    """Another rule on samples that were multiplied by a factor each."""

    factors: Tensor
    inner: ClipRule
    name = "scaled"

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return finite(self.factors * self.inner.weights(self.factors * norms, bound), norms)

    def uncut(self, norms: Tensor) -> Tensor:
        return self.factors * uncut(self.inner, norms)


@dataclass(frozen=True)
class UpdateAndLoss:
    """An update and, as the last block, the sample's loss: one vector, one release (see `subspaces.BesideLoss`).

    The update is clipped to C by `inner`; the loss was cut to its own bound already and is at most `C / ratio`
    long, so that its noise multiplier is `ratio` times that of the update. The bound of both together is
    `joint(C)`.

    >>> rule = UpdateAndLoss(ratio=2.0)
    >>> norms = torch.tensor([[3.0, 0.5]], dtype=torch.float64)
    >>> (rule.weights(norms, rule.joint(1.0)) * norms).round(decimals=6)
    tensor([[1.0000, 0.5000]], dtype=torch.float64)
    """

    ratio: float = 2.5
    inner: ClipRule = FLAT

    def __post_init__(self) -> None:
        validate.positive("ratio", self.ratio)

    @property
    def name(self) -> str:
        return f"{self.inner.name}, loss beside it"

    def joint(self, bound: float) -> float:
        """What one sample can move, update and loss together."""
        return float(bound * (1 + self.ratio**-2) ** 0.5)

    def given(self, losses: Tensor) -> ClipRule:
        return UpdateAndLoss(self.ratio, for_losses(self.inner, losses))

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        updates = self.inner.weights(norms[:, :-1], bound / self.joint(1.0))
        wide = updates.expand(-1, norms.shape[1] - 1)
        return finite(torch.cat([wide, torch.ones_like(norms[:, -1:])], 1), norms)

    def uncut(self, norms: Tensor) -> Tensor:
        updates = uncut(self.inner, norms[:, :-1]).expand(-1, norms.shape[1] - 1)
        return torch.cat([updates, torch.ones_like(norms[:, -1:])], 1)
