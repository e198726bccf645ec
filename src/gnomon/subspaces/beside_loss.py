"""The mean loss, released beside the update as one more coordinate of the same vector."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gnomon import validate
from gnomon.subspaces.basis import Basis, StepContext, Subspace, orthonormal_projection, public_projection
from gnomon.updates import Dense, Updates

LOSS = "~loss"
"""The coordinate's name; no parameter can be called so."""


@dataclass(frozen=True, eq=False)
class BesideLoss:
    """Another subspace and the sample's loss, cut to [0, most], as a last coordinate.

    Update and loss come from one batch. In units of the noise they are one vector, so one Gaussian release with one
    multiplier covers both: `s = (1 / s_update^2 + 1 / s_loss^2)^(-1/2)` with `s_loss = ratio * s_update`. `bound` is
    the clip bound C of the update. The released mean loss is an extra value of the release.

    >>> from gnomon.subspaces import Ambient
    >>> BesideLoss(Ambient(), bound=1.0, most=2.5).name
    'ambient, and the loss up to 2.5'
    """

    space: Subspace
    bound: float
    most: float = 2.5
    ratio: float = 2.5

    def __post_init__(self) -> None:
        validate.positive("bound", self.bound)
        validate.positive("most", self.most)
        validate.positive("ratio", self.ratio)

    @property
    def public(self) -> Any:
        return getattr(self.space, "public", None)

    @property
    def name(self) -> str:
        return f"{self.space.name}, and the loss up to {self.most:g}"

    def key(self, context: StepContext) -> Hashable:
        return self, self.space.key(context)

    def basis(self, context: StepContext) -> Basis:
        return BesideLossBasis(self.space.basis(context), self)


class BesideLossBasis:
    """The inner basis with one coordinate more."""

    def __init__(self, inner: Basis, about: BesideLoss) -> None:
        self.inner, self._about = inner, about
        self._scale = about.bound / (about.ratio * about.most)
        first = next(iter(inner.like.values()))
        self.like = {**inner.like, LOSS: first.new_zeros(1)}

    @property
    def rank(self) -> int | None:
        """The inner rank: the loss is not a direction."""
        return getattr(self.inner, "rank", None)

    @property
    def projection(self) -> Basis | None:
        """The projection of the inner basis: the loss is not a direction."""
        return orthonormal_projection(self.inner)

    @property
    def public_basis(self) -> Any:
        """The public part of the inner basis."""
        return public_projection(self.inner)

    def coordinates(self, updates: Updates) -> Updates:
        inner = self.inner.coordinates(updates)
        loss = updates.losses.clamp(0.0, self._about.most).mul(self._scale)[:, None]
        return Updates({**inner.leaves, LOSS: Dense(loss)}, updates.losses)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.inner.lift({name: value for name, value in vector.items() if name != LOSS})

    def extra(self, released: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the released mean loss, in units of the loss."""
        return {"loss": float(released[LOSS]) / self._scale}
