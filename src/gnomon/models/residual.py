"""ResNet-20 with group normalisation, which looks at one record at a time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.models.shapes import image_shape

GROUPS = 8


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (He et al. 2016, option A).

    >>> import torch
    >>> ResidualBlock(16, 32, stride=2)(torch.zeros(5, 16, 8, 8)).shape
    torch.Size([5, 32, 4, 4])
    """

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.extra = stride, width - channels
        self.first = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, width)
        self.first_relu = nn.ReLU()
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, width)
        self.second_relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.second_norm(self.second(self.first_relu(self.first_norm(self.first(x)))))
        outer: Tensor = self.second_relu(inner + self._shortcut(x))
        return outer

    def _shortcut(self, x: Tensor) -> Tensor:
        thin = x[:, :, :: self.stride, :: self.stride]
        before = self.extra // 2
        return F.pad(thin, (0, 0, 0, 0, before, self.extra - before))  # zeros for the new channels


def resnet20(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """ResNet-20 for 32x32 or 28x28 images: 269,722 parameters on CIFAR-10.

    >>> sum(p.numel() for p in resnet20((3, 32, 32), 10).parameters())
    269722
    """
    others = "'cnn-small' for smaller images, 'mlp' for the rest"
    channels, _ = image_shape("resnet20", input_shape, [28, 32], others)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 16, 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, 16),
        nn.ReLU(),
    ]
    width = 16
    for following in (16, 32, 64):
        layers.append(ResidualBlock(width, following, stride=following // width))
        layers += [ResidualBlock(following, following) for _ in range(2)]
        width = following
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return model
