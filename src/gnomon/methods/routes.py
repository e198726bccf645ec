"""Where a method projects: the order of projection, clipping and noise.

A route owns everything that depends on that order, so that nothing else asks which one a method takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gnomon import validate
from gnomon.accounting import Expansion
from gnomon.subspaces import Basis, Subspace, inside, projected, seeing
from gnomon.updates import Updates

Vector = Mapping[str, Tensor]
"""One tensor for each name."""


class Route(Protocol):
    """The order of projection, clipping and noise."""

    @property
    def name(self) -> str:
        """The stage before or after which the projection happens, for statements and listings."""

    @property
    def clips_coordinates(self) -> bool:
        """Whether updates are clipped in the subspace."""

    @property
    def noise_scale_power(self) -> int:
        """How often the singular values of the lift act on the noise on its way to the parameters."""

    def check(self, subspace: Subspace) -> None:
        """Raise SettingError if the subspace cannot be used on this route."""

    def release_shape(self, basis: Basis, parameters: Vector) -> Vector:
        """Return tensors in the shape in which noise is added."""

    def coordinates(self, basis: Basis, updates: Updates) -> Updates:
        """Return the updates as they are clipped."""

    def sketch(self, basis: Basis) -> Callable[[Vector], dict[str, Tensor]] | None:
        """Return the map from the clipped sum to what is noised, or None where the sum itself is noised."""

    def lifted_coordinates(self, basis: Basis, released: Vector) -> Vector:
        """Return what was released as coordinates of the subspace, ready for `basis.lift`."""

    def lift(self, basis: Basis, vector: Vector) -> dict[str, Tensor]:
        """Return what a vector in the shape of the clipped updates means for the parameters."""

    def expansion(self, subspace: Subspace) -> Expansion | None:
        """Return how far the clipped sum can be stretched before noise is added; None if it is not."""


@dataclass(frozen=True)
class ProjectThenClip:
    """Each update is projected, clipped and noised in the coordinates of the subspace (PCDP-SGD).

    >>> ProjectThenClip().name
    'before clipping'
    """

    name = "before clipping"
    clips_coordinates = True
    noise_scale_power = 1

    def check(self, subspace: Subspace) -> None:
        """Any subspace will do: the bound holds in its coordinates."""

    def release_shape(self, basis: Basis, parameters: Vector) -> Vector:
        return basis.like

    def coordinates(self, basis: Basis, updates: Updates) -> Updates:
        return basis.coordinates(updates)

    def sketch(self, basis: Basis) -> None:
        return None

    def lifted_coordinates(self, basis: Basis, released: Vector) -> Vector:
        return released

    def lift(self, basis: Basis, vector: Vector) -> dict[str, Tensor]:
        return basis.lift(vector)

    def expansion(self, subspace: Subspace) -> None:
        return None


@dataclass(frozen=True)
class ClipThenProject:
    """Updates are clipped and noised in all parameters, and the released sum is projected (PDP-SGD).

    >>> ClipThenProject().name
    'after clipping'
    """

    name = "after clipping"
    clips_coordinates = False
    noise_scale_power = 2

    def check(self, subspace: Subspace) -> None:
        """Any subspace will do: the projection is post-processing."""

    def release_shape(self, basis: Basis, parameters: Vector) -> Vector:
        return parameters

    def coordinates(self, basis: Basis, updates: Updates) -> Updates:
        return updates

    def sketch(self, basis: Basis) -> None:
        return None

    def lifted_coordinates(self, basis: Basis, released: Vector) -> Vector:
        return inside(basis, released)

    def lift(self, basis: Basis, vector: Vector) -> dict[str, Tensor]:
        return projected(basis, vector)

    def expansion(self, subspace: Subspace) -> None:
        return None


@dataclass(frozen=True)
class ClipThenSketch:
    """Updates are clipped in all parameters, and their sum is sketched before noise is added (DP-CompSGD).

    The subspace says how far its sketch stretches a change of the sum; the accounting counts that.

    >>> ClipThenSketch().name
    'between clipping and noise'
    """

    name = "between clipping and noise"
    clips_coordinates = False
    noise_scale_power = 1

    def check(self, subspace: Subspace) -> None:
        if getattr(subspace, "expansion", None) is None:
            allowed = "ProjectThenClip() or ClipThenProject(): only a GaussianSketch says how far it stretches a sum"
            raise validate.SettingError("route", self.name, allowed)

    def release_shape(self, basis: Basis, parameters: Vector) -> Vector:
        return basis.like

    def coordinates(self, basis: Basis, updates: Updates) -> Updates:
        return updates

    def sketch(self, basis: Basis) -> Callable[[Vector], dict[str, Tensor]]:
        return seeing(basis)

    def lifted_coordinates(self, basis: Basis, released: Vector) -> Vector:
        return released

    def lift(self, basis: Basis, vector: Vector) -> dict[str, Tensor]:
        return projected(basis, vector)

    def expansion(self, subspace: Subspace) -> Expansion | None:
        return getattr(subspace, "expansion", None)
