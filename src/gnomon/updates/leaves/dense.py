"""Dense updates, one matrix per sample, and updates that are zero."""

from __future__ import annotations

from functools import cached_property
from operator import itemgetter

import torch
from torch import Tensor

from gnomon.updates.leaves.leaf import CHUNK_BYTES, Leaf, add_lower_gram, joined, mirrored, row_square_norms

FEW = 2
"""The largest number of dense matrices whose products with a factored leaf are computed one at a time."""


class Dense(Leaf):
    """Per-sample updates as one tensor, (B, *shape).

    Args:
        values: the updates.
        ceilings: square ceilings, if the values are sums whose terms may have cancelled; otherwise the square norms.

    >>> leaf = Dense(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> leaf.square_norms()
    tensor([25.,  1.], dtype=torch.float64)
    >>> leaf.weighted_sum(torch.tensor([1.0, 2.0]))
    tensor([3., 6.])
    """

    def __init__(self, values: Tensor, ceilings: Tensor | None = None) -> None:
        self.values = values
        self.shape = values.shape[1:]
        self._ceilings = ceilings

    def __len__(self) -> int:
        return self.values.shape[0]  # len() of a tensor takes longer

    @property
    def like(self) -> Tensor:
        return self.values

    def block(self, start: int, stop: int) -> Tensor:
        return self.values.reshape(len(self), self.rows, self.columns)[:, start:stop]

    def dense(self) -> Tensor:
        return self.values

    def square_norms(self) -> Tensor:
        return self._square_norms

    @cached_property
    def _square_norms(self) -> Tensor:
        return row_square_norms(self._stored)

    @cached_property
    def _stored(self) -> Tensor:
        """Each sample's numbers in memory order, which does not matter for norms and sums, (B, numel)."""
        each = self.shape.numel()
        if not self._packed:
            return self.values.reshape(len(self), each)
        return self.values.as_strided((len(self), each), (each, 1))

    @property
    def _packed(self) -> bool:
        """Whether samples follow each other in memory without gaps, whatever the order of their dimensions."""
        expected = 1
        for size, stride in sorted(zip(self.values.shape, self.values.stride(), strict=True), key=itemgetter(1)):
            if size != 1:
                if stride != expected:
                    return False
                expected *= size
        return len(self) < 2 or self.values.stride(0) == self.shape.numel()

    def square_ceilings(self) -> Tensor:
        return self.square_norms() if self._ceilings is None else self._ceilings

    def gram(self, other: Leaf) -> Tensor:
        if len(self) <= FEW and not isinstance(other, Dense):
            return other.gram(self).T  # the other leaf may have a way without its dense form
        if isinstance(other, Dense) and self._same_order(other):
            return self._stored @ other._stored.T
        return super().gram(other)

    def grams(self, other: Leaf | None = None) -> tuple[Tensor, Tensor | None]:
        square = self.like.new_zeros(len(self), len(self), dtype=torch.float64)
        add_lower_gram(square, self._stored)
        return mirrored(square), None if other is None else other.gram(self)

    def self_gram(self) -> Tensor:
        total = self.like.new_zeros(len(self), len(self), dtype=torch.float64)
        step = max(1, CHUNK_BYTES // max(1, len(self) * 8))
        for part in self._stored.split(step, 1):
            exact = part.double()
            total += exact @ exact.T
        return total

    def _same_order(self, other: Dense) -> bool:
        """Return whether two leaves have their numbers in the same order in memory."""
        return self._packed and other._packed and self.values.stride()[1:] == other.values.stride()[1:]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = weights @ self._stored
        return total.as_strided(self.shape, self.values.stride()[1:]) if self._packed else total.reshape(self.shape)

    def select(self, index: Tensor) -> Dense:
        return Dense(self.values[index], None if self._ceilings is None else self._ceilings[index])

    def double(self) -> Dense:
        return Dense(self.values.double(), self._ceilings)

    def merged(self, views: int) -> Dense:
        """Return the means, with the square of the mean length of the views as ceiling: views may cancel."""
        return Dense(joined(self.values, views).mean(1), joined(self.square_ceilings().sqrt(), views).mean(1).square())


class Zero(Leaf):
    """The updates of a parameter that the forward pass did not use: zero for every sample.

    >>> Zero(2, torch.Size([3]), torch.empty(0)).dense()
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """

    def __init__(self, size: int, shape: torch.Size, like: Tensor) -> None:
        self.size, self.shape, self._like = size, shape, like

    def __len__(self) -> int:
        return self.size

    @property
    def like(self) -> Tensor:
        return self._like

    def block(self, start: int, stop: int) -> Tensor:
        return self._like.new_zeros(self.size, stop - start, self.columns)

    def square_norms(self) -> Tensor:
        return self._like.new_zeros(self.size, dtype=torch.float64)

    def gram(self, other: Leaf) -> Tensor:
        return self._like.new_zeros(self.size, len(other))

    def grams(self, other: Leaf | None = None) -> tuple[Tensor, Tensor | None]:
        square = self._like.new_zeros(self.size, self.size, dtype=torch.float64)
        return square, None if other is None else self._like.new_zeros(len(other), self.size)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._like.new_zeros(self.shape)

    def times(self, x: Tensor) -> Tensor:
        return self._like.new_zeros(*x.shape[:2], self.rows)

    def select(self, index: Tensor) -> Zero:
        return Zero(index.numel(), self.shape, self._like)

    def double(self) -> Zero:
        return Zero(self.size, self.shape, self._like.double())

    def merged(self, views: int) -> Zero:
        return Zero(self.size // views, self.shape, self._like)
