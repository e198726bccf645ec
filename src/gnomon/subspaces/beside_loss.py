"""A subspace whose release carries the mean loss as one more coordinate of the same vector."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from gnomon import validate
from gnomon.clipping import ClipRule, UpdateAndLoss
from gnomon.subspaces.basis import Basis, StepContext, Subspace
from gnomon.updates import Dense, Updates

LOSS = "~loss"
"""The name of the loss coordinate, which cannot be the name of a parameter."""


@dataclass(frozen=True, eq=False)
class BesideLoss(Subspace):
    """Another subspace, with the sample's loss, cut to [0, most], as a last coordinate.

    Update and loss of a sample come from the same batch. In units of the noise they are one vector, so one Gaussian
    release with one noise multiplier covers both: `s = (1 / s_update^2 + 1 / s_loss^2)^(-1/2)` with
    `s_loss = ratio * s_update`. The released mean loss is `Basis.extra`'s value "loss".

    Args:
        space: the subspace of the update.
        bound: the clip bound C of the update. The clip bound of the release is `UpdateAndLoss(ratio).joint(bound)`.
        most: the largest loss; larger ones are cut to it.
        ratio: the noise multiplier of the loss in units of that of the update.

    >>> from gnomon.subspaces import Ambient
    >>> BesideLoss(Ambient(), bound=1.0, most=2.5).name
    'ambient, and the loss up to 2.5'
    """

    space: Subspace
    bound: float
    most: float = 2.5
    ratio: float = 2.5

    requires_clipped_coordinates = True

    def __post_init__(self) -> None:
        validate.positive("bound", self.bound)
        validate.positive("most", self.most)
        validate.positive("ratio", self.ratio)

    @property
    def public(self) -> Any:
        return self.space.public

    @property
    def name(self) -> str:
        return f"{self.space.name}, and the loss up to {self.most:g}"

    def key(self, context: StepContext) -> Hashable:
        return self, self.space.key(context)

    def basis(self, context: StepContext) -> Basis:
        return BesideLossBasis(self.space.basis(context), self.most, self.bound / (self.ratio * self.most))

    def clip_rule(self, rule: ClipRule) -> ClipRule:
        return UpdateAndLoss(self.ratio, self.space.clip_rule(rule))


class BesideLossBasis(Basis):
    """The basis of an update with the loss, cut to [0, most] and multiplied by `scale`, as one coordinate more."""

    def __init__(self, inner: Basis, most: float, scale: float) -> None:
        self.inner, self._most, self._scale = inner, most, scale

    @cached_property
    def like(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        first = next(iter(self.inner.like.values()))
        return {**self.inner.like, LOSS: first.new_zeros(1)}

    @property
    def rank(self) -> int | None:
        """The rank of the inner basis: the loss is not a direction of the parameters."""
        return self.inner.rank

    @property
    def projection(self) -> Basis | None:
        """The projection of the inner basis: the loss is not a direction."""
        return self.inner.projection

    @property
    def public_basis(self) -> Any:
        """The public part of the inner basis."""
        return self.inner.public_basis

    def coordinates(self, updates: Updates) -> Updates:
        inner = self.inner.coordinates(updates)
        loss = updates.losses.clamp(0.0, self._most).mul(self._scale)[:, None]
        return Updates({**inner.leaves, LOSS: Dense(loss)}, updates.losses)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.inner.lift({name: value for name, value in vector.items() if name != LOSS})

    def extra(self, released: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the released mean loss, in units of the loss."""
        return {"loss": float(released[LOSS]) / self._scale}
