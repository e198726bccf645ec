"""Gradient embedding (GEP): coordinates in a public eigenspace and the residual outside it, in one release."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from gnomon import validate
from gnomon.clipping import ClipRule, EmbeddingAndResidual
from gnomon.errors import SettingError
from gnomon.subspaces.basis import COORDINATES, Basis, StepContext, Subspace
from gnomon.subspaces.eigenspace import PublicEigenspace, SharedBasis
from gnomon.updates import Updates
from gnomon.updates.leaves import Residual


@dataclass(frozen=True, eq=False)
class Embedding(Subspace):
    """Embedding and residual of GEP (Yu et al. 2021) as one vector.

    The embedding is clipped to C, the residual to `residual` times C, and each gets noise in proportion (clip rule
    `EmbeddingAndResidual`). Both come from the same batch, so they are one Gaussian release of a vector whose two
    parts are at most `C / sqrt(2)` long each. The lift scales them back.

    Args:
        space: the public eigenspace; one for all parameters, from the first epoch on.
        residual: the clip bound of the residual in units of that of the embedding.

    >>> import torch
    >>> public = (torch.randn(20, 3), torch.randint(0, 2, (20,)))
    >>> Embedding(PublicEigenspace(public, rank=4), residual=0.4).name
    'public eigenspace, rank 4, and 0.4 x residual'
    """

    space: PublicEigenspace
    residual: float = 0.4

    requires_clipped_coordinates = True

    def __post_init__(self) -> None:
        validate.positive("residual", self.residual)
        if self.space.start:
            raise SettingError("start", self.space.start, "0 for a gradient embedding")
        if self.space.per_tensor:
            raise SettingError("per_tensor", True, "False for a gradient embedding, which has one shared subspace")

    @property
    def public(self) -> Any:
        return self.space.public

    @property
    def name(self) -> str:
        return f"{self.space.name}, and {self.residual:g} x residual"

    def key(self, context: StepContext) -> Hashable:
        return self.space.key(context)

    def basis(self, context: StepContext) -> Basis:
        embedding = self.space.basis(context)
        assert isinstance(embedding, SharedBasis)  # neither per_tensor nor start, which __post_init__ excludes
        return EmbeddingBasis(embedding, context.like, EmbeddingAndResidual(self.residual).scales)

    def clip_rule(self, rule: ClipRule) -> ClipRule:
        return EmbeddingAndResidual(self.residual, rule)


class EmbeddingBasis(Basis):
    """The coordinates of the embedding as the first block, then the residual by parameter.

    Args:
        embedding: the basis of the public eigenspace.
        like: the trainable parameters.
        scales: the factors of embedding and residual that the clip rule applies and the lift divides by.
    """

    def __init__(self, embedding: SharedBasis, like: Mapping[str, Tensor], scales: tuple[float, float]) -> None:
        self.embedding, self._parameters, self._scales = embedding, like, scales

    @cached_property
    def like(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        return {**self.embedding.like, **self._parameters}

    @property
    def projection(self) -> Basis | None:
        return self.embedding  # the residual is outside the public subspace

    @property
    def public_basis(self) -> SharedBasis:
        return self.embedding

    def coordinates(self, updates: Updates) -> Updates:
        embedding = self.embedding.coordinates(updates).leaves[COORDINATES]
        values = embedding.dense()  # (B, k)
        shares = values @ self.embedding.mixing.T  # (B, m): how much of each public gradient is in the embedding
        residual = {
            name: Residual(leaf, self.embedding.public.leaves[name], shares) for name, leaf in updates.leaves.items()
        }
        return Updates({COORDINATES: embedding, **residual}, updates.losses)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        embedding_scale, residual_scale = self._scales
        lifted = self.embedding.lift({COORDINATES: vector[COORDINATES] / embedding_scale})
        return {name: lifted[name] + vector[name] / residual_scale for name in lifted}
