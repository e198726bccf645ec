"""Convolutions in one, two and three dimensions: any stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from gnomon.updates.leaves import Convolution, Dense, Leaf
from gnomon.updates.leaves.convolution import pad
from gnomon.updates.rules.registry import rule


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: nn.Conv2d, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    padded = pad(inputs, borders(module), module.padding_mode)
    weight = Convolution(padded, grad, module.weight.shape, module.stride, module.dilation, module.groups)
    return {"weight": weight, "bias": Dense(grad.flatten(2).sum(2))}


def borders(module: nn.Conv2d) -> list[tuple[int, int]]:
    """How many cells are added before and after each dimension.

    >>> borders(nn.Conv2d(1, 1, 4, padding="same"))
    [(1, 2), (1, 2)]
    """
    if module.padding == "valid":
        return [(0, 0)] * len(module.kernel_size)
    if module.padding == "same":
        spare = [gap * (size - 1) for gap, size in zip(module.dilation, module.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in spare]
    return [(int(amount), int(amount)) for amount in module.padding]
