"""What is left of updates when their part in a subspace is taken away."""

from __future__ import annotations

import torch
from torch import Tensor

from gnomon.updates.leaves.factored import exact_where_cancelled
from gnomon.updates.leaves.leaf import Leaf


class Residual(Leaf):
    """Sample i's update minus `sum_j parts_ij h_j`, for vectors h in the form of another leaf.

    `parts` is (B, m). Norms come from inner products, so neither the difference nor the vectors are written out.

    >>> from gnomon.updates.leaves import Dense
    >>> h = Dense(torch.tensor([[1.0, 0.0]]))
    >>> Residual(Dense(torch.tensor([[3.0, 4.0]])), h, torch.tensor([[3.0]])).dense()
    tensor([[0., 4.]])
    """

    def __init__(self, leaf: Leaf, vectors: Leaf, parts: Tensor) -> None:
        self.leaf, self.vectors, self.parts, self.shape = leaf, vectors, parts, leaf.shape

    def __len__(self) -> int:
        return len(self.leaf)

    @property
    def like(self) -> Tensor:
        return self.leaf.like

    def block(self, start: int, stop: int) -> Tensor:
        taken = self.vectors.block(start, stop)  # (m, rows, columns)
        return self.leaf.block(start, stop) - torch.einsum("bm,mrc->brc", self.parts, taken)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.leaf.weighted_sum(weights) - self.vectors.weighted_sum(weights @ self.parts)

    def square_norms(self) -> Tensor:
        parts = self.parts.double()
        crossed = (self.leaf.gram(self.vectors).double() * parts).sum(1)
        square = self.leaf.square_norms() - 2 * crossed + self._taken(parts)
        return exact_where_cancelled(self, square, self.square_ceilings())

    def square_ceilings(self) -> Tensor:
        """No less than the lengths of both parts together."""
        lengths = self.vectors.square_ceilings().sqrt()
        return (self.leaf.square_ceilings().sqrt() + self.parts.double().abs() @ lengths).square()

    def _taken(self, parts: Tensor) -> Tensor:
        square = self.vectors.gram(self.vectors).double()
        return ((parts @ square) * parts).sum(1)

    def select(self, index: Tensor) -> Residual:
        return Residual(self.leaf.select(index), self.vectors, self.parts[index])

    def double(self) -> Residual:
        return Residual(self.leaf.double(), self.vectors.double(), self.parts.double())
