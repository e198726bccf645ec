"""Random sparsification: a random part of the parameters is left out of the updates and of the noise."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from torch import Tensor

from gnomon import validate
from gnomon.subspaces.basis import Basis, StepContext, Subspace
from gnomon.updates import Updates
from gnomon.updates.leaves import Masked


@dataclass(frozen=True)
class RandomMask(Subspace):
    """A random mask that sets a fraction of the coordinates of every gradient, and of the noise, to zero.

    All samples share the mask, which is drawn from public randomness.

    Args:
        rate: the expected fraction of coordinates that are set to zero.
        cooling: let the rate grow from 0 to `rate` over the run (Zhu and Blaschko 2023); default: constant.
        refreshes: the number of masks per epoch.

    >>> RandomMask(0.3).name
    'random mask, rate 0.3'
    """

    rate: float = 0.3
    cooling: bool = False
    refreshes: int = 1

    def __post_init__(self) -> None:
        validate.probability("rate", self.rate)
        validate.whole("refreshes", self.refreshes)

    @property
    def name(self) -> str:
        return f"random mask, rate {self.rate:g}" + (", cooling" if self.cooling else "")

    def key(self, context: StepContext) -> Hashable:
        return context.step * self.refreshes // context.steps_per_epoch

    def rate_at(self, context: StepContext) -> float:
        """Return the rate at a step."""
        if not self.cooling:
            return self.rate
        last = max(1, context.steps * self.refreshes // context.steps_per_epoch - 1)
        current = context.step * self.refreshes // context.steps_per_epoch
        return min(self.rate, self.rate * current / last)

    def basis(self, context: StepContext) -> Basis:
        rate = self.rate_at(context)
        masks = {
            name: (context.randomness.uniform(p.numel()) >= rate).reshape(p.shape).to(p)
            for name, p in context.like.items()
        }
        return MaskBasis(context.like, masks)


class MaskBasis(Basis):
    """The basis of the unmasked parameters. Noise on the masked ones is drawn too, and the lift drops it."""

    def __init__(self, like: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
        self.like, self._masks = like, masks

    def coordinates(self, updates: Updates) -> Updates:
        leaves = {name: Masked(leaf, self._masks[name]) for name, leaf in updates.leaves.items()}
        return Updates(leaves, updates.losses)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value * self._masks[name] for name, value in vector.items()}
