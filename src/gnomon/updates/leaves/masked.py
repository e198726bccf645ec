"""Updates restricted to some coordinates by a mask."""

from __future__ import annotations

import torch
from torch import Tensor

from gnomon.updates.leaves.factored import Factored
from gnomon.updates.leaves.leaf import Leaf

LEAST_SHARE = 1e-30
"""If the mask leaves a smaller share of the square norm, float32 may have lost part of it."""


class Masked(Leaf):
    """Updates times the same mask of zeros and ones for every sample, in the shape of the parameter.

    >>> from gnomon.updates.leaves import Dense
    >>> Masked(Dense(torch.tensor([[3.0, 4.0]])), torch.tensor([1.0, 0.0])).square_norms()
    tensor([9.], dtype=torch.float64)
    """

    def __init__(self, leaf: Leaf, mask: Tensor) -> None:
        self.leaf, self.mask, self.shape = leaf, mask, leaf.shape

    def __len__(self) -> int:
        return len(self.leaf)

    @property
    def like(self) -> Tensor:
        return self.leaf.like

    def block(self, start: int, stop: int) -> Tensor:
        return self.leaf.block(start, stop) * self.mask.reshape(self.rows, self.columns)[start:stop]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.leaf.weighted_sum(weights) * self.mask

    def square_norms(self) -> Tensor:
        leaf = self.leaf
        if not (isinstance(leaf, Factored) and leaf.length == 1 and leaf.inputs.shape[1] == 1):
            return super().square_norms()
        # |b a^T * M|^2 = (b^2)^T M (a^2); vectors are scaled to unit length so that their squares stay in range
        a, b = leaf.inputs[:, 0, 0], leaf.outputs[:, 0, 0]
        norm_a, norm_b = (torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in (a, b))
        a, b = (_unit(x, norm).square().to(self.mask.dtype) for x, norm in ((a, norm_a), (b, norm_b)))
        share = ((b @ self.mask) * a).sum(1, dtype=torch.float64)
        square = share * (norm_a * norm_b).square()
        doubtful = (share < LEAST_SHARE) & (norm_a * norm_b > 0)
        if bool(doubtful.any()):
            index = doubtful.nonzero().squeeze(1)
            square[index] = Leaf.square_norms(self.select(index).double())
        return torch.where(torch.isfinite(norm_a * norm_b), square, torch.inf)

    def square_ceilings(self) -> Tensor:
        return self.leaf.square_ceilings()

    def select(self, index: Tensor) -> Masked:
        return Masked(self.leaf.select(index), self.mask)

    def double(self) -> Masked:
        return Masked(self.leaf.double(), self.mask.double())

    def merged(self, views: int) -> Masked:
        return Masked(self.leaf.merged(views), self.mask)


def _unit(rows: Tensor, lengths: Tensor) -> Tensor:
    """Return rows scaled to unit length in float64; rows of zeros stay zero."""
    return rows.double() / lengths.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
