"""The updates of a linear layer in factored form, `G_i = B_i^T A_i`."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gnomon.updates.leaves.dense import FEW, Dense
from gnomon.updates.leaves.leaf import CHUNK_BYTES, Leaf, amplifies, row_square_norms


class Factored(Leaf):
    """Updates of the form `outputs_i^T inputs_i`, for each of H independent groups.

    A linear layer has one group, and T is 1 or the sequence length; a grouped convolution has several groups. The
    parameter has H * out rows and `in` columns.

    Args:
        inputs: the T inputs of the layer, (B, H, T, in).
        outputs: the T gradients of its outputs, (B, H, T, out).
        shape: the shape of the parameter.

    >>> leaf = Factored(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0]]]]), torch.Size([1, 2]))
    >>> leaf.dense()
    tensor([[[3., 6.]]])
    >>> leaf.square_norms().round()
    tensor([45.], dtype=torch.float64)
    """

    def __init__(self, inputs: Tensor, outputs: Tensor, shape: torch.Size) -> None:
        self.inputs, self.outputs, self.shape = inputs, outputs, shape

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

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if amplifies(self.inputs):
            return self.double().weighted_sum(weights.double()).to(self.like.dtype)
        groups = self.inputs.shape[1]
        scaled = self.outputs * weights[:, None, None, None]
        if groups == 1:
            total = scaled.flatten(0, 2).T @ self.inputs.flatten(0, 2)
        else:
            left = scaled.movedim(1, 0).flatten(1, 2)  # (H, B T, out)
            total = left.mT @ self.inputs.movedim(1, 0).flatten(1, 2)
        return total.reshape(self.shape)

    def square_norms(self) -> Tensor:
        return self.measured[0]

    def square_ceilings(self) -> Tensor:
        """Return `|A_i|^2 |B_i|^2`, which bounds the square norm by the Cauchy-Schwarz inequality."""
        return self.measured[1]

    @cached_property
    def measured(self) -> tuple[Tensor, Tensor]:
        """The square norms and their ceilings."""
        if self.length > 1 and self.ghost_is_cheaper():
            square, ceiling, spread = self._ghost()
            return exact_where_cancelled(self, square, ceiling, spread), ceiling
        size, groups = self.inputs.shape[:2]
        a = row_square_norms(self.inputs.reshape(size * groups, self.inputs.shape[2:].numel()))
        b = row_square_norms(self.outputs.reshape(size * groups, self.outputs.shape[2:].numel()))
        ceiling = (a * b).view(size, groups).sum(1)
        return (ceiling if self.length == 1 else super().square_norms()), ceiling  # |b a^T| = |a| |b|

    def _ghost(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the square norms `sum (A_i A_i^T) * (B_i B_i^T)`, their ceilings, and the norm of the terms.

        Samples whose squares exceed the range of float32 are computed in float64.
        """
        size, groups, length, _ = self.inputs.shape
        square = self.like.new_zeros(size, dtype=torch.float64)
        ceiling, spread = torch.zeros_like(square), torch.zeros_like(square)
        usable = torch.ones_like(square, dtype=torch.bool)
        step = max(1, CHUNK_BYTES // max(1, groups * length * length * self.like.element_size()))
        for start in range(0, size, step):
            part = slice(start, start + step)
            a = self.inputs[part] @ self.inputs[part].mT  # (b, H, T, T)
            b = self.outputs[part] @ self.outputs[part].mT
            trace_a, trace_b = (x.diagonal(0, 2, 3).sum(2, dtype=torch.float64) for x in (a, b))
            ceiling[part] = (trace_a * trace_b).sum(1)
            terms = a.mul_(b).flatten(1)
            square[part] = terms.sum(1, dtype=torch.float64)
            spread[part] = torch.linalg.vector_norm(terms, dim=1, dtype=torch.float64)
            usable[part] = _in_range(trace_a) & _in_range(trace_b)
        if self.like.dtype is not torch.float64 and not bool(usable.all()):
            index = (~usable).nonzero().squeeze(1)
            square[index], ceiling[index], spread[index] = self.select(index).double()._ghost()
        return square, ceiling, spread

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
        if any(amplifies(factor) for factor in (x, self.inputs, self.outputs)):
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


def _in_range(traces: Tensor) -> Tensor:
    """Return whether products of sums of squares (B, H) stay in the range of float32, (B,).

    A sum of zero does not: its squares may have underflowed in float32.
    """
    return ((traces > 1e-18) & (traces < 1e18)).all(1)


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
        square[index] = Leaf.square_norms(leaf.select(index).double())
    square = torch.where(ceiling > 0, square.clamp_min(0), 0)  # zero times anything finite
    return torch.where(torch.isfinite(ceiling), square, ceiling)
