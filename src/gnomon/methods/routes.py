"""Routes: the order of projection, clipping and noise, and the published forms of sketched methods.

A route owns everything that depends on that order, so no other code asks which route a method takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gnomon.accounting import Expansion
from gnomon.errors import SettingError
from gnomon.subspaces import Basis, Subspace, coordinates_of, projected
from gnomon.updates import Updates

Vector = Mapping[str, Tensor]
"""A vector as one tensor for each name."""


@dataclass(frozen=True)
class Route:
    """The order of projection, clipping and noise. Subclasses override what differs from one order to another.

    Attributes:
        name: the position of the projection, for statements and listings.
        clips_coordinates: whether updates are clipped in the coordinates of the subspace.
        noise_scale_power: how many times the singular values of the lift scale the noise before it reaches the
            parameters.
    """

    name: ClassVar[str]
    clips_coordinates: ClassVar[bool] = False
    noise_scale_power: ClassVar[int] = 1

    def check(self, subspace: Subspace, *, private: bool = True) -> None:
        """Raise SettingError if the subspace cannot be used on this route, in a private or a non-private method."""
        if subspace.requires_clipped_coordinates and not self.clips_coordinates:
            expected = (
                f"ProjectThenClip() for the subspace '{subspace.name}', whose parts have clip bounds of their own"
            )
            raise SettingError("route", self.name, expected)

    def release_shape(self, basis: Basis, parameters: Vector) -> Vector:
        """Return tensors in the shape in which noise is added."""
        return basis.like

    def coordinates(self, basis: Basis, updates: Updates) -> Updates:
        """Return the updates in the form in which they are clipped."""
        return updates

    def sketch(self, basis: Basis) -> Callable[[Vector], dict[str, Tensor]] | None:
        """Return the map from the clipped sum to the vector that gets noise; None if the sum itself gets it."""
        return None

    def lifted_coordinates(self, basis: Basis, released: Vector) -> Vector:
        """Return a release as coordinates of the subspace, ready for `basis.lift`."""
        return released

    def lift(self, basis: Basis, vector: Vector) -> dict[str, Tensor]:
        """Return the change of the parameters that a vector in the shape of the clipped updates stands for."""
        return projected(basis, vector)

    def expansion(self, subspace: Subspace) -> Expansion | None:
        """Return the bound on how far the clipped sum is stretched before noise is added; None if it is not."""
        return None


@dataclass(frozen=True)
class ProjectThenClip(Route):
    """Project each update, then clip it and add noise in the coordinates of the subspace (PCDP-SGD).

    The clip bound holds in the coordinates, so the privacy guarantee holds for any subspace.

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
    """Clip updates and add noise in all parameters, then project the released sum (PDP-SGD).

    The projection is post-processing, so the privacy guarantee holds for any subspace.

    >>> ClipThenProject().name
    'after clipping'
    """

    name: ClassVar[str] = "after clipping"
    noise_scale_power: ClassVar[int] = 2

    def release_shape(self, basis: Basis, parameters: Vector) -> Vector:
        return parameters

    def lifted_coordinates(self, basis: Basis, released: Vector) -> Vector:
        return coordinates_of(basis, released)


@dataclass(frozen=True)
class ClipThenSketch(Route):
    """Clip updates in all parameters, then sketch their sum and add noise to the sketch (DP-CompGD as published).

    The sketch can stretch the change that one record makes. In a private method the subspace must state by how much
    (`Subspace.expansion`), and the accounting includes it.

    >>> ClipThenSketch().name
    'between clipping and noise'
    """

    name: ClassVar[str] = "between clipping and noise"

    def check(self, subspace: Subspace, *, private: bool = True) -> None:
        super().check(subspace, private=private)
        if not subspace.sketches_sums:
            expected = "ProjectThenClip() or ClipThenProject(), because only a GaussianSketch can sketch a sum"
            raise SettingError("route", self.name, expected)
        if private and subspace.expansion is None:
            expected = (
                "ProjectThenClip() or ClipThenProject() for a subspace without a bound on how far it stretches a sum"
            )
            raise SettingError("route", self.name, expected)

    def sketch(self, basis: Basis) -> Callable[[Vector], dict[str, Tensor]]:
        return basis.sketch_sum

    def expansion(self, subspace: Subspace) -> Expansion | None:
        return subspace.expansion


@dataclass(frozen=True)
class Form:
    """A form of the published sketched step: the route, and whether a sketch is scaled to the length of its vector.

    >>> PUBLISHED_WHOLE_BATCH_NORMALISER.route.name
    'between clipping and noise'
    """

    name: str
    route: Route
    normalised: bool


CLIP_AFTER_SKETCH = Form("clip-after-sketch", ProjectThenClip(), normalised=False)
"""Form A, `u_i = clip(Phi g_i, C)`: sensitivity C for every Phi, with any sampling scheme and any accountant."""

PER_SAMPLE_NORMALISER = Form("per-sample-normaliser", ProjectThenClip(), normalised=True)
"""Form B: `u_i` has the length of `clip(g_i, C)` and the direction of `Phi g_i`. Sensitivity C for every Phi."""

LINEAR_SKETCH = Form("linear-sketch", ClipThenSketch(), normalised=False)
"""Form C, `Phi sum clip(g_i, C)`: the fastest form. The accounting over the law of Phi is exact for full batches and an
upper bound otherwise."""

PUBLISHED_WHOLE_BATCH_NORMALISER = Form("published-whole-batch-normaliser", ClipThenSketch(), normalised=True)
"""Form D, `|S| Phi S / |Phi S|` for the clipped sum S, as published. The published sensitivity is false. The accounting
here includes the factor kappa, which makes the form costlier than the other three; it is kept for comparison with the
paper."""

FORMS = {
    form.name: form
    for form in (CLIP_AFTER_SKETCH, PER_SAMPLE_NORMALISER, LINEAR_SKETCH, PUBLISHED_WHOLE_BATCH_NORMALISER)
}
"""The forms by their names on the command line."""
