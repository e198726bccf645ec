"""The public eigenspace: the subspace of the top eigenvectors of public gradients, without a stored projector.

With public gradients h_1 .. h_m as the rows of H, `K = H H^T` (m x m) has eigenpairs `K = Q L Q^T`; for
`U = Q_k L_k^(-1/2)` the columns of `V = H^T U` are orthonormal. The coordinates of a sample are
`V^T g = U^T <h_j, g>_j`, one Gram matrix with the private batch, and the lift `V s = sum_j (U s)_j h_j` is a weighted
sum of public gradients. The p x k matrix V is never formed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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

LARGEST_TILT = 1e-4
"""The largest error that rounding of a Gram matrix may cause in the lengths and angles of basis vectors."""

QUICK_ROUNDINGS = 4
"""The error of an entry `<h_i, h_j>` of a Gram matrix from `Leaf.grams`, in roundings of `|h_i| |h_j|`."""

QUICK_RANGE = 1e-18, 1e30
"""The range of the largest square norm in which no gradient that matters underflows or overflows in float32."""

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
        public: the public gradients, H. Those that are not finite are dropped, unless U is given.
        mixing: U, (m, k): the basis vectors as combinations of public gradients; or the rank, and U is computed when it
            is needed first. If that is for coordinates, public gradients are written out once for U and for them.
    """

    def __init__(self, public: Updates, mixing: Tensor | float) -> None:
        self._public, self._wanted = public, mixing
        self._solved: tuple[Updates, Tensor, Tensor] | None = None

    @property
    def public(self) -> Updates:
        """The public gradients from which basis vectors are combined."""
        return self._result[0]

    @cached_property
    def mixing(self) -> Tensor:
        """U, (m, k)."""
        return self._result[1]

    @cached_property
    def like(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        return {COORDINATES: self.mixing.new_zeros(self.mixing.shape[1])}

    @property
    def rank(self) -> int:
        """The effective rank, which is at most the numerical rank of the public gradients."""
        return self.mixing.shape[1]

    def coordinates(self, updates: Updates) -> Updates:
        products = self._solve(updates) if self._solved is None else None
        products = updates.gram(self.public) if products is None else products
        ceilings = updates.ceilings_by_parameter().square().sum(1) * self._gain
        return in_coordinates(products @ self.mixing, updates.losses, ceilings)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.public.weighted_sum(self.mixing @ vector[COORDINATES])

    @property
    def public_basis(self) -> SharedBasis:
        """The basis itself, which public gradients span."""
        return self

    def dense(self) -> Tensor:
        """Return the p x k matrix V, for tests and small problems."""
        return self.public.dense().T @ self.mixing

    @cached_property
    def _gain(self) -> Tensor:
        return _gain(self._result[2], self.mixing)

    @property
    def _result(self) -> tuple[Updates, Tensor, Tensor]:
        """The public gradients, U, and the norms of the public gradients."""
        if self._solved is None:
            self._solve()
        assert self._solved is not None
        return self._solved

    def _solve(self, updates: Updates | None = None) -> Tensor | None:
        """Compute U, and in the same pass the inner products of `updates` with the public gradients, (B, m)."""
        if isinstance(self._wanted, Tensor):
            self._solved = self._public, self._wanted, self._public.norms()
            return None
        public, squares, products = _grams(self._public, updates, self._public.names)
        square = torch.stack(list(squares.values())).sum(0)
        self._solved = public, *_combined(square, public.leaves.values(), self._wanted, public.losses.dtype)
        return torch.stack([found.to(public.losses.dtype) for found in products.values()]).sum(0) if products else None


class TensorBases(Basis):
    """The basis of one subspace for each parameter tensor.

    Args:
        public: the public gradients. Those that are not finite are dropped.
        rank: the dimension of each subspace, or the share of the energy to keep. A tensor no larger than the rank stays
            whole. The basis vectors are computed when they are needed first, as those of `SharedBasis`.
    """

    def __init__(self, public: Updates, rank: float) -> None:
        self._public, self._wanted = public, rank
        self._solved: tuple[Updates, dict[str, tuple[Tensor, Tensor]]] | None = None

    @property
    def public(self) -> Updates:
        """The public gradients from which basis vectors are combined."""
        return self._result[0]

    @cached_property
    def mixings(self) -> Mapping[str, Tensor | None]:
        """U for each parameter tensor by name; None for a tensor that stays whole."""
        public, solved = self._result
        return {name: solved[name][0] if name in solved else None for name in public.names}

    @cached_property
    def like(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        leaves = self.public.leaves
        return {
            name: leaves[name].like.new_zeros(leaves[name].shape.numel() if mixing is None else mixing.shape[1])
            for name, mixing in self.mixings.items()
        }

    @property
    def rank(self) -> int:
        """The sum of the dimensions of all subspaces."""
        return sum(value.numel() for value in self.like.values())

    @property
    def public_basis(self) -> TensorBases:
        """The basis itself, which public gradients span."""
        return self

    def coordinates(self, updates: Updates) -> Updates:
        products = self._solve(updates) if self._solved is None else {}
        parts = {name: self._part(name, updates.leaves[name], products.get(name)) for name in self.mixings}
        return Updates(parts, updates.losses)

    def _part(self, name: str, leaf: Leaf, products: Tensor | None) -> Dense:
        """Return the coordinates of the updates of one parameter tensor."""
        mixing = self.mixings[name]
        if mixing is None:
            return Dense(leaf.dense().reshape(len(leaf), leaf.shape.numel()), leaf.square_ceilings())
        products = leaf.gram(self.public.leaves[name]) if products is None else products
        return Dense(products @ mixing, leaf.square_ceilings() * self._gains[name])

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        lifted = {}
        for name, mixing in self.mixings.items():
            leaf = self.public.leaves[name]
            part = vector[name]
            lifted[name] = part.reshape(leaf.shape) if mixing is None else leaf.weighted_sum(mixing @ part)
        return lifted

    @cached_property
    def _gains(self) -> dict[str, Tensor]:
        return {name: _gain(norms, mixing) for name, (mixing, norms) in self._result[1].items()}

    @property
    def _result(self) -> tuple[Updates, dict[str, tuple[Tensor, Tensor]]]:
        """The public gradients, and for each tensor that does not stay whole U and the norms of its gradients."""
        if self._solved is None:
            self._solve()
        assert self._solved is not None
        return self._solved

    def _solve(self, updates: Updates | None = None) -> dict[str, Tensor]:
        """Compute U, and in the same pass the inner products of `updates` with the public gradients, by tensor."""
        leaves = self._public.leaves
        names = [name for name, leaf in leaves.items() if self._wanted < 1 or leaf.shape.numel() > self._wanted]
        public, squares, products = _grams(self._public, updates, names)
        solved = {
            name: _combined(square, [public.leaves[name]], self._wanted, leaves[name].like.dtype)
            for name, square in squares.items()
        }
        self._solved = public, solved
        return products


def _grams(
    public: Updates, updates: Updates | None, names: Iterable[str]
) -> tuple[Updates, dict[str, Tensor], dict[str, Tensor]]:
    """Return the public gradients that are finite, and the two results of their `Leaf.grams` by parameter.

    The Gram matrices do not depend on `updates`, not even in their rounding errors, so that a basis is public.
    """
    squares, products = {}, {}
    for name in names:
        squares[name], found = public.leaves[name].grams(None if updates is None else updates.leaves[name])
        if found is not None:
            products[name] = found
    if not all(bool(torch.isfinite(square.diagonal()).all()) for square in squares.values()):
        usable = _finite(public)
        public = public.select(usable)
        squares = {name: square[usable][:, usable] for name, square in squares.items()}
        products = {name: found[:, usable] for name, found in products.items()}
    return public, squares, products


def _combined(gram: Tensor, leaves: Iterable[Leaf], rank: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return U and the norms of the public gradients, from an exact Gram matrix if a rounded one is not enough."""
    directions = quick_mixing(gram, rank, dtype)
    if directions is None:
        gram = torch.stack([leaf.self_gram() for leaf in leaves]).sum(0)
        directions = mixing(gram, rank, dtype)
    return directions, gram.diagonal().clamp_min(0).sqrt()


def _finite(public: Updates) -> Tensor:
    """Return the positions of the public gradients that are finite.

    Raises:
        DataError: there is none.
    """
    usable = torch.isfinite(public.norms())
    if not bool(usable.any()):
        raise DataError("public", "has no record with a finite gradient", "look for NaN or huge values in its records")
    return usable.nonzero().squeeze(1)


def _gain(norms: Tensor, mixing: Tensor) -> Tensor:
    """Return the square of the factor by which coordinates can magnify a rounding error of the inner products.

    Inner products err by a few roundings, not by the hundreds for which the release allows in a sum over a batch.
    """
    return (norms @ mixing.double().abs()).square().sum() / ROUNDINGS_SAVED**2


def shared_basis(public: Updates, rank: float) -> SharedBasis:
    """Return the basis of one subspace of all parameters."""
    return SharedBasis(public, rank)


def tensor_bases(public: Updates, rank: float) -> TensorBases:
    """Return the basis with one subspace for each parameter tensor."""
    return TensorBases(public, rank)


def quick_mixing(gram: Tensor, rank: float, dtype: torch.dtype) -> Tensor | None:
    """Return `mixing` of a Gram matrix whose entries are rounded to `dtype`; None if that could not be told from it.

    Guarantee: the Gram matrix of the resulting basis vectors differs from the identity by at most about
    `LARGEST_TILT`. If an entry `<h_i, h_j>` errs by `e |h_i| |h_j|`, that of two basis vectors u and v errs by
    `e |D u| |D v|` for D = diag(|h_i|), up to a small factor.

    Args:
        gram: the Gram matrix, (m, m), float64, of products in `dtype`.
        rank: the number of dimensions, or a fraction of the energy below 1.
        dtype: the precision of the products.

    >>> gram = torch.diag(torch.tensor([4.0, 1.0, 1e-9], dtype=torch.float64))
    >>> quick_mixing(gram, 2, torch.float32)
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000],
            [0.0000, 0.0000]])
    >>> twice = torch.ones(2, 2, dtype=torch.float64)  # is there a second direction?
    >>> quick_mixing(twice, 2, torch.float32) is None
    True
    """
    squares = gram.diagonal()
    if not QUICK_RANGE[0] < float(squares.max()) < QUICK_RANGE[1] or not bool(torch.isfinite(squares).all()):
        return None
    directions, truncated = _directions(gram, rank)
    if dtype is not torch.float64:
        tilt = QUICK_ROUNDINGS * torch.finfo(dtype).eps * (squares @ directions.square())
        if truncated or not bool((tilt < LARGEST_TILT).all()):
            return None
    return _accurate(gram, directions, dtype)


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
    return _accurate(gram, _directions(gram, rank)[0], dtype)


def _directions(gram: Tensor, rank: float) -> tuple[Tensor, bool]:
    """Return `Q_k L_k^(-1/2)` in float64, and whether k was limited by the number of eigenvalues above rounding."""
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0), vectors.flip(1)
    if rank < 1:
        energy = values.clamp_min(0).cumsum(0)
        wanted = int((energy < rank * energy[-1]).sum()) + 1
    else:
        wanted = min(int(rank), len(values))
    count = min(wanted, int((values > LEAST_EIGENVALUE * values[0]).sum()))
    signs = torch.where(vectors[:, :count].sum(0) < 0, -1.0, 1.0)  # eigh does not determine the signs
    return vectors[:, :count] * (signs * values[:count].rsqrt()), count < wanted


def _accurate(gram: Tensor, directions: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the directions in which coordinates are accurate, as `dtype`."""
    # keep a direction made of tiny gradients, which is exact; drop one made of large gradients that cancel to rounding
    gains = gram.diagonal().clamp_min(0).sqrt() @ directions.abs()
    return directions[:, gains * torch.finfo(dtype).eps < LARGEST_ERROR].to(dtype)
