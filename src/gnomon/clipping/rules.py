"""The interface of clip rules, and the clip rules of the literature.

A clip rule decides how much each sample counts: it maps the norms of a sample's update to a weight. Rules are
stateless, and the weight of a sample depends on that sample alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon import validate


class ClipRule(ABC):
    """A rule for the weight of each sample in the sum. A subclass defines `name` and `weights`.

    The release enforces the bound again, so a faulty rule costs accuracy and never privacy. A rule whose weight for a
    sample depends on other samples is refused before the first step.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The text used in statements and logs."""

    @property
    def assumes_blocks(self) -> bool:
        """Whether the rule is made for the blocks of one subspace, which supplies it itself (`Subspace.clip_rule`)."""
        return False

    @abstractmethod
    def weights(self, norms: Tensor, bound: float) -> Tensor:
        """Return the weight of each sample.

        Args:
            norms: (B, blocks), float64: the norm of each block of each sample's update. A block is a parameter tensor,
                or a block of subspace coordinates. Norms may be zero, denormal, huge or non-finite.
            bound: the clip bound C.

        Returns:
            (B, 1), or (B, blocks) for a rule that weighs blocks differently, with
            `|(w_i1 n_i1, w_i2 n_i2, ...)| <= bound` for every sample i, and zero where a norm is not finite.
        """

    def unclipped_weights(self, norms: Tensor) -> Tensor:
        """Return the weights that samples have where this rule does not clip them, in the shape of `weights`.

        They are 1 unless the rule also scales the samples that it does not clip. Metrics need them to tell which
        samples were clipped.

        >>> Flat().unclipped_weights(torch.zeros(2, 3)).squeeze(1)
        tensor([1., 1.])
        """
        return torch.ones_like(norms[:, :1])

    def for_losses(self, losses: Tensor) -> ClipRule:
        """Return the rule for samples with these losses, (B,). Only rules that depend on the loss override it.

        >>> Flat().for_losses(torch.ones(2)).name
        'flat'
        """
        return self


def total(norms: Tensor) -> Tensor:
    """Return each sample's norm over all blocks, (B, 1), without overflow or underflow of the squares.

    >>> total(torch.tensor([[3e200, 4e200]], dtype=torch.float64))
    tensor([[5.0000e+200]], dtype=torch.float64)
    """
    if norms.shape[1] == 1:
        return norms
    largest = norms.amax(1, keepdim=True) if norms.shape[1] else norms.new_zeros(len(norms), 1)
    limits = torch.finfo(norms.dtype)
    scale = largest.clamp(limits.tiny, limits.max)  # finite and not zero, also where the largest norm is neither
    return (norms / scale).square_().sum(1, keepdim=True).sqrt_().mul_(scale)


def surely_finite(values: Tensor) -> bool:
    """Return True only if no value is NaN or infinite; False if one is, or if finding out would take long.

    >>> surely_finite(torch.ones(2)), surely_finite(torch.tensor([1.0, torch.nan]))
    (True, False)
    """
    return values.is_cpu and math.isfinite(float(values.sum()))


def zero_non_finite(weights: Tensor, norms: Tensor) -> Tensor:
    """Return the weights with exactly zero for samples that have a non-finite norm, and in place of NaN or infinity."""
    if len(weights) == len(norms) and surely_finite(weights) and surely_finite(norms):
        return weights
    usable = torch.isfinite(norms).all(1, keepdim=True) & torch.isfinite(weights)
    return torch.where(usable, weights, 0.0)


@dataclass(frozen=True)
class Flat(ClipRule):
    """Flat clipping, `g min(1, C / |g|)`: gradients shorter than C keep their length (Abadi et al. 2016).

    >>> Flat().weights(torch.tensor([[0.5], [4.0]], dtype=torch.float64), 1.0).squeeze(1)
    tensor([1.0000, 0.2500], dtype=torch.float64)
    """

    name = "flat"

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return zero_non_finite((bound / total(norms)).clamp_max(1.0), norms)


@dataclass(frozen=True)
class Automatic(ClipRule):
    """Automatic clipping, `C g / (|g| + gamma)`: C is a scale and no threshold to tune (Auto-S, Bu et al. 2022).

    >>> Automatic(gamma=1.0).weights(torch.tensor([[0.0], [1.0]], dtype=torch.float64), 2.0).squeeze(1)
    tensor([2., 1.], dtype=torch.float64)
    """

    gamma: float = 0.01
    name = "automatic"

    def __post_init__(self) -> None:
        validate.positive("gamma", self.gamma)

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return zero_non_finite(bound / (total(norms) + self.gamma), norms)


@dataclass(frozen=True)
class Normalised(ClipRule):
    """Normalised gradients, `C g / (r + |g|)` (NSGD, Yang et al. 2022).

    The same function as `Automatic` with `r` in place of `gamma`. Both papers' names are kept.

    >>> Normalised(r=1.0).weights(torch.tensor([[3.0]], dtype=torch.float64), 1.0)
    tensor([[0.2500]], dtype=torch.float64)
    """

    r: float = 0.01
    name = "normalised"

    def __post_init__(self) -> None:
        validate.positive("r", self.r)

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return Automatic(gamma=self.r).weights(norms, bound)


@dataclass(frozen=True)
class PSAC(ClipRule):
    """Per-sample adaptive clipping, `C g / (|g| + r / (|g| + r))` (DP-PSAC, Xia et al. 2023).

    As the norm goes to zero the weight goes to C, where that of `Automatic` goes to `C / gamma`.

    >>> PSAC(r=1.0).weights(torch.tensor([[1.0]], dtype=torch.float64), 3.0)
    tensor([[2.]], dtype=torch.float64)
    """

    r: float = 0.0001
    name = "psac"

    def __post_init__(self) -> None:
        validate.positive("r", self.r)

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        norm = total(norms)
        return zero_non_finite(bound / (norm + self.r / (norm + self.r)), norms)


@dataclass(frozen=True)
class PerLayer(ClipRule):
    """Per-layer clipping: each of the L parameter tensors is clipped to `C / sqrt(L)`, so the whole stays within C.

    >>> PerLayer().weights(torch.tensor([[2.0, 0.1]], dtype=torch.float64), 2**0.5)
    tensor([[0.5000, 1.0000]], dtype=torch.float64)
    """

    name = "per-layer flat"

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return zero_non_finite((bound / norms.shape[1] ** 0.5 / norms).clamp_max(1.0), norms)


RULES: dict[str, type[ClipRule]] = {
    "flat": Flat,
    "automatic": Automatic,
    "normalised": Normalised,
    "psac": PSAC,
    "per-layer": PerLayer,
}
"""The clip rules by their names on the command line."""
