"""Updates minus their projection onto a subspace."""

from __future__ import annotations

import torch
from torch import Tensor

from gnomon.updates.leaves.factored import exact_where_cancelled
from gnomon.updates.leaves.leaf import Leaf, joined

LEAST_SHARE = 0.02
"""The share of the square ceiling that a square norm must have to be accurate to about 1e-5 in float32."""


class Residual(Leaf):
    """Updates of the form `g_i - sum_j coefficients_ij h_j`.

    Norms are computed from inner products, so neither the difference nor the vectors are needed in dense form.

    Args:
        leaf: the updates g.
        vectors: the m vectors h, as a leaf.
        coefficients: (B, m).

    >>> from gnomon.updates.leaves import Dense
    >>> h = Dense(torch.tensor([[1.0, 0.0]]))
    >>> Residual(Dense(torch.tensor([[3.0, 4.0]])), h, torch.tensor([[3.0]])).dense()
    tensor([[0., 4.]])
    """

    def __init__(self, leaf: Leaf, vectors: Leaf, coefficients: Tensor) -> None:
        self.leaf, self.vectors, self.coefficients, self.shape = leaf, vectors, coefficients, leaf.shape

    def __len__(self) -> int:
        return len(self.leaf)

    @property
    def like(self) -> Tensor:
        return self.leaf.like

    def block(self, start: int, stop: int) -> Tensor:
        vectors = self.vectors.block(start, stop)  # (m, rows, columns)
        return self.leaf.block(start, stop) - torch.einsum("bm,mrc->brc", self.coefficients, vectors)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.leaf.weighted_sum(weights) - self.vectors.weighted_sum(weights @ self.coefficients)

    def square_norms(self) -> Tensor:
        ceiling = self.square_ceilings()
        if self.like.dtype is torch.float64:
            return exact_where_cancelled(self, self._terms(), ceiling)
        # float32 is enough for samples in which the terms do not cancel to a small part of themselves
        square = torch.full_like(ceiling, torch.nan)
        least = LEAST_SHARE * ceiling
        index = (self.leaf.square_norms() > least).nonzero().squeeze(1)
        if len(index):
            terms = (self if len(index) == len(self) else self.select(index))._terms()
            plausible = (terms > least[index]) & (terms < 2 * ceiling[index])
            square[index] = torch.where(plausible, terms, torch.nan)
        rest = square.isnan().nonzero().squeeze(1)
        if len(rest):
            square[rest] = self.select(rest).double().square_norms()
        return square

    def _terms(self) -> Tensor:
        """Return the sums of the terms of the square norms, in float64."""
        coefficients = self.coefficients.double()
        cross_terms = (self.leaf.gram(self.vectors).double() * coefficients).sum(1)
        square, _ = self.vectors.grams()
        return self.leaf.square_norms() - 2 * cross_terms + ((coefficients @ square) * coefficients).sum(1)

    def square_ceilings(self) -> Tensor:
        """Return the square of the sum of the ceilings of the update and of its projection."""
        lengths = self.vectors.square_ceilings().sqrt()
        return (self.leaf.square_ceilings().sqrt() + self.coefficients.double().abs() @ lengths).square()

    def select(self, index: Tensor) -> Residual:
        return Residual(self.leaf.select(index), self.vectors, self.coefficients[index])

    def double(self) -> Residual:
        return Residual(self.leaf.double(), self.vectors.double(), self.coefficients.double())

    def merged(self, views: int) -> Residual:
        return Residual(self.leaf.merged(views), self.vectors, joined(self.coefficients, views).mean(1))
