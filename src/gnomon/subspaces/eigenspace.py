"""The public eigenspace: the subspace of the top eigenvectors of public gradients, without a stored projector.

With public gradients h_1 .. h_m as the rows of H, `K = H H^T` (m x m) has eigenpairs `K = Q L Q^T`; for
`U = Q_k L_k^(-1/2)` the columns of `V = H^T U` are orthonormal. The coordinates of a sample are
`V^T g = U^T <h_j, g>_j`, one Gram matrix with the private batch, and the lift `V s = sum_j (U s)_j h_j` is a weighted
sum of public gradients. The p x k matrix V is never formed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gnomon import validate
from gnomon.data import Loader
from gnomon.errors import DataError, SettingError
from gnomon.sampling.draws import shuffle
from gnomon.subspaces.basis import COORDINATES, AmbientBasis, Basis, StepContext, Subspace, in_coordinates
from gnomon.updates import Dense, Leaf, Updates, gradients

RANKS = "a whole number of dimensions, or a fraction of the energy between 0 and 1"
"""The allowed values of `rank`, for error messages."""

LEAST_EIGENVALUE = 1e-13
"""Eigenvalues below this fraction of the largest are rounding errors of float64."""

LARGEST_ERROR = 1e-3
"""The largest error that rounding may cause in a coordinate, in units of the length of the update."""

ROUNDINGS_SAVED = 100
"""The factor by which inner products err less than the sum over a batch for which the release allows."""


@dataclass(frozen=True, eq=False)
class PublicEigenspace(Subspace):
    """The top eigenvectors of the second moment of public gradients at the current weights.

    Args:
        public: the public records, (inputs, targets) or a dataset.
        rank: the number of eigenvectors or, as a fraction below 1, the share of the public gradients' energy to keep.
        per_tensor: make one subspace of min(rank, size) dimensions for each parameter tensor (PCDP-SGD as published),
            instead of one for all parameters together (PDP-SGD).
        every: the number of steps between two bases.
        start: the first epoch that projects, counted from 0. Earlier epochs use all parameters.
        batch: the number of public records of a basis, drawn anew for each (default: all).
        blocks: instead of drawing, split the public records into this many disjoint blocks and use them in turn.

    >>> from torch import nn
    >>> public = (torch.randn(20, 3), torch.randint(0, 2, (20,)))
    >>> PublicEigenspace(public, rank=4).name
    'public eigenspace, rank 4'
    """

    public: Any = field()
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
            raise SettingError.with_message("set either blocks or batch, not both", name="blocks", value=self.blocks)
        records = len(Loader(self.public, "public"))
        if self.blocks is not None and validate.whole("blocks", self.blocks) > records:
            raise SettingError("blocks", self.blocks, f"at most the number of public records, {records}")

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
        updates = gradients(context.model, context.loss, inputs, targets, layouts=context.layouts)
        usable = torch.isfinite(updates.norms())
        if not bool(usable.all()):
            if not bool(usable.any()):
                raise DataError(
                    "public", "has no record with a finite gradient", "look for NaN or huge values in its records"
                )
            updates = updates.select(usable.nonzero().squeeze(1))
        make = tensor_bases if self.per_tensor else shared_basis
        return make(updates, self.rank)

    def _chosen(self, size: int, context: StepContext) -> Tensor:
        """Return the positions of the public records from which the basis of a step is made."""
        if self.blocks is not None:
            return torch.arange(size).tensor_split(self.blocks)[(context.step // self.every) % self.blocks]
        if self.batch is None or self.batch >= size:
            return torch.arange(size)
        return shuffle(size, context.randomness)[: self.batch]


class SharedBasis(Basis):
    """The basis of one subspace of all parameters together.

    Args:
        public: the public gradients, H.
        mixing: U, (m, k): the basis vectors as combinations of public gradients.
    """

    def __init__(self, public: Updates, mixing: Tensor) -> None:
        self.public, self.mixing = public, mixing
        self.like = {COORDINATES: mixing.new_zeros(mixing.shape[1])}

    @property
    def rank(self) -> int:
        """The effective rank, which is at most the numerical rank of the public gradients."""
        return self.mixing.shape[1]

    def coordinates(self, updates: Updates) -> Updates:
        values = updates.gram(self.public) @ self.mixing
        ceilings = updates.ceilings_by_parameter().square().sum(1) * _gain(self.public.norms(), self.mixing)
        return in_coordinates(values, updates.losses, ceilings)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.public.weighted_sum(self.mixing @ vector[COORDINATES])

    def dense(self) -> Tensor:
        """Return the p x k matrix V, for tests and small problems."""
        return self.public.dense().T @ self.mixing


class TensorBases(Basis):
    """The basis of one subspace for each parameter tensor.

    Args:
        public: the public gradients.
        mixings: U for each parameter tensor by name; None for a tensor no larger than the rank, which stays whole.
    """

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
        """The sum of the dimensions of all subspaces."""
        return sum(value.numel() for value in self.like.values())

    def coordinates(self, updates: Updates) -> Updates:
        return Updates({name: self._part(name, updates.leaves[name]) for name in self.mixings}, updates.losses)

    def _part(self, name: str, leaf: Leaf) -> Dense:
        """Return the coordinates of the updates of one parameter tensor."""
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
    """Return the square of the factor by which coordinates can magnify a rounding error of the inner products.

    Inner products err by a few roundings, not by the hundreds for which the release allows in a sum over a batch.
    """
    return (norms @ mixing.double().abs()).square().sum() / ROUNDINGS_SAVED**2


def shared_basis(public: Updates, rank: float) -> SharedBasis:
    """Return the basis of one subspace of all parameters."""
    square = torch.stack([leaf.self_gram() for leaf in public.leaves.values()]).sum(0)
    return SharedBasis(public, mixing(square, rank, public.losses.dtype))


def tensor_bases(public: Updates, rank: float) -> TensorBases:
    """Return the basis with one subspace for each parameter tensor."""
    mixings: dict[str, Tensor | None] = {}
    for name, leaf in public.leaves.items():
        small = rank >= 1 and leaf.shape.numel() <= rank
        mixings[name] = None if small else mixing(leaf.self_gram(), rank, leaf.like.dtype)
    return TensorBases(public, mixings)


def mixing(gram: Tensor, rank: float, dtype: torch.dtype) -> Tensor:
    """Return `U = Q_k L_k^(-1/2)`, (m, k), from the Gram matrix of m vectors.

    k is `rank` or, for a rank below 1, the smallest number of eigenvalues that hold this fraction of their sum. It is
    smaller where fewer directions can be told from rounding errors.

    Args:
        gram: the Gram matrix, (m, m), float64.
        rank: the number of dimensions, or a fraction of the energy below 1.
        dtype: the precision in which coordinates are computed.

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
    signs = torch.where(vectors[:, :count].sum(0) < 0, -1.0, 1.0)  # eigh does not determine the signs
    directions = vectors[:, :count] * (signs * values[:count].rsqrt())
    # keep a direction made of tiny gradients, which is exact; drop one made of large gradients that cancel to rounding
    gains = gram.diagonal().clamp_min(0).sqrt() @ directions.abs()
    return directions[:, gains * torch.finfo(dtype).eps < LARGEST_ERROR].to(dtype)
