"""Convolutions in one, two and three dimensions: any stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.updates.leaves import Convolution, Dense, Leaf
from gnomon.updates.leaves.convolution import pad
from gnomon.updates.rules.registry import Drift, own, rule

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def drifted(module: nn.Conv2d, inputs: Tensor, drift: Drift) -> Tensor:
    """All samples at once, as the groups of one convolution: each with weights of its own."""
    size, space = len(inputs), inputs.dim() - 2
    padded = pad(inputs, borders(module), module.padding_mode)
    weight = own(module, "weight", drift, size)
    output = CONVOLVE[space](
        padded.reshape(1, size * padded.shape[1], *padded.shape[2:]),
        weight.reshape(size * module.out_channels, *weight.shape[2:]),
        None,
        module.stride,
        0,
        module.dilation,
        size * module.groups,
    )
    output = output.reshape(size, module.out_channels, *output.shape[2:])
    if module.bias is None:
        return output
    return output + own(module, "bias", drift, size).reshape(size, -1, *[1] * space)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, drifted=drifted)
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
