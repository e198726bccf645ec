"""Updates written out: one matrix a sample."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gnomon.updates.leaves.leaf import Leaf, row_square_norms

FEW = 2
"""So few matrices are multiplied with factors one by one."""


class Dense(Leaf):
    """Per-sample updates as they are, (B, *shape).

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
        """Square ceilings, where the values came from sums whose terms may have cancelled."""

    def __len__(self) -> int:
        return len(self.values)

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
        return row_square_norms(self.values.reshape(len(self), self.shape.numel()))

    def square_ceilings(self) -> Tensor:
        return self.square_norms() if self._ceilings is None else self._ceilings

    def gram(self, other: Leaf) -> Tensor:
        if len(self) <= FEW and not isinstance(other, Dense):
            return other.gram(self).T  # which may know a way without writing itself out
        return super().gram(other)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return (weights @ self.values.reshape(len(self), self.shape.numel())).reshape(self.shape)

    def select(self, index: Tensor) -> Dense:
        return Dense(self.values[index], None if self._ceilings is None else self._ceilings[index])

    def double(self) -> Dense:
        return Dense(self.values.double(), self._ceilings)


class Zero(Leaf):
    """The update of a parameter that this forward pass did not use: zero for everyone.

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

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._like.new_zeros(self.shape)

    def select(self, index: Tensor) -> Zero:
        return Zero(index.numel(), self.shape, self._like)

    def double(self) -> Zero:
        return Zero(self.size, self.shape, self._like.double())
