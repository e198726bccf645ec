"""What a subspace is: a rule that gives, at every step, a basis with two verbs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gnomon.randomness import NoiseSource
from gnomon.updates import Dense, Loss, Updates


@dataclass(frozen=True)
class StepContext:
    """Where training stands. Nothing in it is private: the weights have been released.

    >>> from gnomon.release import SeededNoise
    >>> context = StepContext(nn.Linear(2, 1), nn.MSELoss(reduction="none"), 0, 40, 3200, SeededNoise(0))
    >>> list(context.like)
    ['weight', 'bias']
    """

    model: nn.Module
    loss: Loss
    step: int
    steps_per_epoch: int
    steps: int
    randomness: NoiseSource

    @property
    def like(self) -> dict[str, Tensor]:
        """The trainable parameters."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}


class Basis(Protocol):
    """Two verbs. The release happens between them, in the shape of `like`."""

    @property
    def like(self) -> Mapping[str, Tensor]:
        """The shape of a vector of coordinates."""

    def coordinates(self, updates: Updates) -> Updates:
        """Each sample's update, seen in the subspace."""

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a vector of coordinates means for the parameters."""


@runtime_checkable
class Seeing(Protocol):
    """A basis that can turn a sum of clipped updates into what is noised. Its subspace says how far it stretches."""

    def see(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The coordinates of the sum; zero for zero."""


def seeing(basis: object) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """The way in which a basis sees a sum; an error if it has none.

    >>> seeing(AmbientBasis({}))
    Traceback (most recent call last):
    TypeError: AmbientBasis cannot see a sum before noise: it has no method `see`
    """
    if not isinstance(basis, Seeing):
        raise TypeError(f"{type(basis).__name__} cannot see a sum before noise: it has no method `see`")
    return basis.see


class Subspace(Protocol):
    """Gives the basis of each step, from public data and released weights alone."""

    @property
    def name(self) -> str:
        """For statements and logs."""

    def key(self, context: StepContext) -> Hashable:
        """Changes when a new basis is due."""

    def basis(self, context: StepContext) -> Basis: ...


class AmbientBasis:
    """All parameters, as they are."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self.like = like

    def coordinates(self, updates: Updates) -> Updates:
        return updates

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(vector)

    identity = True
    projection = None


@dataclass(frozen=True)
class Ambient:
    """No subspace: noise in all p dimensions, as in DP-SGD.

    >>> Ambient().name
    'ambient'
    """

    name = "ambient"

    def key(self, context: StepContext) -> Hashable:
        return 0

    def basis(self, context: StepContext) -> Basis:
        return AmbientBasis(context.like)


COORDINATES = "coordinates"


def in_coordinates(values: Tensor, losses: Tensor, ceilings: Tensor | None = None) -> Updates:
    """Coordinates (B, k) as updates, so that clipping and release treat them like any other.

    `ceilings` say how large the terms were that the coordinates are sums of.

    >>> in_coordinates(torch.ones(3, 2), torch.zeros(3)).norms()
    tensor([1.4142, 1.4142, 1.4142], dtype=torch.float64)
    """
    return Updates({COORDINATES: Dense(values, ceilings)}, losses)


def as_updates(vector: Mapping[str, Tensor]) -> Updates:
    """One vector by parameter, as the update of a single sample."""
    first = next(iter(vector.values()))
    return Updates({name: Dense(value[None]) for name, value in vector.items()}, first.new_zeros(1))


def projected(basis: Basis, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a released vector that lies in the subspace: post-processing, for any basis.

    >>> vector = {"weight": torch.tensor([1.0, 2.0])}
    >>> projected(AmbientBasis(vector), vector)["weight"]
    tensor([1., 2.])
    """
    return basis.lift(inside(basis, vector))


def inside(basis: Basis, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The coordinates of a released vector.

    >>> vector = {"weight": torch.tensor([1.0, 2.0])}
    >>> inside(AmbientBasis(vector), vector)["weight"]
    tensor([1., 2.])
    """
    seen = basis.coordinates(as_updates(vector))
    return seen.weighted_sum(torch.ones(1, device=seen.losses.device))


def is_identity(basis: Basis) -> bool:
    """Return whether coordinates are the parameters themselves, so that `lift` changes nothing.

    >>> is_identity(AmbientBasis({}))
    True
    """
    return bool(getattr(basis, "identity", False))


def orthonormal_projection(basis: Basis) -> Basis | None:
    """Return the orthonormal basis in which norms after projection are comparable with norms before it.

    A basis that is not an orthonormal projection names the one that it contains, or None, in an attribute
    `projection`; the default is the basis itself.

    >>> orthonormal_projection(AmbientBasis({})) is None
    True
    """
    return getattr(basis, "projection", basis)


def public_projection(basis: Basis) -> Any:
    """Return the basis spanned by public gradients that a basis is or contains, from its attribute `public_basis`.

    The default is None: the basis does not depend on public records.

    >>> public_projection(AmbientBasis({})) is None
    True
    """
    return getattr(basis, "public_basis", None)
