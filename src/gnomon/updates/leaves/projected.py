"""Updates of a parameter whose rows a layer normalises before it uses them, such as standardised weights."""

from __future__ import annotations

import torch
from torch import Tensor

from gnomon.updates.leaves.leaf import Leaf


class RowProjected(Leaf):
    """Updates whose rows are projected onto the complement of some directions and scaled: `s_r (g_r - Q_r^T Q_r g_r)`.

    This is the derivative of a map that centres each row of a parameter or divides it by its length, applied to the
    updates of the result. It is linear and the same for all samples, so a sum is mapped once, after it was formed.

    Args:
        leaf: the updates g.
        directions: m orthonormal directions for each row, (rows, m, columns); a direction of zeros has no effect.
        scales: the factor of each row, (rows,).

    >>> from gnomon.updates.leaves import Dense
    >>> RowProjected(Dense(torch.tensor([[[3.0, 4.0]]])), torch.tensor([[[1.0, 0.0]]]), torch.tensor([2.0])).dense()
    tensor([[[0., 8.]]])
    """

    def __init__(self, leaf: Leaf, directions: Tensor, scales: Tensor) -> None:
        self.leaf, self.directions, self.scales, self.shape = leaf, directions, scales, leaf.shape

    def __len__(self) -> int:
        return len(self.leaf)

    @property
    def like(self) -> Tensor:
        return self.leaf.like

    def block(self, start: int, stop: int) -> Tensor:
        return self._mapped(self.leaf.block(start, stop), start, stop)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.mapped(self.leaf.weighted_sum(weights)[None])[0]

    def mapped(self, values: Tensor) -> Tensor:
        """Return updates of the normalised parameter, (B, *shape), as updates of the parameter."""
        matrices = values.reshape(len(values), self.rows, self.columns)
        return self._mapped(matrices, 0, self.rows).reshape(values.shape)

    def _mapped(self, block: Tensor, start: int, stop: int) -> Tensor:
        """Return rows `start:stop` of the updates, (B, stop - start, columns), from those of the inner leaf."""
        directions = self.directions[start:stop]
        shares = torch.einsum("brc,rmc->brm", block, directions)
        return (block - torch.einsum("brm,rmc->brc", shares, directions)) * self.scales[start:stop, None]

    def square_ceilings(self) -> Tensor:
        return self.leaf.square_ceilings() * self.factor

    @property
    def factor(self) -> Tensor:
        """The largest factor by which the map can lengthen the square of an update."""
        return self.scales.double().abs().max().square()

    def select(self, index: Tensor) -> RowProjected:
        return RowProjected(self.leaf.select(index), self.directions, self.scales)

    def double(self) -> RowProjected:
        return RowProjected(self.leaf.double(), self.directions.double(), self.scales.double())

    def merged(self, views: int) -> RowProjected:
        return RowProjected(self.leaf.merged(views), self.directions, self.scales)
