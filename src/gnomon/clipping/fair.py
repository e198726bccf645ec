"""The clip rule of FedFDP, which gives samples with a large loss a larger weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gnomon import validate
from gnomon.clipping.rules import ClipRule, Flat, zero_non_finite

FLAT = Flat()


@dataclass(frozen=True)
class Fair(ClipRule):
    """FedFDP's rule (Ling et al. 2024): scale a sample by `1 + strength * (loss - reference)`, then clip it.

    Args:
        strength: the published lambda; 0 gives all samples the same weight.
        reference: the mean loss of all clients. It enters every sample's weight, so it must itself have been released
            with noise. Without it, samples are clipped by `inner` alone.
        most: the factor is limited to [0, most]. The published factor can be negative, and a sample then exceeds
            the clip bound.
        inner: the rule that clips the scaled samples.

    >>> import torch
    >>> rule = Fair(strength=0.5, reference=1.0, most=2.0).for_losses(torch.tensor([1.0, 2.0, 9.0, -9.0]))
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

    @property
    def assumes_blocks(self) -> bool:
        return self.inner.assumes_blocks

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return self.inner.weights(norms, bound)

    def unclipped_weights(self, norms: Tensor) -> Tensor:
        return self.inner.unclipped_weights(norms)

    def for_losses(self, losses: Tensor) -> ClipRule:
        inner = self.inner.for_losses(losses)
        if self.reference is None:
            return inner
        factors = (1 + self.strength * (losses.double() - self.reference)).clamp(0.0, self.most)
        return _Scaled(factors[:, None], inner)


@dataclass(frozen=True)
class _Scaled(ClipRule):
    """The rule `inner` applied to samples that were multiplied by one factor each."""

    factors: Tensor
    """(B, 1)"""
    inner: ClipRule
    name = "scaled"

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return zero_non_finite(self.factors * self.inner.weights(self.factors * norms, bound), norms)

    def unclipped_weights(self, norms: Tensor) -> Tensor:
        return self.factors * self.inner.unclipped_weights(norms)
