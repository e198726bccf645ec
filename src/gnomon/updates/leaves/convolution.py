"""The updates of a convolution: a linear layer on the windows of its input, which are extracted when needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.updates.leaves.factored import Factored
from gnomon.updates.leaves.leaf import CHUNK_BYTES, Leaf, amplifies


class Convolution(Leaf):
    """Updates that are the correlation of each sample's input with its output gradient.

    The windows together are larger than the input by a factor of the kernel size, so they are extracted for a few
    samples at a time.

    Args:
        inputs: the padded inputs, (B, C, *space).
        outputs: the gradients of the outputs, (B, out, *positions).
        shape: the shape of the weight.
        stride: the stride in each dimension.
        dilation: the dilation in each dimension.
        groups: the number of groups.

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
    ) -> None:
        self.inputs, self.outputs, self.shape = inputs, outputs, shape
        self.stride, self.dilation, self.groups = stride, dilation, groups

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def like(self) -> Tensor:
        return self.inputs

    @property
    def length(self) -> int:
        """The number of windows."""
        return self.outputs.shape[2:].numel()

    def factored(self, part: slice = slice(None)) -> Factored:
        """Return the windows and output gradients of some samples as the factors of a linear layer.

        In the columns the kernel dimensions come first and the channels last. With channels last in memory too, a
        window consists of a few contiguous runs, so that extracting it is a fast copy.
        """
        x, grad = self.inputs[part].movedim(1, -1).contiguous(), self.outputs[part].movedim(1, -1)
        steps, channels = x.stride()[1:-1], x.shape[-1] // self.groups
        windows = x.as_strided(
            (len(x), self.groups, *grad.shape[1:-1], *self.shape[2:], channels),
            (
                x.stride(0),
                channels,
                *[step * jump for step, jump in zip(steps, self.stride, strict=True)],
                *[step * gap for step, gap in zip(steps, self.dilation, strict=True)],
                1,
            ),
        )
        windows = windows.reshape(len(x), self.groups, self.length, self.columns)  # the only copy
        grad = grad.reshape(len(x), self.length, self.groups, self.rows // self.groups).transpose(1, 2)
        return Factored(windows, grad, torch.Size([self.rows, self.columns]))

    def block(self, start: int, stop: int) -> Tensor:
        return self._block(start, stop).flatten(2)

    def dense(self) -> Tensor:
        """Return the updates, (B, *shape), with channels last in memory, which saves a copy."""
        return self._block(0, self.rows)

    def _block(self, start: int, stop: int) -> Tensor:
        parts = [self.factored(part).block(start, stop) for part in self._parts()]
        block = parts[0] if len(parts) == 1 else torch.cat(parts)
        return block.unflatten(2, (*self.shape[2:], self.shape[1])).movedim(-1, 2)

    def square_norms(self) -> Tensor:
        return self._measured[0]

    def square_ceilings(self) -> Tensor:
        """Return the ceilings of a linear layer on the windows; inputs outside all windows do not count."""
        return self._measured[1]

    @cached_property
    def _measured(self) -> tuple[Tensor, Tensor]:
        """The square norms and their ceilings."""
        squares, ceilings = zip(*(self.factored(part).measured for part in self._parts()), strict=True)
        return torch.cat(squares), torch.cat(ceilings)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if amplifies(self.inputs):
            return self.double().weighted_sum(weights.double()).to(self.like.dtype)
        scaled = self.outputs * weights.reshape(-1, *[1] * (self.outputs.dim() - 1))
        # windows may not reach the last inputs of a strided convolution; remove these so that sizes agree
        reach = [
            (out - 1) * step + (size - 1) * gap + 1
            for out, step, size, gap in zip(
                self.outputs.shape[2:], self.stride, self.shape[2:], self.dilation, strict=True
            )
        ]
        x, space = self.inputs, len(reach)
        for dim, end in enumerate(reach, start=2):
            x = x.narrow(dim, 0, end)
        _, total, _ = torch.ops.aten.convolution_backward(
            scaled,
            x,
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

    def select(self, index: Tensor) -> Convolution:
        return self._with(self.inputs[index], self.outputs[index])

    def double(self) -> Convolution:
        return self._with(self.inputs.double(), self.outputs.double())

    def _with(self, inputs: Tensor, outputs: Tensor) -> Convolution:
        return Convolution(inputs, outputs, self.shape, self.stride, self.dilation, self.groups)

    def _parts(self) -> Iterator[slice]:
        window_bytes = self.groups * self.columns * self.length * self.inputs.element_size()
        step = max(1, CHUNK_BYTES // max(1, window_bytes))
        for start in range(0, max(1, len(self)), step):
            yield slice(start, start + step)


def pad(x: Tensor, padding: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """Return the input with the padding that the convolution applies.

    >>> pad(torch.ones(1, 1, 2), [(1, 0)], "zeros")
    tensor([[[0., 1., 1.]]])
    """
    amounts = [amount for pair in reversed(padding) for amount in pair]
    if not any(amounts):
        return x
    return F.pad(x, amounts) if mode == "zeros" else F.pad(x, amounts, mode=mode)
