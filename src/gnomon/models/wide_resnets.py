"""Wide residual networks with group normalisation and standardised weights, as in De et al. (2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.models.networks import image_shape
from gnomon.updates import Convolution, Dense, Leaf, RowProjected, rule
from gnomon.updates.leaves.convolution import pad
from gnomon.updates.rules.convolution import borders
from gnomon.validate import whole

GROUPS = 16
"""The number of groups of every group normalisation."""

LEAST_SQUARE = 1e-4
"""The smallest square length of a centred filter by which it is divided."""


class StandardisedConv2d(nn.Conv2d):
    """A convolution with weight standardisation: each filter is centred, divided by its length and given a gain.

    The weight that is applied is a function of the parameters alone (Qiao et al. 2019, in the scaled form of Brock et
    al. 2021), so records do not interact. Per-sample gradients have a rule: see `standardised_convolution`.

    >>> layer = StandardisedConv2d(3, 4, 3, padding=1)
    >>> bool(layer.standardised().flatten(1).norm(dim=1).allclose(torch.ones(4)))
    True
    """

    def __init__(self, channels: int, width: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(channels, width, kernel, stride, padding)
        self.gain = nn.Parameter(torch.ones(width))
        nn.init.normal_(self.weight, std=self.weight[0].numel() ** -0.5)
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.standardised(), self.bias)

    def standardised(self) -> Tensor:
        """Return the weight that is applied."""
        return self.unit() * self.gain[:, None, None, None]

    def unit(self) -> Tensor:
        """Return the centred filters divided by their lengths."""
        centred, square = self._centred()
        return centred * square.clamp_min(LEAST_SQUARE).rsqrt()

    def _centred(self) -> tuple[Tensor, Tensor]:
        """Return the centred filters and their square lengths."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return centred, centred.square().sum((1, 2, 3), keepdim=True)

    def pulled_back(self, leaf: Leaf) -> RowProjected:
        """Return updates of the weight that is applied as updates of the parameter.

        With d a centred filter, the derivative of `gain d / |d|` removes the mean and the direction of d, and
        multiplies by `gain / |d|`. A filter that is too short to be divided by its length keeps the direction of d.
        """
        centred, square = self._centred()
        divided = square > LEAST_SQUARE
        own = torch.where(divided, centred * square.clamp_min(LEAST_SQUARE).rsqrt(), 0).flatten(1)
        constant = torch.full_like(own, own.shape[1] ** -0.5)
        scales = self.gain * square.clamp_min(LEAST_SQUARE).rsqrt().flatten()
        return RowProjected(leaf, torch.stack([constant, own], 1), scales)


@rule(StandardisedConv2d)
def standardised_convolution(module: StandardisedConv2d, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    """Build the leaves of a convolution with standardised weights.

    The gradient for the weight that is applied is that of a plain convolution; the derivative of the standardisation
    is linear and the same for all samples. The gradient for the gain is the product with the unit filters' output.
    """
    padded = pad(inputs, borders(module), module.padding_mode)
    applied = Convolution(padded, grad, module.weight.shape, module.stride, module.dilation, module.groups)
    before_gain = F.conv2d(padded, module.unit(), None, module.stride, 0, module.dilation, module.groups)
    return {
        "weight": module.pulled_back(applied),
        "bias": Dense(grad.flatten(2).sum(2)),
        "gain": Dense((grad * before_gain).flatten(2).sum(2)),
    }


class WideBlock(nn.Module):
    """Two 3x3 convolutions, each after ReLU and group normalisation in this order, with a shortcut around them.

    The shortcut of the first block of a stage has a 1x1 convolution, also after ReLU and group normalisation.

    >>> WideBlock(16, 32, stride=2, shortcut=True)(torch.zeros(5, 16, 8, 8)).shape
    torch.Size([5, 32, 4, 4])
    """

    def __init__(self, channels: int, width: int, stride: int = 1, shortcut: bool = False) -> None:
        super().__init__()
        self.shortcut = activated(channels, width, 1, stride) if shortcut else nn.Identity()
        self.first = activated(channels, width, 3, stride)
        self.second = activated(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.second(self.first(x))
        outer: Tensor = inner + self.shortcut(x)
        return outer


def activated(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return ReLU, group normalisation and a convolution with standardised weights.

    >>> len(activated(16, 32, 3))
    3
    """
    convolution = StandardisedConv2d(channels, width, kernel, stride, kernel // 2)
    return nn.Sequential(nn.ReLU(), nn.GroupNorm(GROUPS, channels), convolution)


def wide_resnet(input_shape: Sequence[int], classes: int, depth: int, width: int) -> nn.Sequential:
    """Build a wide residual network for 28x28 or 32x32 images: three stages of (depth - 4) / 6 blocks.

    Args:
        input_shape: the shape of one image.
        classes: the number of classes.
        depth: the number of convolutions and linear layers, without those of shortcuts: 10, 16, 22, ...
        width: the factor of the channels, which are 16, 32 and 64 times it.

    Raises:
        SettingError: the images have another size, or depth - 4 is no multiple of 6.

    >>> wide_resnet((3, 32, 32), 10, depth=10, width=2)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    alternatives = "'cnn-small' for smaller images, 'mlp' for other shapes"
    channels, _ = image_shape(f"wrn-{depth}-{width}", input_shape, [28, 32], alternatives)
    if whole("depth", depth, 10) % 6 != 4:
        raise SettingError("depth", depth, "4 more than a multiple of 6: 10, 16, 22, ...")
    blocks = (depth - 4) // 6
    layers: list[nn.Module] = [StandardisedConv2d(channels, 16, 3, padding=1)]
    before = 16
    for base, stride in ((16, 1), (32, 2), (64, 2)):
        after = base * whole("width", width)
        layers.append(WideBlock(before, after, stride, shortcut=True))
        layers += [WideBlock(after, after) for _ in range(blocks - 1)]
        before = after
    head = nn.Linear(before, classes)
    nn.init.trunc_normal_(head.weight, std=before**-0.5)
    nn.init.zeros_(head.bias)
    pooled = (nn.ReLU(), nn.GroupNorm(GROUPS, before), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*chain(layers, pooled), head)


def wrn_16_4(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Build WRN-16-4 of De et al., "Unlocking High-Accuracy Differentially Private Image Classification" (2022).

    >>> sum(p.numel() for p in wrn_16_4((3, 32, 32), 10).parameters())
    2753818
    """
    return wide_resnet(input_shape, classes, 16, 4)


def wrn_10_1(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Build WRN-10-1, the smallest network of the family.

    >>> sum(p.numel() for p in wrn_10_1((3, 32, 32), 10).parameters())
    78938
    """
    return wide_resnet(input_shape, classes, 10, 1)
