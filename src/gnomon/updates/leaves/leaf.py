"""The interface of all leaves: the updates of all samples for one parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK_BYTES = 32 * 2**20
"""The largest size of temporary dense blocks, whatever the layer."""

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

    def gram(self, other: Leaf) -> Tensor:
        """Return `<g_i, h_j>` for all pairs of samples, (B, B')."""
        total = self.like.new_zeros(len(self), len(other))
        for start, stop in self._cuts(len(self) + len(other)):
            total += self.block(start, stop).flatten(1) @ other.block(start, stop).flatten(1).T
        return total

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

    def times(self, x: Tensor) -> Tensor:
        """Return `x_i g_i^T`, each sample's rows (B, T, columns) times its own matrix, (B, T, rows)."""
        return x @ self.dense().reshape(len(self), self.rows, self.columns).mT

    def rows_at(self, index: Tensor) -> Tensor:
        """Return rows `index` (B, T) of each sample's own matrix, (B, T, columns)."""
        matrices = self.dense().reshape(len(self), self.rows, self.columns)
        return matrices.gather(1, index[:, :, None].expand(-1, -1, self.columns))

    def _cuts(self, samples: int) -> Iterator[tuple[int, int]]:
        """Yield row ranges whose blocks of `samples` matrices fit into `CHUNK_BYTES`."""
        row_bytes = max(1, samples * self.columns * self.like.element_size())
        step = max(1, CHUNK_BYTES // row_bytes)
        for start in range(0, self.rows, step):
            yield start, min(start + step, self.rows)


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
    unsafe = ~((norms > 1e-12) & (norms < 1e15))
    if bool(unsafe.any()):
        index = unsafe.nonzero().squeeze(1)
        norms[index] = torch.linalg.vector_norm(rows[index], dim=1, dtype=torch.float64)
    return norms.square_()
