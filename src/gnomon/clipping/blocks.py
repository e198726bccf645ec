"""Clip rules for updates that consist of several parts, each with a bound of its own.

A subspace whose coordinates have such parts supplies the rule through `Subspace.clip_rule`, with the method's own rule
as `inner`. All parts of a sample are one vector, released once with one clip bound and one noise multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnomon import validate
from gnomon.clipping.rules import ClipRule, Flat, zero_non_finite

FLAT = Flat()


@dataclass(frozen=True)
class EmbeddingAndResidual(ClipRule):
    """The rule of GEP: clip the embedding (the first block) to C and the residual (all other blocks) to `residual * C`.

    Both parts are then scaled by `scales` to a length of at most `C / sqrt(2)`, so the whole stays within C. The lift
    divides by the same factors after the release. `inner` clips each part.

    >>> rule = EmbeddingAndResidual(residual=0.5)
    >>> norms = torch.tensor([[2.0, 0.0, 4.0]], dtype=torch.float64)
    >>> (rule.weights(norms, 1.0) * norms).square()
    tensor([[0.5000, 0.0000, 0.5000]], dtype=torch.float64)
    """

    residual: float = 0.4
    inner: ClipRule = FLAT

    assumes_blocks = True

    def __post_init__(self) -> None:
        validate.positive("residual", self.residual)

    @property
    def name(self) -> str:
        return f"{self.inner.name}, embedding and residual"

    @property
    def scales(self) -> tuple[float, float]:
        """The factors of the embedding and of the residual."""
        return 0.5**0.5, 0.5**0.5 / self.residual

    def for_losses(self, losses: Tensor) -> ClipRule:
        return replace(self, inner=self.inner.for_losses(losses))

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        embedding = self.inner.weights(norms[:, :1], bound) * self.scales[0]
        residual = self.inner.weights(norms[:, 1:], self.residual * bound) * self.scales[1]
        return zero_non_finite(torch.cat([embedding, residual.expand(-1, norms.shape[1] - 1)], 1), norms)

    def unclipped_weights(self, norms: Tensor) -> Tensor:
        embedding = self.inner.unclipped_weights(norms[:, :1]) * self.scales[0]
        residual = self.inner.unclipped_weights(norms[:, 1:]) * self.scales[1]
        return torch.cat([embedding, residual.expand(-1, norms.shape[1] - 1)], 1)


@dataclass(frozen=True)
class UpdateAndLoss(ClipRule):
    """The rule of `subspaces.BesideLoss`: an update, and the sample's loss as the last block.

    `inner` clips the update to C. The loss was cut to its own bound before and is at most `C / ratio` long, so its
    noise multiplier is `ratio` times that of the update. The bound of both together, which is the clip bound of the
    release, is `joint(C)`.

    >>> rule = UpdateAndLoss(ratio=2.0)
    >>> norms = torch.tensor([[3.0, 0.5]], dtype=torch.float64)
    >>> (rule.weights(norms, rule.joint(1.0)) * norms).round(decimals=6)
    tensor([[1.0000, 0.5000]], dtype=torch.float64)
    """

    ratio: float = 2.5
    inner: ClipRule = FLAT

    assumes_blocks = True

    def __post_init__(self) -> None:
        validate.positive("ratio", self.ratio)

    @property
    def name(self) -> str:
        return f"{self.inner.name}, loss beside it"

    def joint(self, bound: float) -> float:
        """Return the bound of update and loss together, for an update that is clipped to `bound`."""
        return float(bound * (1 + self.ratio**-2) ** 0.5)

    def for_losses(self, losses: Tensor) -> ClipRule:
        return replace(self, inner=self.inner.for_losses(losses))

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        update = self.inner.weights(norms[:, :-1], bound / self.joint(1.0)).expand(-1, norms.shape[1] - 1)
        return zero_non_finite(torch.cat([update, torch.ones_like(norms[:, -1:])], 1), norms)

    def unclipped_weights(self, norms: Tensor) -> Tensor:
        update = self.inner.unclipped_weights(norms[:, :-1]).expand(-1, norms.shape[1] - 1)
        return torch.cat([update, torch.ones_like(norms[:, -1:])], 1)
