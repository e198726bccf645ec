"""The subspace that public gradients span, without ever storing a projector.

With public gradients h_1 .. h_m, `K = H H^T` (m x m) has eigenpairs `K = Q L Q^T`; for `U = Q_k L_k^(-1/2)` the
columns of `V = H^T U` are orthonormal. Coordinates of a sample are `V^T g = U^T <h_j, g>_j`, one Gram matrix with the
private batch, and the lift `V s = sum_j (U s)_j h_j` is a weighted sum of public gradients. The p x k matrix V is
never formed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnomon import validate
from gnomon.data import Loader
from gnomon.errors import SettingError
from gnomon.sampling.draws import shuffle
from gnomon.subspaces.basis import COORDINATES, AmbientBasis, Basis, StepContext, in_coordinates
from gnomon.updates import Dense, Leaf, Updates, gradients

RANKS = "a whole number of dimensions, or a fraction of the energy between 0 and 1"


@dataclass(frozen=True, eq=False)
class PublicEigenspace:
    """The top eigenvectors of the second context of public gradients at the current weights.

    - `rank`: how many, or, as a fraction below 1, how much of the public gradients' energy to keep.
    - `per_tensor`: one subspace for each parameter tensor with min(rank, size) dimensions (PCDP-SGD as
      published), instead of one for all parameters together (PDP-SGD).
    - `every`: steps between two bases; `start`: the first epoch that projects, counted from 0.
    - `batch`: how many public records a basis uses, drawn anew each time (default: all).
    - `blocks`: cut the public records into so many disjoint blocks, one after the other, instead of drawing
      from all of them.

    >>> from torch import nn
    >>> public = (torch.randn(20, 3), torch.randint(0, 2, (20,)))
    >>> PublicEigenspace(public, rank=4).name
    'public eigenspace, rank 4'
    """

    public: Any
    rank: float = 100
    per_tensor: bool = False
    every: int = 1
    start: int = 0
    batch: int | None = None
    blocks: int | None = None

    def __post_init__(self) -> None:
        rank = validate.number("rank", self.rank, RANKS)
        if rank <= 0 or (rank >= 1 and rank != int(rank)):
            raise SettingError("rank", self.rank, RANKS)
        validate.whole("every", self.every)
        validate.whole("start", self.start, least=0)
        if self.batch is not None:
            validate.whole("batch", self.batch)
        if self.blocks is not None and self.batch is not None:
            raise SettingError("blocks", self.blocks, "either blocks or batch")
        if self.blocks is not None:
            blocks = validate.whole("blocks", self.blocks)
            if blocks > len(Loader(self.public, "public")):
                raise SettingError("blocks", self.blocks, "at most the number of public records")
        Loader(self.public, "public")

    @property
    def name(self) -> str:
        size = f"rank {self.rank:g}" if self.rank >= 1 else f"{self.rank:.0%} of the energy"
        extra = ", per tensor" if self.per_tensor else ""
        extra += f", every {self.every} steps" if self.every > 1 else ""
        extra += f", from epoch {self.start}" if self.start else ""
        return f"public eigenspace, {size}{extra}"

    def key(self, context: StepContext) -> Hashable:
        if context.step < self.start * context.steps_per_epoch:
            return "ambient"
        return context.step // self.every

    def basis(self, context: StepContext) -> Basis:
        if context.step < self.start * context.steps_per_epoch:
            return AmbientBasis(context.like)
        device = next(iter(context.like.values())).device
        loader = Loader(self.public, "public", device)
        inputs, targets = loader.take(self._chosen(len(loader), context))
        updates = gradients(context.model, context.loss, inputs, targets)
        usable = torch.isfinite(updates.norms())
        if not bool(usable.all()):
            if not bool(usable.any()):
                raise ValueError("no public record has a finite gradient: look for NaN or huge values in public")
            updates = updates.select(usable.nonzero().squeeze(1))
        make = tensor_bases if self.per_tensor else shared_basis
        return make(updates, self.rank)

    def _chosen(self, size: int, context: StepContext) -> Tensor:
        if self.blocks is not None:
            return torch.arange(size).tensor_split(self.blocks)[(context.step // self.every) % self.blocks]
        if self.batch is None or self.batch >= size:
            return torch.arange(size)
        return shuffle(size, context.randomness)[: self.batch]


class SharedBasis:
    """One subspace of all parameters together."""

    def __init__(self, public: Updates, mixing: Tensor) -> None:
        self.public = public
        self.mixing = mixing
        """U, (m, k): the basis vectors as combinations of public gradients."""
        self.like = {COORDINATES: mixing.new_zeros(mixing.shape[1])}

    @property
    def rank(self) -> int:
        """The effective rank: never more than the public gradients have."""
        return self.mixing.shape[1]

    def coordinates(self, updates: Updates) -> Updates:
        values = updates.gram(self.public) @ self.mixing
        ceilings = updates.ceilings_by_parameter().square().sum(1) * _gain(self.public.norms(), self.mixing)
        return in_coordinates(values, updates.losses, ceilings)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.public.weighted_sum(self.mixing @ vector[COORDINATES])

    @property
    def public_basis(self) -> SharedBasis:
        """The basis itself, which public gradients span."""
        return self

    def dense(self) -> Tensor:
        """The p x k matrix V, for tests and small problems."""
        return self.public.dense().T @ self.mixing


class TensorBases:
    """One subspace for each parameter tensor; tensors no larger than the rank stay whole."""

    def __init__(self, public: Updates, mixings: Mapping[str, Tensor | None]) -> None:
        self.public, self.mixings = public, mixings
        self.like = {
            name: public.leaves[name].like.new_zeros(
                public.leaves[name].shape.numel() if mixing is None else mixing.shape[1]
            )
            for name, mixing in mixings.items()
        }

    @property
    def rank(self) -> int:
        """All dimensions together."""
        return sum(value.numel() for value in self.like.values())

    @property
    def public_basis(self) -> TensorBases:
        """The basis itself, which public gradients span."""
        return self

    def coordinates(self, updates: Updates) -> Updates:
        return Updates({name: self._part(name, updates.leaves[name]) for name in self.mixings}, updates.losses)

    def _part(self, name: str, leaf: Leaf) -> Dense:
        mixing, public = self.mixings[name], self.public.leaves[name]
        if mixing is None:
            return Dense(leaf.dense().reshape(len(leaf), leaf.shape.numel()), leaf.square_ceilings())
        gain = _gain(public.square_norms().sqrt(), mixing)
        return Dense(leaf.gram(public) @ mixing, leaf.square_ceilings() * gain)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        lifted = {}
        for name, mixing in self.mixings.items():
            leaf = self.public.leaves[name]
            part = vector[name]
            lifted[name] = part.reshape(leaf.shape) if mixing is None else leaf.weighted_sum(mixing @ part)
        return lifted


def _gain(norms: Tensor, mixing: Tensor) -> Tensor:
    """How much a rounding in the inner products can grow in the coordinates, squared.

    Inner products err by a few roundings, not by the hundreds that the release allows a sum over a batch.
    """
    return (norms @ mixing.double().abs()).square().sum() / ROUNDINGS_SAVED**2


def shared_basis(public: Updates, rank: float) -> SharedBasis:
    """The basis of one subspace of all parameters."""
    square = torch.stack([leaf.self_gram() for leaf in public.leaves.values()]).sum(0)
    return SharedBasis(public, mixing(square, rank, public.losses.dtype))


def tensor_bases(public: Updates, rank: float) -> TensorBases:
    """A basis for each parameter tensor."""
    mixings: dict[str, Tensor | None] = {}
    for name, leaf in public.leaves.items():
        small = rank >= 1 and leaf.shape.numel() <= rank
        mixings[name] = None if small else mixing(leaf.self_gram(), rank, leaf.like.dtype)
    return TensorBases(public, mixings)


def mixing(gram: Tensor, rank: float, dtype: torch.dtype) -> Tensor:
    """`U = Q_k L_k^(-1/2)` from the Gram matrix of m vectors, (m, k), for coordinates in the given precision.

    k is the rank, the smallest number of eigenvalues that hold the given fraction of their sum, or the number of
    directions that the precision can tell from rounding, whichever is less.

    >>> mixing(torch.diag(torch.tensor([4.0, 1.0, 0.0], dtype=torch.float64)), 5, torch.float32)
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000],
            [0.0000, 0.0000]])
    """
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0), vectors.flip(1)
    count = int((values > LEAST_EIGENVALUE * values[0]).sum())
    if rank < 1:
        energy = values.clamp_min(0).cumsum(0)
        count = min(count, int((energy < rank * energy[-1]).sum()) + 1)
    else:
        count = min(count, int(rank))
    signs = torch.where(vectors[:, :count].sum(0) < 0, -1.0, 1.0)  # eigh leaves the sign open
    found = vectors[:, :count] * (signs * values[:count].rsqrt())
    # a direction made of tiny gradients is as good as any; one made of large ones that cancel is rounding
    gains = gram.diagonal().clamp_min(0).sqrt() @ found.abs()
    return found[:, gains * torch.finfo(dtype).eps < LARGEST_ERROR].to(dtype)


LEAST_EIGENVALUE = 1e-13
"""Eigenvalues below this part of the largest are rounding in float64."""

LARGEST_ERROR = 1e-3
"""How far rounding may move a coordinate, in units of the length of the update."""

ROUNDINGS_SAVED = 100
