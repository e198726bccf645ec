"""Small convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gnomon.errors import SettingError
from gnomon.models.shapes import any_shape, image_shape


class ChannelsLast(nn.Module):
    """The same images with their channels last in memory, where pooling on a CPU is four times faster.

    >>> ChannelsLast()(torch.zeros(2, 1, 4, 4)).stride()
    (16, 1, 4, 1)
    """

    def forward(self, x: Tensor) -> Tensor:
        # contiguous() would see nothing to do for a single channel
        return x.clone(memory_format=torch.channels_last)


def paper_cnn(input_shape: Sequence[int], classes: int, channels_last: bool = True) -> nn.Sequential:
    """The network of the PDP-SGD and PCDP-SGD papers, for 28x28 images: 26,010 parameters on MNIST.

    Both pools are 2x2 with stride 1, so the sides go 28, 14, 13, 5, 4. It returns logits: the papers'
    final log-softmax is part of the cross-entropy.

    >>> sum(p.numel() for p in paper_cnn((1, 28, 28), 10).parameters())
    26010
    """
    others = "'cnn-small' for smaller images, 'lenet' or 'resnet20' for 32x32, 'mlp' for the rest"
    channels, _ = image_shape("cnn", input_shape, [28], others)
    return nn.Sequential(
        ChannelsLast() if channels_last else nn.Identity(),
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


def small_cnn(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Two 3x3 convolutions and a linear layer, for images from 4x4; 1,898 parameters on the 8x8 digits.

    >>> sum(p.numel() for p in small_cnn((1, 8, 8), 10).parameters())
    1898
    """
    shape = any_shape(input_shape)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise SettingError("input_shape", shape, "images of 4x4 or more to 'cnn-small', or use 'mlp'")
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), classes),
    )


def lenet(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """LeNet-5 with ReLU and max-pooling: 62,006 parameters on CIFAR-10.

    28x28 images get two pixels of padding, so that both sizes reach the linear layers as 16x5x5.

    >>> sum(p.numel() for p in lenet((3, 32, 32), 10).parameters())
    62006
    """
    others = "'cnn-small' for smaller images, 'mlp' for the rest"
    channels, side = image_shape("lenet", input_shape, [28, 32], others)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=(32 - side) // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
