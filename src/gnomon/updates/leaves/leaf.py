"""The interface of all leaves: the updates of all samples for one parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK_BYTES = 16 * 2**20
"""The largest size of temporary dense blocks, whatever the layer. The memory of blocks of 32 MiB and more is returned
to the system after each use on Linux, and touching it again costs more than the work on it."""

LONGEST_SUM = 2**16
"""The number of products that a Gram matrix sums in float32 before it continues in float64."""

STRIP = 32
"""The number of columns of a symmetric product that are computed at a time, from the diagonal downwards."""

HUGE = 1e12
"""With inputs below this value, the rounding of subnormal float32 numbers changes the sum of a layer by less than
1e-25."""


class Leaf(ABC):
    """The updates `g_1 .. g_B` of one parameter, as B matrices of `rows x columns`.

    A subclass must compute a block of rows and a weighted sum. The base class implements the other operations by blocks
    of rows, so that no temporary tensor is larger than `CHUNK_BYTES`; a subclass overrides those for which it has a
    cheaper way.
    """

    shape: torch.Size
    """The shape of the parameter; its first dimension are the rows."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def block(self, start: int, stop: int) -> Tensor:
        """Return rows `start:stop` of every sample's update, (B, stop - start, columns)."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return `sum_i weights_i g_i` in the shape of the parameter."""

    @abstractmethod
    def select(self, index: Tensor) -> Leaf:
        """Return the leaf of the samples `index`."""

    @abstractmethod
    def double(self) -> Leaf:
        """Return the leaf in float64."""

    @abstractmethod
    def merged(self, views: int) -> Leaf:
        """Return the leaf of records of which each has `views` consecutive samples, whose mean is its update.

        Args:
            views: the number of samples of each record, at least 2; the number of samples is a multiple of it.
        """

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the leaf."""

    @property
    def rows(self) -> int:
        """The first dimension of the parameter."""
        return self.shape[0] if self.shape else 1

    @property
    def columns(self) -> int:
        """The number of entries in a row."""
        return self.shape.numel() // max(self.rows, 1)

    def dense(self) -> Tensor:
        """Return the updates as one tensor, (B, *shape)."""
        return self.block(0, self.rows).reshape(len(self), *self.shape)

    def square_norms(self) -> Tensor:
        """Return `|g_i|^2` in float64, (B,)."""
        total = self.like.new_zeros(len(self), dtype=torch.float64)
        for start, stop in self._cuts(len(self)):
            total += row_square_norms(self.block(start, stop).flatten(1))
        return total

    def square_ceilings(self) -> Tensor:
        """Return an upper bound on what `square_norms` would be if no terms cancelled, in float64, (B,).

        Where the ceiling is far above the norm, sums of this leaf carry rounding errors that the norm does not show;
        the release allows for them.
        """
        return self.square_norms()

    def square_spreads(self) -> Tensor:
        """Return the norm of the terms whose sum is `square_norms`, or a bound on it, in float64, (B,).

        The rounding error of the square norms is a few roundings of it.
        """
        return self.square_ceilings()

    def exact_square_norms(self) -> Tensor:
        """Return `|g_i|^2` from the updates in float64, (B,)."""
        return Leaf.square_norms(self.double())

    def blocks(self, step: int) -> Iterator[Tensor]:
        """Yield all blocks of `step` rows, (B, step, columns); the last may have fewer.

        The next block may overwrite the memory of a block.
        """
        for start in range(0, self.rows, step):
            yield self.block(start, min(start + step, self.rows))

    def gram(self, other: Leaf) -> Tensor:
        """Return `<g_i, h_j>` for all pairs of samples, (B, B')."""
        total = self.like.new_zeros(len(other), len(self))
        step = self._step(len(self) + len(other))
        for own, others in zip(self.blocks(step), other.blocks(step), strict=True):
            total += others.flatten(1) @ own.flatten(1).T
        return total.T

    def grams(self, other: Leaf | None = None) -> tuple[Tensor, Tensor | None]:
        """Return `<g_i, g_j>` for all pairs of samples of this leaf, (B, B), and `other.gram(self)`.

        Blocks that both Gram matrices need are computed once. The first one is a float64 sum of products in the
        precision of the leaf: an entry errs by a few roundings of `|g_i| |g_j|`. It is the same to the bit with any
        `other` and without one. `self_gram` is exact, and slower.
        """
        if other is not None and len(other) > 2 * len(self):  # keeps blocks small; cuts may not depend on `other`
            return self.grams()[0], other.gram(self)
        square = self.like.new_zeros(len(self), len(self), dtype=torch.float64)
        cross = None if other is None else self.like.new_zeros(len(self), len(other))
        step = self._step(2 * len(self))
        others = None if other is None else other.blocks(step)
        for block in self.blocks(step):
            rows = block.flatten(1)
            add_lower_gram(square, rows)
            if cross is not None and others is not None:
                cross += rows @ next(others).flatten(1).T
        return mirrored(square), None if cross is None else cross.T

    def self_gram(self) -> Tensor:
        """Return `<g_i, g_j>` for all pairs of samples of this leaf in float64, (B, B)."""
        total = self.like.new_zeros(len(self), len(self), dtype=torch.float64)
        for start, stop in self._cuts(3 * len(self)):
            block = self.block(start, stop).flatten(1).double()
            total += block @ block.T
        return total

    def inner(self, other: Leaf) -> Tensor:
        """Return `<g_i, h_i>` for each sample in float64, (B,)."""
        total = self.like.new_zeros(len(self), dtype=torch.float64)
        for start, stop in self._cuts(2 * len(self)):
            product = self.block(start, stop) * other.block(start, stop)
            total += product.flatten(1).sum(1, dtype=torch.float64)
        return total

    def inner_with_spread(self, other: Leaf) -> tuple[Tensor, Tensor]:
        """Return `<g_i, h_i>`, and the norm of the terms whose sum it is or a bound on it, in float64, (B,) each."""
        return self.inner(other), (self.square_ceilings() * other.square_ceilings()).sqrt()

    def times(self, x: Tensor) -> Tensor:
        """Return `x_i g_i^T`, each sample's rows (B, T, columns) times its own matrix, (B, T, rows)."""
        return x @ self.dense().reshape(len(self), self.rows, self.columns).mT

    def rows_at(self, index: Tensor) -> Tensor:
        """Return rows `index` (B, T) of each sample's own matrix, (B, T, columns)."""
        matrices = self.dense().reshape(len(self), self.rows, self.columns)
        return matrices.gather(1, index[:, :, None].expand(-1, -1, self.columns))

    def _cuts(self, samples: int) -> Iterator[tuple[int, int]]:
        """Yield row ranges whose blocks of `samples` matrices fit into `CHUNK_BYTES`."""
        step = self._step(samples)
        for start in range(0, self.rows, step):
            yield start, min(start + step, self.rows)

    def _step(self, samples: int) -> int:
        """Return the number of rows whose blocks of `samples` matrices fit into `CHUNK_BYTES`."""
        row_bytes = max(1, samples * self.columns * self.like.element_size())
        return max(1, CHUNK_BYTES // row_bytes)


def joined(values: Tensor, views: int) -> Tensor:
    """Return values with a dimension for the views of each record, (records, views, ...), without a copy.

    >>> joined(torch.arange(4), 2)
    tensor([[0, 1],
            [2, 3]])
    """
    return values.unflatten(0, (values.shape[0] // views, views))


def rows_of(index: Tensor, views: int) -> Tensor:
    """Return the positions of all views of the records `index`.

    >>> rows_of(torch.tensor([2, 0]), 3)
    tensor([6, 7, 8, 0, 1, 2])
    """
    return (index[:, None] * views + torch.arange(views, device=index.device)).flatten()


def add_lower_gram(total: Tensor, rows: Tensor) -> None:
    """Add `rows @ rows.T` to a float64 matrix, at least in its lower triangle.

    >>> total = torch.zeros(2, 2, dtype=torch.float64)
    >>> add_lower_gram(total, torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    >>> mirrored(total)
    tensor([[5., 2.],
            [2., 1.]], dtype=torch.float64)
    """
    for part in rows.split(LONGEST_SUM, 1):
        for start in range(0, len(rows), STRIP):
            total[start:, start : start + STRIP] += part[start:] @ part[start : start + STRIP].T


def mirrored(lower: Tensor) -> Tensor:
    """Return the symmetric matrix with this lower triangle.

    >>> mirrored(torch.tensor([[1.0, 9.0], [2.0, 3.0]]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    return lower.tril() + lower.tril(-1).T


def amplifies(inputs: Tensor) -> bool:
    """Return whether inputs are so large that the rounding of subnormal float32 numbers becomes visible in products.

    The product of a gradient and a weight may be subnormal, with a relative rounding error of any size and sign. If a
    large input multiplies it, the sum has to be computed in float64.

    >>> amplifies(torch.tensor([1.0, -3e38])), amplifies(torch.tensor([1.0]))
    (True, False)
    """
    if inputs.dtype not in (torch.float32, torch.bfloat16) or not inputs.numel():
        return False
    low, high = torch.aminmax(inputs.detach())
    return not (float(low) > -HUGE and float(high) < HUGE)


def row_square_norms(rows: Tensor) -> Tensor:
    """Return the square norms of rows in float64, computed in float32 where that neither overflows nor underflows.

    >>> row_square_norms(torch.tensor([[3.0, 4.0], [1e-30, 0.0]]))
    tensor([2.5000e+01, 1.0000e-60], dtype=torch.float64)
    """
    if rows.dtype is torch.float64:
        return torch.linalg.vector_norm(rows, dim=1).square_()
    norms = torch.linalg.vector_norm(rows, dim=1).double()
    if len(norms):
        low, high = torch.aminmax(norms)  # both are NaN if any norm is
        if not (float(low) > 1e-12 and float(high) < 1e15):
            index = (~((norms > 1e-12) & (norms < 1e15))).nonzero().squeeze(1)
            norms[index] = torch.linalg.vector_norm(rows[index], dim=1, dtype=torch.float64)
    return norms.square_()
