"""The updates of a convolution: a linear layer on the windows of its input, which are extracted when needed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.updates.leaves.factored import Factored, Measured
from gnomon.updates.leaves.leaf import Leaf, amplifies, row_square_norms, rows_of

WINDOW_BYTES = 2 * 2**20
"""The size of the windows that are extracted at a time, which are read once and should stay in the cache."""


class Convolution(Leaf):
    """Updates that are the correlation of each sample's input with its output gradient.

    The windows together are larger than the input by a factor of the kernel size, so they are extracted for a few
    samples at a time. A sample may have several images, its views: the windows of all of them are its windows.

    Args:
        inputs: the padded inputs, (B * views, C, *space).
        outputs: the gradients of the outputs, (B * views, out, *positions).
        shape: the shape of the weight.
        stride: the stride in each dimension.
        dilation: the dilation in each dimension.
        groups: the number of groups.
        views: the number of images of each sample, whose correlations are added.

    >>> leaf = Convolution(torch.ones(1, 1, 3), torch.ones(1, 1, 2), torch.Size([1, 1, 2]), [1], [1], 1)
    >>> leaf.dense()
    tensor([[[[2., 2.]]]])
    """

    def __init__(
        self,
        inputs: Tensor,
        outputs: Tensor,
        shape: torch.Size,
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        views: int = 1,
    ) -> None:
        self.inputs, self.outputs, self.shape = inputs, outputs, shape
        self.stride, self.dilation, self.groups, self.views = stride, dilation, groups, views

    def __len__(self) -> int:
        return len(self.inputs) // self.views

    @property
    def like(self) -> Tensor:
        return self.inputs

    @property
    def length(self) -> int:
        """The number of windows of a sample."""
        return self.views * self.outputs.shape[2:].numel()

    def factored(self, part: slice = slice(None), buffer: Tensor | None = None) -> Factored:
        """Return the windows and output gradients of some samples as the factors of a linear layer.

        In the columns the kernel dimensions come first and the channels last. With channels last in memory too, a
        window consists of a few contiguous runs, so that extracting it is a fast copy.

        Args:
            part: the samples.
            buffer: memory for the windows, which a caller that visits one part after the other uses again.
        """
        images = self._images(part)
        x, grad = self.inputs[images].movedim(1, -1).contiguous(), self.outputs[images].movedim(1, -1)
        steps, channels = x.stride()[1:-1], x.shape[-1] // self.groups
        size = len(x) // self.views
        windows = x.as_strided(
            (size, self.groups, self.views, *grad.shape[1:-1], *self.shape[2:], channels),
            (
                x.stride(0) * self.views,
                channels,
                x.stride(0),
                *[step * jump for step, jump in zip(steps, self.stride, strict=True)],
                *[step * gap for step, gap in zip(steps, self.dilation, strict=True)],
                1,
            ),
        )
        copy = x.new_empty(windows.shape) if buffer is None else buffer[: windows.numel()].view(windows.shape)
        windows = copy.copy_(windows).view(size, self.groups, self.length, self.columns)
        grad = grad.reshape(size, self.length, self.groups, self.rows // self.groups).transpose(1, 2)
        return Factored(windows, grad, torch.Size([self.rows, self.columns]))

    def block(self, start: int, stop: int) -> Tensor:
        return self._block(start, stop).flatten(2)

    def dense(self) -> Tensor:
        """Return the updates, (B, *shape), with channels last in memory, which saves a copy."""
        return self._block(0, self.rows)

    def _block(self, start: int, stop: int) -> Tensor:
        block = self.outputs.new_empty(len(self), stop - start, self.columns)
        buffer = self._buffer()
        plain = self.groups == self.views == 1 and self.outputs.is_contiguous()
        rows = self.outputs.flatten(2)[:, start:stop] if plain else None
        for part in self._parts():
            factored = self.factored(part, buffer)
            if rows is None:
                factored.write_block(start, stop, block[part])
            else:  # the gradients as they lie in memory make a faster product than their transpose
                torch.bmm(rows[part], factored.inputs[:, 0], out=block[part])
        return block.unflatten(2, (*self.shape[2:], self.shape[1])).movedim(-1, 2)

    def square_norms(self) -> Tensor:
        return self._measured.square

    def square_ceilings(self) -> Tensor:
        """Return the ceilings of a linear layer on the windows; inputs outside all windows do not count."""
        return self._measured.ceiling

    def factor_ceilings(self) -> Tensor:
        """Return an upper bound on the square ceilings from the inputs, without their windows.

        An input is in as many windows as kernel positions k have the right remainder of `k * dilation` by the stride,
        which repeats after `stride / gcd(stride, dilation)` of them.
        """
        if any(step > size for step, size in zip(self.stride, self.shape[2:], strict=True)):
            return self.square_ceilings()  # a bound from inputs between the windows could be infinite without reason
        sizes = zip(self.stride, self.shape[2:], self.dilation, strict=True)
        times = math.prod(-(-size * math.gcd(step, gap) // step) for step, size, gap in sizes)
        a, b = (
            row_square_norms(factor.reshape(len(factor) * self.groups, factor.shape[1:].numel() // self.groups))
            for factor in (self._reached_inputs(), self.outputs)
        )
        if self.views > 1:
            a, b = (square.view(len(self), self.views, self.groups).sum(1) for square in (a, b))
        return times * (a * b).view(len(self), self.groups).sum(1)

    def square_spreads(self) -> Tensor:
        return self._measured.spread

    @cached_property
    def _measured(self) -> Measured:
        """The square norms and what is known about their rounding errors."""
        buffer = self._buffer()
        parts = zip(*(self.factored(part, buffer).measured for part in self._parts()), strict=True)
        square, ceiling, spread, largest = ([*values] for values in parts)
        return Measured(torch.cat(square), torch.cat(ceiling), torch.cat(spread), torch.stack(largest).max())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if amplifies(self.inputs):
            return self.double().weighted_sum(weights.double()).to(self.like.dtype)
        each = weights if self.views == 1 else weights.repeat_interleave(self.views)
        scaled = self.outputs * each.reshape(-1, *[1] * (self.outputs.dim() - 1))
        space = len(self.stride)
        _, total, _ = torch.ops.aten.convolution_backward(
            scaled,
            self._reached_inputs(),
            self.inputs.new_empty(1).expand(self.shape),
            None,
            list(self.stride),
            [0] * space,
            list(self.dilation),
            False,
            [0] * space,
            self.groups,
            [False, True, False],
        )
        assert isinstance(total, Tensor)
        return total

    def _reached_inputs(self) -> Tensor:
        """Return the inputs without the last ones, if the windows of a strided convolution do not reach these."""
        x, positions = self.inputs, self.outputs.shape[2:]
        sizes = zip(positions, self.stride, self.shape[2:], self.dilation, strict=True)
        for dim, (count, step, size, gap) in enumerate(sizes, start=2):
            x = x.narrow(dim, 0, (count - 1) * step + (size - 1) * gap + 1)
        return x

    def select(self, index: Tensor) -> Convolution:
        images = index if self.views == 1 else rows_of(index, self.views)
        return self._with(self.inputs[images], self.outputs[images])

    def double(self) -> Convolution:
        return self._with(self.inputs.double(), self.outputs.double())

    def merged(self, views: int) -> Convolution:
        """Return the leaf of records that have all images of their views; output gradients become a fraction."""
        merged = self._with(self.inputs, self.outputs / views)
        merged.views = views * self.views
        return merged

    def _with(self, inputs: Tensor, outputs: Tensor) -> Convolution:
        return Convolution(inputs, outputs, self.shape, self.stride, self.dilation, self.groups, self.views)

    def _images(self, part: slice) -> slice:
        """Return the images of some samples."""
        if self.views == 1 or part == slice(None):
            return part
        return slice(part.start * self.views, part.stop * self.views)

    @property
    def _part_size(self) -> int:
        """The number of samples whose windows are extracted at a time."""
        return max(1, min(len(self), WINDOW_BYTES // max(1, self._windows * self.inputs.element_size())))

    @property
    def _windows(self) -> int:
        """The number of entries in the windows of one sample."""
        return self.groups * self.columns * self.length

    def _parts(self) -> Iterator[slice]:
        for start in range(0, max(1, len(self)), self._part_size):
            yield slice(start, start + self._part_size)

    def _buffer(self) -> Tensor:
        """Return memory for the windows of one part."""
        return self.inputs.new_empty(self._part_size * self._windows)


def pad(x: Tensor, padding: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """Return the input with the padding that the convolution applies.

    >>> pad(torch.ones(1, 1, 2), [(1, 0)], "zeros")
    tensor([[[0., 1., 1.]]])
    """
    amounts = [amount for pair in reversed(padding) for amount in pair]
    if not any(amounts):
        return x
    return F.pad(x, amounts) if mode == "zeros" else F.pad(x, amounts, mode=mode)
