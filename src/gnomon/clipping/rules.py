"""What a clip rule is, and the rules of the literature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gnomon import validate


class ClipRule(Protocol):
    """How much may each sample count?

    `weights(norms, bound)` gets each sample's norms by block, float64, (B, blocks): one column for each
    parameter tensor, or a single one in subspace coordinates. It returns (B, 1), one weight a sample, or
    (B, blocks), such that `|(w_i1 n_i1, w_i2 n_i2, ...)| <= bound` for every sample. Norms may be zero,
    denormal, huge or non-finite; a non-finite norm gets the weight zero. The release checks all of this
    again.
    """

    @property
    def name(self) -> str:
        """For statements and logs."""

    def weights(self, norms: Tensor, bound: float) -> Tensor: ...


@runtime_checkable
class Scaling(Protocol):
    """A rule that also scales samples which it leaves whole."""

    def uncut(self, norms: Tensor) -> Tensor:
        """Their weights, in the shape of those of `weights`."""


def uncut(rule: ClipRule, norms: Tensor) -> Tensor:
    """What samples weigh that a rule does not clip.

    >>> uncut(Flat(), torch.zeros(2, 3)).squeeze(1)
    tensor([1., 1.])
    """
    return rule.uncut(norms) if isinstance(rule, Scaling) else torch.ones_like(norms[:, :1])


def total(norms: Tensor) -> Tensor:
    """Each sample's norm over all blocks, (B, 1), without overflow on the way.

    >>> total(torch.tensor([[3e200, 4e200]], dtype=torch.float64))
    tensor([[5.0000e+200]], dtype=torch.float64)
    """
    largest = norms.amax(1, keepdim=True) if norms.shape[1] else norms.new_zeros(len(norms), 1)
    scale = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    return (norms / scale).square().sum(1, keepdim=True).sqrt() * scale


def finite(weights: Tensor, norms: Tensor) -> Tensor:
    """The weights, exactly zero where a norm is not finite."""
    usable = torch.isfinite(norms).all(1, keepdim=True) & torch.isfinite(weights)
    return torch.where(usable, weights, 0.0)


@dataclass(frozen=True)
class Flat:
    """`g min(1, C / |g|)`: short gradients stay as they are (Abadi et al. 2016).

    >>> Flat().weights(torch.tensor([[0.5], [4.0]], dtype=torch.float64), 1.0).squeeze(1)
    tensor([1.0000, 0.2500], dtype=torch.float64)
    """

    name = "flat"

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return finite((bound / total(norms)).clamp_max(1.0), norms)


@dataclass(frozen=True)
class Automatic:
    """`C g / (|g| + gamma)`, Auto-S (Bu et al. 2022): no threshold to tune, only a scale.

    >>> Automatic(gamma=1.0).weights(torch.tensor([[0.0], [1.0]], dtype=torch.float64), 2.0).squeeze(1)
    tensor([2., 1.], dtype=torch.float64)
    """

    gamma: float = 0.01
    name = "automatic"

    def __post_init__(self) -> None:
        validate.positive("gamma", self.gamma)

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return finite(bound / (total(norms) + self.gamma), norms)


@dataclass(frozen=True)
class Normalised:
    """`C g / (r + |g|)`, NSGD (Yang et al. 2022).

    The same function as Automatic with `r` in place of `gamma`; both names are kept as published.

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
class PSAC:
    """`C g / (|g| + r / (|g| + r))`, DP-PSAC (Xia et al. 2023): small gradients are not blown up.

    >>> PSAC(r=1.0).weights(torch.tensor([[1.0]], dtype=torch.float64), 3.0)
    tensor([[2.]], dtype=torch.float64)
    """

    r: float = 0.0001
    name = "psac"

    def __post_init__(self) -> None:
        validate.positive("r", self.r)

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        norm = total(norms)
        return finite(bound / (norm + self.r / (norm + self.r)), norms)


@dataclass(frozen=True)
class PerLayer:
    """Each of the L parameter tensors is clipped on its own to `C / sqrt(L)`, so the whole stays within C.

    >>> PerLayer().weights(torch.tensor([[2.0, 0.1]], dtype=torch.float64), 2**0.5)
    tensor([[0.5000, 1.0000]], dtype=torch.float64)
    """

    name = "per-layer flat"

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return finite((bound / norms.shape[1] ** 0.5 / norms).clamp_max(1.0), norms)


@dataclass(frozen=True)
class EmbeddingAndResidual:
    """Two parts of one update, the first block and all others: the first is clipped to C, the rest to `residual` C.

    Both are then scaled to at most `C / sqrt(2)`, so that the whole stays within C; `scales` are the factors that a
    lift divides by. `inner` clips each part.

    >>> rule = EmbeddingAndResidual(residual=0.5)
    >>> norms = torch.tensor([[2.0, 0.0, 4.0]], dtype=torch.float64)
    >>> (rule.weights(norms, 1.0) * norms).square()
    tensor([[0.5000, 0.0000, 0.5000]], dtype=torch.float64)
    """

    residual: float = 0.4
    inner: ClipRule = Flat()

    def __post_init__(self) -> None:
        validate.positive("residual", self.residual)

    @property
    def name(self) -> str:
        return f"{self.inner.name}, embedding and residual"

    @property
    def scales(self) -> tuple[float, float]:
        return 0.5**0.5, 0.5**0.5 / self.residual

    def given(self, losses: Tensor) -> ClipRule:
        """The rule, its inner one told the losses if it asks for them."""
        told = getattr(self.inner, "given", None)
        return self if told is None else replace(self, inner=told(losses))

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        first = self.inner.weights(norms[:, :1], bound) * self.scales[0]
        rest = self.inner.weights(norms[:, 1:], self.residual * bound) * self.scales[1]
        return finite(torch.cat([first, rest.expand(-1, norms.shape[1] - 1)], 1), norms)

    def uncut(self, norms: Tensor) -> Tensor:
        first = uncut(self.inner, norms[:, :1]) * self.scales[0]
        rest = uncut(self.inner, norms[:, 1:]) * self.scales[1]
        return torch.cat([first, rest.expand(-1, norms.shape[1] - 1)], 1)
