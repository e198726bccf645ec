"""The rule of convolutions in one, two and three dimensions, with any stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.updates.leaves import Convolution, Dense, Leaf
from gnomon.updates.leaves.convolution import pad
from gnomon.updates.rules.registry import Drift, drifted_parameter, rule

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
"""The convolution for each number of spatial dimensions."""


def drifted(module: nn.Conv2d, inputs: Tensor, drift: Drift) -> Tensor:
    """Convolve each sample with weights of its own, as the groups of a single convolution."""
    size, space = len(inputs), inputs.dim() - 2
    padded = pad(inputs, borders(module), module.padding_mode)
    weight = drifted_parameter(module, "weight", drift, size)
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
    return output + drifted_parameter(module, "bias", drift, size).reshape(size, -1, *[1] * space)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, drifted=drifted)
def convolution(module: nn.Conv2d, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    """Build the leaves of a convolution."""
    padded = pad(inputs, borders(module), module.padding_mode)
    weight = Convolution(padded, grad, module.weight.shape, module.stride, module.dilation, module.groups)
    return {"weight": weight, "bias": Dense(grad.flatten(2).sum(2))}


def borders(module: nn.Conv2d) -> list[tuple[int, int]]:
    """Return the padding before and after each spatial dimension.

    >>> borders(nn.Conv2d(1, 1, 4, padding="same"))
    [(1, 2), (1, 2)]
    """
    if module.padding == "valid":
        return [(0, 0)] * len(module.kernel_size)
    if module.padding == "same":
        totals = [gap * (size - 1) for gap, size in zip(module.dilation, module.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(int(amount), int(amount)) for amount in module.padding]
