"""Where a method projects: the order of projection, clipping and noise.

A route owns everything that depends on that order, so that nothing else asks which one a method takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gnomon.accounting import Expansion
from gnomon.errors import SettingError
from gnomon.subspaces import Basis, Subspace, inside, projected, seeing
from gnomon.updates import Updates

Vector = Mapping[str, Tensor]
"""One tensor for each name."""


@dataclass(frozen=True)
class Route:
    """The order of projection, clipping and noise. Routes differ in the methods that they override.

    Attributes:
        name: the stage before or after which the projection happens, for statements and listings.
        clips_coordinates: whether updates are clipped in the subspace.
        noise_scale_power: how often the singular values of the lift act on the noise on its way to the parameters.
    """

    name: ClassVar[str]
    clips_coordinates: ClassVar[bool] = False
    noise_scale_power: ClassVar[int] = 1

    def check(self, subspace: Subspace) -> None:
        """Raise SettingError if the subspace cannot be used on this route."""

    def release_shape(self, basis: Basis, parameters: Vector) -> Vector:
        """Return tensors in the shape in which noise is added."""
        return basis.like

    def coordinates(self, basis: Basis, updates: Updates) -> Updates:
        """Return the updates as they are clipped."""
        return updates

    def sketch(self, basis: Basis) -> Callable[[Vector], dict[str, Tensor]] | None:
        """Return the map from the clipped sum to what is noised, or None where the sum itself is noised."""
        return None

    def lifted_coordinates(self, basis: Basis, released: Vector) -> Vector:
        """Return what was released as coordinates of the subspace, ready for `basis.lift`."""
        return released

    def lift(self, basis: Basis, vector: Vector) -> dict[str, Tensor]:
        """Return what a vector in the shape of the clipped updates means for the parameters."""
        return projected(basis, vector)

    def expansion(self, subspace: Subspace) -> Expansion | None:
        """Return how far the clipped sum can be stretched before noise is added; None if it is not."""
        return None


@dataclass(frozen=True)
class ProjectThenClip(Route):
    """Each update is projected, clipped and noised in the coordinates of the subspace (PCDP-SGD).

    The bound holds in those coordinates, so any subspace will do.

    >>> ProjectThenClip().name
    'before clipping'
    """

    name: ClassVar[str] = "before clipping"
    clips_coordinates: ClassVar[bool] = True

    def coordinates(self, basis: Basis, updates: Updates) -> Updates:
        return basis.coordinates(updates)

    def lift(self, basis: Basis, vector: Vector) -> dict[str, Tensor]:
        return basis.lift(vector)


@dataclass(frozen=True)
class ClipThenProject(Route):
    """Updates are clipped and noised in all parameters, and the released sum is projected (PDP-SGD).

    The projection is post-processing, so any subspace will do.

    >>> ClipThenProject().name
    'after clipping'
    """

    name: ClassVar[str] = "after clipping"
    noise_scale_power: ClassVar[int] = 2

    def release_shape(self, basis: Basis, parameters: Vector) -> Vector:
        return parameters

    def lifted_coordinates(self, basis: Basis, released: Vector) -> Vector:
        return inside(basis, released)


@dataclass(frozen=True)
class ClipThenSketch(Route):
    """Updates are clipped in all parameters, and their sum is sketched before noise is added (DP-CompSGD).

    The subspace says how far its sketch stretches a change of the sum; the accounting counts that.

    >>> ClipThenSketch().name
    'between clipping and noise'
    """

    name: ClassVar[str] = "between clipping and noise"

    def check(self, subspace: Subspace) -> None:
        if getattr(subspace, "expansion", None) is None:
            allowed = "ProjectThenClip() or ClipThenProject(): only a GaussianSketch says how far it stretches a sum"
            raise SettingError("route", self.name, allowed)

    def sketch(self, basis: Basis) -> Callable[[Vector], dict[str, Tensor]]:
        return seeing(basis)

    def expansion(self, subspace: Subspace) -> Expansion | None:
        return getattr(subspace, "expansion", None)
