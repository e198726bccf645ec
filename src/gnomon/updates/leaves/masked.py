"""Updates of which some coordinates are left out."""

from __future__ import annotations

import torch
from torch import Tensor

from gnomon.updates.leaves.factored import Factored
from gnomon.updates.leaves.leaf import Leaf

LEAST_SHARE = 1e-30
"""Below this part of a square norm, float32 may have lost some of what the mask leaves."""


class Masked(Leaf):
    """Every sample's update times the same mask of zeros and ones, in the parameter's shape.

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
        # |b a^T * M|^2 = (b^2)^T M (a^2); rows are scaled to length one so that squares stay in range
        a, b = leaf.inputs[:, 0, 0], leaf.outputs[:, 0, 0]
        long_a, long_b = (torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in (a, b))
        a, b = (_unit(x, length).square().to(self.mask.dtype) for x, length in ((a, long_a), (b, long_b)))
        share = ((b @ self.mask) * a).sum(1, dtype=torch.float64)
        square = share * (long_a * long_b).square()
        vanished = (share < LEAST_SHARE) & (long_a * long_b > 0)
        if bool(vanished.any()):
            index = vanished.nonzero().squeeze(1)
            square[index] = Leaf.square_norms(self.select(index).double())
        return torch.where(torch.isfinite(long_a * long_b), square, torch.inf)

    def square_ceilings(self) -> Tensor:
        return self.leaf.square_ceilings()

    def select(self, index: Tensor) -> Masked:
        return Masked(self.leaf.select(index), self.mask)

    def double(self) -> Masked:
        return Masked(self.leaf.double(), self.mask.double())


def _unit(rows: Tensor, lengths: Tensor) -> Tensor:
    """Rows of length one in float64; rows of zeros stay zero."""
    return rows.double() / lengths.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
