"""The updates of an embedding table, where each sample changes a few rows."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gnomon.updates.leaves.factored import Factored, exact_where_cancelled
from gnomon.updates.leaves.leaf import CHUNK_BYTES, Leaf, joined


class Indexed(Leaf):
    """Updates that add `values_i,t` to row `index_i,t`, without storing anything of the size of the table.

    If a row occurs several times, its values are added.

    Args:
        index: the rows, (B, T).
        values: the values, (B, T, columns).
        shape: the shape of the table.

    >>> leaf = Indexed(torch.tensor([[1, 1]]), torch.tensor([[[3.0], [1.0]]]), torch.Size([4, 1]))
    >>> leaf.square_norms()
    tensor([16.], dtype=torch.float64)
    """

    def __init__(self, index: Tensor, values: Tensor, shape: torch.Size) -> None:
        self.index, self.values, self.shape = index, values, shape

    def __len__(self) -> int:
        return len(self.index)

    @property
    def like(self) -> Tensor:
        return self.values

    def block(self, start: int, stop: int) -> Tensor:
        out = self.values.new_zeros(len(self), stop - start, self.columns)
        inside = (self.index >= start) & (self.index < stop)
        sample, position = inside.nonzero(as_tuple=True)
        rows = self.index[sample, position] - start
        return out.index_put_((sample, rows), self.values[sample, position], accumulate=True)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = (self.values * weights[:, None, None]).flatten(0, 1)
        total = self.values.new_zeros(self.rows, self.columns)
        return total.index_add_(0, self.index.flatten(), scaled).reshape(self.shape)

    def square_norms(self) -> Tensor:
        return self._measured[0]

    def square_ceilings(self) -> Tensor:
        """Return the square norm if no row occurs twice, else `(sum_t |values_t|)^2`, as if all rows were the same."""
        return self._measured[1]

    @cached_property
    def _measured(self) -> tuple[Tensor, Tensor]:
        """The square norms and their ceilings; only samples in which a row occurs twice need all pairs of positions."""
        lengths = torch.linalg.vector_norm(self.values, dim=2, dtype=torch.float64)
        square = lengths.square().sum(1)
        twice = self._repeated(lengths).nonzero().squeeze(1)
        if not len(twice):
            return square, square
        ceiling = square.clone()
        ceiling[twice] = lengths[twice].sum(1).square_()
        selected = self.select(twice)
        paired, spread = selected._paired(lengths[twice].amax(1))
        square[twice] = exact_where_cancelled(selected, paired, ceiling[twice], spread)
        return square, ceiling

    def _repeated(self, lengths: Tensor) -> Tensor:
        """Return which samples have a row more than once, with nonzero values."""
        unused = self.rows + torch.arange(self.index.shape[1], device=self.index.device)
        ordered = torch.where(lengths == 0, unused, self.index).sort(1).values
        return (ordered[:, 1:] == ordered[:, :-1]).any(1)

    def _paired(self, longest: Tensor) -> tuple[Tensor, Tensor]:
        """Return the square norms as sums over all pairs of positions, and the norms of their terms.

        Samples in which the square of the longest value exceeds the range of float32 are computed in float64.
        """
        size, length = self.index.shape
        square = self.values.new_zeros(size, dtype=torch.float64)
        spread = torch.zeros_like(square)
        step = max(1, CHUNK_BYTES // max(1, length * length * self.values.element_size()))
        for start in range(0, size, step):
            part = slice(start, start + step)
            same = self.index[part, :, None] == self.index[part, None, :]
            dots = self.values[part] @ self.values[part].mT
            terms = torch.where(same, dots, 0).flatten(1)
            square[part] = terms.sum(1, dtype=torch.float64)
            spread[part] = torch.linalg.vector_norm(terms, dim=1, dtype=torch.float64)
        outside = ~((longest > 1e-15) & (longest < 1e15))
        if self.values.dtype is not torch.float64 and bool(outside.any()):
            index = outside.nonzero().squeeze(1)
            square[index], spread[index] = self.select(index).double()._paired(longest[index])
        return square, spread

    def gram(self, other: Leaf) -> Tensor:
        if not isinstance(other, Indexed):
            return super().gram(other)
        used = other.index.unique()
        if _rows_are_cheaper(len(used), self.index.shape[1], other.index.shape[1]):
            return Leaf.gram(*(leaf._restricted(used) for leaf in (self, other)))
        total = self.values.new_zeros(len(self), len(other))
        length, other_length = self.index.shape[1], other.index.shape[1]
        step = max(1, CHUNK_BYTES // max(1, length * len(other) * other_length * self.values.element_size()))
        for start in range(0, len(self), step):
            part = slice(start, start + step)
            dots = self.values[part].flatten(0, 1) @ other.values.flatten(0, 1).T
            same = self.index[part].reshape(-1, 1) == other.index.reshape(1, -1)
            terms = torch.where(same, dots, 0).view(len(self.index[part]), length, len(other), other_length)
            total[part] = terms.sum((1, 3))
        return total

    def grams(self, other: Leaf | None = None) -> tuple[Tensor, Tensor | None]:
        used, length = self.index.unique(), self.index.shape[1]
        if not _rows_are_cheaper(len(used), length, length):
            return self.self_gram(), None if other is None else other.gram(self)
        restricted = self._restricted(used)
        if isinstance(other, Indexed):
            return Leaf.grams(restricted, other._restricted(used))
        return Leaf.grams(restricted)[0], None if other is None else other.gram(self)

    def _restricted(self, used: Tensor) -> Indexed:
        """Return the updates of the rows `used`, which are sorted, as a leaf of a table with these rows only."""
        place = torch.searchsorted(used, self.index.contiguous())
        known = used[place.clamp_max(len(used) - 1)] == self.index
        shape = torch.Size([len(used), self.columns])
        return Indexed(torch.where(known, place, len(used)), self.values, shape)  # no block has row len(used)

    def self_gram(self) -> Tensor:
        exact = self.double()
        return exact.gram(exact)

    def inner(self, other: Leaf) -> Tensor:
        """Return `<g_i, h_i>`; against a linear layer with the same table `sum_t,s b'_s[index_t] <a'_s, values_t>`."""
        if not (isinstance(other, Factored) and other.inputs.shape[1] == 1):
            return super().inner(other)
        return self._terms_with(other).sum(1, dtype=torch.float64)

    def inner_with_spread(self, other: Leaf) -> tuple[Tensor, Tensor]:
        if not (isinstance(other, Factored) and other.inputs.shape[1] == 1):
            return super().inner_with_spread(other)
        terms = self._terms_with(other)
        return terms.sum(1, dtype=torch.float64), torch.linalg.vector_norm(terms, dim=1, dtype=torch.float64)

    def _terms_with(self, other: Factored) -> Tensor:
        """Return the terms of the inner products with a linear layer over all pairs of positions, (B, pairs)."""
        picked = other.outputs[:, 0].gather(2, self.index[:, None, :].expand(-1, other.length, -1))
        return (picked * (other.inputs[:, 0] @ self.values.mT)).flatten(1)

    def select(self, index: Tensor) -> Indexed:
        return Indexed(self.index[index], self.values[index], self.shape)

    def times(self, x: Tensor) -> Tensor:
        dots = x @ self.values.mT  # (B, T, positions)
        out = dots.new_zeros(*x.shape[:2], self.rows)
        return out.scatter_add(2, self.index[:, None, :].expand_as(dots), dots)

    def rows_at(self, index: Tensor) -> Tensor:
        same = index[:, :, None] == self.index[:, None, :]
        return same.to(self.values.dtype) @ self.values

    def double(self) -> Indexed:
        return Indexed(self.index, self.values.double(), self.shape)

    def merged(self, views: int) -> Indexed:
        """Return a leaf in which each record adds the values of all its views, divided by the number of views."""
        index, values = (joined(part, views).flatten(1, 2) for part in (self.index, self.values))
        return Indexed(index, values / views, self.shape)


def _rows_are_cheaper(rows: int, length: int, other_length: int) -> bool:
    """Return whether a Gram matrix costs less from dense blocks of rows than from all pairs of positions."""
    return 2 * rows < length * other_length
