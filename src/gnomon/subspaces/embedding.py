"""Gradient embedding: coordinates in a public eigenspace, and what is left outside it, in one release."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gnomon import validate
from gnomon.clipping import EmbeddingAndResidual
from gnomon.errors import SettingError
from gnomon.subspaces.basis import COORDINATES, Basis, StepContext
from gnomon.subspaces.eigenspace import PublicEigenspace, SharedBasis
from gnomon.updates import Updates
from gnomon.updates.leaves import Residual


@dataclass(frozen=True, eq=False)
class Embedding:
    """Embedding and residual of GEP (Yu et al. 2021) as one vector.

    The embedding is clipped to C, the residual to `residual` times C, and each gets noise in proportion (clip
    rule `EmbeddingAndResidual`). Both come from the same batch, so they are one Gaussian release of a vector
    whose two parts are at most C / sqrt(2) long each, and are scaled back after it.

    >>> import torch
    >>> public = (torch.randn(20, 3), torch.randint(0, 2, (20,)))
    >>> Embedding(PublicEigenspace(public, rank=4), residual=0.4).name
    'public eigenspace, rank 4, and 0.4 x residual'
    """

    space: PublicEigenspace
    residual: float = 0.4

    def __post_init__(self) -> None:
        validate.positive("residual", self.residual)
        if self.space.start:
            raise SettingError("start", self.space.start, "0 with a residual")
        if self.space.per_tensor:
            raise SettingError("per_tensor", True, "one shared subspace for embeddings")

    @property
    def public(self) -> Any:
        return self.space.public

    @property
    def name(self) -> str:
        return f"{self.space.name}, and {self.residual:g} x residual"

    def key(self, context: StepContext) -> Hashable:
        return self.space.key(context)

    def basis(self, context: StepContext) -> Basis:
        inside = self.space.basis(context)
        assert isinstance(inside, SharedBasis)
        return EmbeddingBasis(inside, context.like, self.residual)


class EmbeddingBasis:
    """The coordinates first, then the residual by parameter."""

    def __init__(self, inside: SharedBasis, like: Mapping[str, Tensor], residual: float) -> None:
        self._inside, self._residual = inside, residual
        self.like = {**inside.like, **like}

    @property
    def inside(self) -> SharedBasis:
        """The public subspace alone, without the residual."""
        return self._inside

    projection = public_basis = inside  # the residual is outside the public subspace

    def coordinates(self, updates: Updates) -> Updates:
        inside = self._inside.coordinates(updates).leaves[COORDINATES]
        values = inside.dense()  # (B, k)
        parts = values @ self._inside.mixing.T  # (B, m)
        outside = {
            name: Residual(leaf, self._inside.public.leaves[name], parts) for name, leaf in updates.leaves.items()
        }
        return Updates({COORDINATES: inside, **outside}, updates.losses)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        back = EmbeddingAndResidual(self._residual).scales
        lifted = self._inside.lift({COORDINATES: vector[COORDINATES] / back[0]})
        return {name: lifted[name] + vector[name] / back[1] for name in lifted}
