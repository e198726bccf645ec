"""The updates of a linear layer in factored form, `G_i = B_i^T A_i`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gnomon.updates.leaves.dense import FEW, Dense
from gnomon.updates.leaves.leaf import CHUNK_BYTES, HUGE, Leaf, amplifies, joined, row_square_norms

GHOST_BYTES = 4 * 2**20
"""The size of the T x T products of a few samples, which are read several times and should stay in the cache."""


class Measured(NamedTuple):
    """The square norms of the updates of a leaf, and what is known about their rounding errors. All in float64."""

    square: Tensor
    ceiling: Tensor
    """An upper bound on what the square norms would be if no terms cancelled."""
    spread: Tensor
    """The norm of the terms whose sum the square norms are."""
    largest: Tensor
    """An upper bound on the absolute value of every entry of the factors, a single number."""


LARGEST_QUICK = 1e12
"""If the square of a factor is larger, the other factor may be so small that its square underflows in float32."""


class Factored(Leaf):
    """Updates of the form `outputs_i^T inputs_i`, for each of H independent groups.

    A linear layer has one group, and T is 1 or the sequence length; a grouped convolution has several groups. The
    parameter has H * out rows and `in` columns.

    Args:
        inputs: the T inputs of the layer, (B, H, T, in).
        outputs: the T gradients of its outputs, (B, H, T, out).
        shape: the shape of the parameter.
        moderate: whether all entries of the factors are known to be below `HUGE`, so that `times` need not read them.

    >>> leaf = Factored(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0]]]]), torch.Size([1, 2]))
    >>> leaf.dense()
    tensor([[[3., 6.]]])
    >>> leaf.square_norms().round()
    tensor([45.], dtype=torch.float64)
    """

    def __init__(self, inputs: Tensor, outputs: Tensor, shape: torch.Size, moderate: bool = False) -> None:
        self.inputs, self.outputs, self.shape, self._moderate = inputs, outputs, shape, moderate

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def like(self) -> Tensor:
        return self.inputs

    @property
    def length(self) -> int:
        """The number T of inputs per sample."""
        return self.inputs.shape[2]

    def block(self, start: int, stop: int) -> Tensor:
        size, groups, _, columns = self.inputs.shape
        if groups == 1:
            return self.outputs[:, 0, :, start:stop].mT @ self.inputs[:, 0]
        matrices = self.outputs.mT @ self.inputs  # (B, H, out, in)
        return matrices.reshape(size, self.rows, columns)[:, start:stop]

    def blocks(self, step: int) -> Iterator[Tensor]:
        size, groups, _, columns = self.inputs.shape
        if groups > 1:
            yield from super().blocks(step)
            return
        # memory that is allocated anew for each block would cost more time than the products
        memory = self.inputs.new_empty(size * min(step, self.rows) * columns)
        for start in range(0, self.rows, step):
            rows = min(step, self.rows - start)
            block = memory[: size * rows * columns].view(size, rows, columns)
            yield torch.bmm(self.outputs[:, 0, :, start : start + rows].mT, self.inputs[:, 0], out=block)

    def write_block(self, start: int, stop: int, out: Tensor) -> None:
        """Write `block(start, stop)` to a tensor of its shape."""
        if self.inputs.shape[1] == 1:
            torch.bmm(self.outputs[:, 0, :, start:stop].mT, self.inputs[:, 0], out=out)
        else:
            out.copy_(self.block(start, stop))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._amplifies():
            return self.double().weighted_sum(weights.double()).to(self.like.dtype)
        inputs, outputs, weights = self.inputs, self.outputs, weights[:, None, None, None]
        if inputs.shape[3] < outputs.shape[3]:  # scale the smaller factor
            inputs = inputs * weights
        else:
            outputs = outputs * weights
        if inputs.shape[1] == 1:
            total = outputs.flatten(0, 2).T @ inputs.flatten(0, 2)
        else:
            left = outputs.movedim(1, 0).flatten(1, 2)  # (H, B T, out)
            total = left.mT @ inputs.movedim(1, 0).flatten(1, 2)
        return total.reshape(self.shape)

    def _amplifies(self) -> bool:
        """Return whether a factor is so large that a product with a subnormal number has to be computed in float64."""
        if self.like.dtype is torch.float64:
            return False
        if "measured" in self.__dict__:  # no entry is larger than the norm of its sample
            return not float(self.measured.largest) < HUGE
        return amplifies(self.inputs) or amplifies(self.outputs)

    def square_norms(self) -> Tensor:
        return self.measured.square

    def square_ceilings(self) -> Tensor:
        """Return `|A_i|^2 |B_i|^2`, which bounds the square norm by the Cauchy-Schwarz inequality."""
        return self.measured.ceiling if "measured" in vars(self) else self.factor_ceilings()

    def factor_ceilings(self) -> Tensor:
        """Return the square ceilings without the norms, which cost far more."""
        a, b = self._factor_squares
        return (a * b).sum(1)

    @cached_property
    def _factor_squares(self) -> tuple[Tensor, Tensor]:
        """The square norms of both factors, (B, H) each."""
        size, groups = self.inputs.shape[:2]
        a, b = (
            row_square_norms(factor.reshape(size * groups, factor.shape[2:].numel())).view(size, groups)
            for factor in (self.inputs, self.outputs)
        )
        return a, b

    def square_spreads(self) -> Tensor:
        return self.measured.spread

    @cached_property
    def measured(self) -> Measured:
        """The square norms and what is known about their rounding errors."""
        if self.length > 1 and self.ghost_is_cheaper():
            ghost = self._ghost()
            return ghost._replace(square=exact_where_cancelled(self, *ghost[:3]))
        ceiling = self.factor_ceilings()
        square = ceiling if self.length == 1 else super().square_norms()  # |b a^T| = |a| |b|
        return Measured(square, ceiling, square, _largest(*self._factor_squares))

    def _ghost(self) -> Measured:
        """Return the square norms `sum (A_i A_i^T) * (B_i B_i^T)`, their ceilings, and the norm of the terms.

        Samples whose squares exceed the range of float32 are computed in float64.
        """
        size, groups, length, _ = self.inputs.shape
        square = self.like.new_empty(size, dtype=torch.float64)
        ceiling, spread = torch.empty_like(square), torch.empty_like(square)
        traces = self.like.new_empty(2, size, groups, dtype=torch.float64)
        step = max(1, GHOST_BYTES // max(1, groups * length * length * self.like.element_size()))
        for start in range(0, size, step):
            part = slice(start, start + step)
            a = self.inputs[part] @ self.inputs[part].mT  # (b, H, T, T)
            b = self.outputs[part] @ self.outputs[part].mT
            for trace, products in zip(traces, (a, b), strict=True):
                trace[part] = products.diagonal(0, 2, 3).sum(2, dtype=torch.float64)
            terms = a.mul_(b).flatten(1)
            square[part] = terms.sum(1, dtype=torch.float64)
            spread[part] = torch.linalg.vector_norm(terms, dim=1, dtype=torch.float64)
        torch.sum(traces[0] * traces[1], 1, out=ceiling)
        usable = ((traces > 1e-18) & (traces < 1e18)).all(2).all(0)  # squares of zero may have underflowed
        largest = _largest(*traces)
        if self.like.dtype is not torch.float64 and not bool(usable.all()):
            index = (~usable).nonzero().squeeze(1)
            exact = self.select(index).double()._ghost()
            square[index], ceiling[index], spread[index] = exact[:3]
            largest = torch.maximum(largest, exact.largest)
        return Measured(square, ceiling, spread, largest)

    def exact_square_norms(self) -> Tensor:
        """Return the square norms in float64; by products of all pairs of positions where that is cheaper."""
        exact = self.double()
        if not self.ghost_is_cheaper():
            return Leaf.square_norms(exact)
        square, ceiling, _, _ = exact._ghost()
        doubtful = ~(square > 1e-9 * ceiling)
        if bool(doubtful.any()):
            index = doubtful.nonzero().squeeze(1)
            square[index] = Leaf.square_norms(exact.select(index))
        return square

    def ghost_is_cheaper(self) -> bool:
        """Return whether T^2 (in + out) multiplications are fewer than the T in out of the dense form."""
        columns, rows = self.inputs.shape[3], self.outputs.shape[3]
        return self.length * (columns + rows) < columns * rows

    def gram(self, other: Leaf) -> Tensor:
        if isinstance(other, Dense) and len(other) <= FEW and self.inputs.shape[1] == 1:
            return torch.stack([self._dot(matrix) for matrix in other.block(0, self.rows)], 1)
        if isinstance(other, Factored) and self._factored_gram_is_cheaper(other):
            return self._factored_gram(other)
        return super().gram(other)

    def grams(self, other: Leaf | None = None) -> tuple[Tensor, Tensor | None]:
        if self.length > 1 and not self._factored_gram_is_cheaper(self):
            return super().grams(other)
        return self._quick_gram(), None if other is None else other.gram(self)

    def _quick_gram(self) -> Tensor:
        """Return the Gram matrix for `grams` from Gram matrices of the factors."""
        if self.length > 1:
            return self.self_gram()  # terms of several tokens may cancel, and float32 would lose the rest
        square = self.like.new_zeros(len(self), len(self), dtype=torch.float64)
        for group in range(self.inputs.shape[1]):
            a, b = (factor[:, group, 0] for factor in (self.inputs, self.outputs))
            grams = a @ a.T, b @ b.T
            if not all(bool((gram.diagonal() < LARGEST_QUICK).all()) for gram in grams):
                return self.self_gram()
            square += grams[0].double() * grams[1].double()
        return square

    def self_gram(self) -> Tensor:
        if self.length == 1 or self._factored_gram_is_cheaper(self):
            exact = self.double()
            return exact._factored_gram(exact)
        return super().self_gram()

    def _dot(self, matrix: Tensor) -> Tensor:
        """Return `<B_i^T A_i, M> = sum_t b_t^T M a_t` for one matrix, (B,)."""
        return ((self.inputs[:, 0] @ matrix.T) * self.outputs[:, 0]).flatten(1).sum(1)

    def _factored_gram_is_cheaper(self, other: Factored) -> bool:
        columns, rows = self.inputs.shape[3], self.outputs.shape[3]
        own_rows, other_rows = len(self) * self.length, len(other) * other.length
        dense_cost = (own_rows + other_rows + len(self) * len(other)) * columns * rows
        return own_rows * other_rows * (columns + rows) < dense_cost

    def _factored_gram(self, other: Factored) -> Tensor:
        total = self.like.new_zeros(len(self), len(other))
        span = len(other) * other.length
        step = max(1, CHUNK_BYTES // max(1, self.length * span * self.like.element_size()))
        for group in range(self.inputs.shape[1]):
            other_inputs = other.inputs[:, group].flatten(0, 1)
            other_outputs = other.outputs[:, group].flatten(0, 1)
            for start in range(0, len(self), step):
                part = slice(start, start + step)
                a = self.inputs[part, group].flatten(0, 1) @ other_inputs.T
                b = self.outputs[part, group].flatten(0, 1) @ other_outputs.T
                product = a.mul_(b).view(len(self.inputs[part]), self.length, len(other), other.length)
                total[part] += product[:, 0, :, 0] if self.length == other.length == 1 else product.sum((1, 3))
        return total

    def select(self, index: Tensor) -> Factored:
        return Factored(self.inputs[index], self.outputs[index], self.shape)

    def times(self, x: Tensor) -> Tensor:
        if self.inputs.shape[1] > 1:
            return super().times(x)
        if any(amplifies(factor) for factor in ((x,) if self._moderate else (x, self.inputs, self.outputs))):
            # an intermediate product could overflow in float32
            exact = self.double()
            return ((x.double() @ exact.inputs[:, 0].mT) @ exact.outputs[:, 0]).to(x.dtype)
        return (x @ self.inputs[:, 0].mT) @ self.outputs[:, 0]

    def rows_at(self, index: Tensor) -> Tensor:
        if self.inputs.shape[1] > 1:
            return super().rows_at(index)
        picked = self.outputs[:, 0].gather(2, index[:, None, :].expand(-1, self.length, -1))  # (B, R, T)
        return picked.mT @ self.inputs[:, 0]

    def double(self) -> Factored:
        return Factored(self.inputs.double(), self.outputs.double(), self.shape)

    def merged(self, views: int) -> Factored:
        """Return factors with the T inputs and output gradients of all views of a record, (records, H, views * T, ...).

        The smaller factor is divided by the number of views. Neither is copied otherwise, if there is one group.
        """
        inputs, outputs = (
            joined(factor, views).transpose(1, 2).flatten(2, 3) for factor in (self.inputs, self.outputs)
        )
        if inputs.shape[3] < outputs.shape[3]:
            return Factored(inputs / views, outputs, self.shape)
        return Factored(inputs, outputs / views, self.shape)


def _largest(*squares: Tensor) -> Tensor:
    """Return the square root of the largest number; NaN if there is a NaN."""
    return torch.stack([square.max() if square.numel() else square.new_zeros(()) for square in squares]).max().sqrt()


def exact_where_cancelled(leaf: Leaf, square: Tensor, ceiling: Tensor, spread: Tensor | None = None) -> Tensor:
    """Return square norms that are sums of signed terms, recomputed in float64 where terms cancelled or overflowed.

    Guarantee: the relative error of a finite norm is about 1e-5 or less, even if large terms of opposite sign leave a
    small sum, so that rounding cannot make a norm pass as smaller than it is. A norm is finite exactly if its ceiling
    is finite, whatever `square` contains.

    Args:
        leaf: the leaf.
        square: the square norms, (B,); overwritten.
        ceiling: the square ceilings, (B,).
        spread: the norm of the terms, if their rounding errors are independent, as those of many tokens are. The error
            of the sum is then a few roundings of the spread; otherwise, of the ceiling.
    """
    eps = torch.finfo(leaf.like.dtype).eps
    least = torch.maximum(1e4 * eps * ceiling, 2e5 * eps * (ceiling if spread is None else spread))
    plausible = (square > least) & (square < (1 + 1e4 * eps) * ceiling)
    doubtful = ~plausible & (ceiling > 0) & torch.isfinite(ceiling)
    if bool(doubtful.any()):
        index = doubtful.nonzero().squeeze(1)
        square[index] = leaf.select(index).exact_square_norms()
    square = torch.where(ceiling > 0, square.clamp_min(0), 0)  # zero times anything finite
    return torch.where(torch.isfinite(ceiling), square, ceiling)
