"""What every leaf can do: the updates of all samples for one parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK_BYTES = 32 * 2**20
"""Transient dense blocks stay below this size, whatever the layer."""

HUGE = 1e12
"""Below this, what float32 rounds away under its smallest normal number stays below 1e-25 in a layer's sum."""


class Leaf(ABC):
    """The updates `g_1 .. g_B` of one parameter, seen as B matrices of `rows x columns`.

    A subclass must be able to write out a block of rows and to sum with weights. The base class does
    the rest through blocks of rows, so that no transient is larger than `CHUNK_BYTES`; a subclass that
    knows a cheaper way overrides.
    """

    shape: torch.Size
    """The parameter's own shape; the first dimension are the rows."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples."""

    @abstractmethod
    def block(self, start: int, stop: int) -> Tensor:
        """Rows `start:stop` of every sample's update, (B, stop - start, columns)."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """`sum_i weights_i g_i`, in the parameter's shape."""

    @abstractmethod
    def select(self, index: Tensor) -> Leaf:
        """The leaf of the samples `index` alone."""

    @abstractmethod
    def double(self) -> Leaf:
        """The same leaf in float64."""

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """A tensor whose dtype and device are the leaf's."""

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def columns(self) -> int:
        return self.shape.numel() // max(self.rows, 1)

    def dense(self) -> Tensor:
        """(B, *shape)"""
        return self.block(0, self.rows).reshape(len(self), *self.shape)

    def square_norms(self) -> Tensor:
        """`|g_i|^2` in float64, (B,)."""
        total = self.like.new_zeros(len(self), dtype=torch.float64)
        for start, stop in self._cuts(len(self)):
            total += row_square_norms(self.block(start, stop).flatten(1))
        return total

    def square_ceilings(self) -> Tensor:
        """At least what `square_norms` would be if no term cancelled another, float64, (B,).

        Where the ceiling is far above the norm, sums of this leaf carry rounding errors that the norm does
        not show; the release allows for them.
        """
        return self.square_norms()

    def gram(self, other: Leaf) -> Tensor:
        """`<g_i, h_j>` for all pairs, (B, B')."""
        total = self.like.new_zeros(len(self), len(other))
        for start, stop in self._cuts(len(self) + len(other)):
            total += self.block(start, stop).flatten(1) @ other.block(start, stop).flatten(1).T
        return total

    def self_gram(self) -> Tensor:
        """`<g_i, g_j>` among the samples themselves in float64, (B, B)."""
        total = self.like.new_zeros(len(self), len(self), dtype=torch.float64)
        for start, stop in self._cuts(3 * len(self)):
            block = self.block(start, stop).flatten(1).double()
            total += block @ block.T
        return total

    def inner(self, other: Leaf) -> Tensor:
        """`<g_i, h_i>` for each sample in float64, (B,)."""
        total = self.like.new_zeros(len(self), dtype=torch.float64)
        for start, stop in self._cuts(2 * len(self)):
            product = self.block(start, stop) * other.block(start, stop)
            total += product.flatten(1).sum(1, dtype=torch.float64)
        return total

    def times(self, x: Tensor) -> Tensor:
        """`x_i g_i^T`: each sample's rows (B, T, columns) through its own matrix, (B, T, rows)."""
        return x @ self.dense().reshape(len(self), self.rows, self.columns).mT

    def rows_at(self, index: Tensor) -> Tensor:
        """Rows `index` (B, T) of each sample's own matrix, (B, T, columns)."""
        every = self.dense().reshape(len(self), self.rows, self.columns)
        return every.gather(1, index[:, :, None].expand(-1, -1, self.columns))

    def _cuts(self, samples: int) -> Iterator[tuple[int, int]]:
        """Row ranges small enough that blocks of `samples` matrices fit `CHUNK_BYTES`."""
        row_bytes = max(1, samples * self.columns * self.like.element_size())
        step = max(1, CHUNK_BYTES // row_bytes)
        for start in range(0, self.rows, step):
            yield start, min(start + step, self.rows)


def amplifies(inputs: Tensor) -> bool:
    """Whether inputs are so large that they show how float32 rounds the numbers below its smallest normal one.

    There a product with a weight rounds by whole factors, up too: a sum of such terms is formed in float64.

    >>> amplifies(torch.tensor([1.0, -3e38])), amplifies(torch.tensor([1.0]))
    (True, False)
    """
    if inputs.dtype not in (torch.float32, torch.bfloat16) or not inputs.numel():
        return False
    low, high = torch.aminmax(inputs.detach())
    return not (float(low) > -HUGE and float(high) < HUGE)


def row_square_norms(rows: Tensor) -> Tensor:
    """Square norms of the rows, in float64; float32 does the work where it neither over- nor underflows.

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
