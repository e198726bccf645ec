"""The networks that the registry offers by name, and the sparse linear layer of the estimators.

None of them lets the records of a batch interact: there is no batch normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.validate import whole

GROUPS = 8
"""The number of groups of every group normalisation."""


def any_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one record as a tuple of sizes, or raise a SettingError.

    >>> any_shape([1, 8, 8])
    (1, 8, 8)
    """
    if isinstance(input_shape, str) or not isinstance(input_shape, Sequence) or not len(input_shape):
        raise SettingError("input_shape", input_shape, "the dimensions of one record, such as (1, 28, 28)")
    return tuple(whole("input_shape", size) for size in input_shape)


def image_shape(model: str, input_shape: Sequence[int], sides: Sequence[int], alternatives: str) -> tuple[int, int]:
    """Return (channels, side) of a square image whose side the model supports.

    Args:
        model: the registry name of the model, for the error message.
        input_shape: the shape of one record.
        sides: the image sides that the model supports.
        alternatives: models for other shapes, for the error message.

    Raises:
        SettingError: the shape is not that of a square image with a supported side.

    >>> image_shape("cnn", (1, 28, 28), [28], "another model")
    (1, 28)
    """
    shape = any_shape(input_shape)
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] not in sides:
        sizes = " or ".join(f"{side}x{side}" for side in sides)
        raise SettingError("input_shape", shape, f"{sizes} images for {model!r}; use {alternatives}")
    return shape[0], shape[1]


# -- linear layers --------------------------------------------------------------------------------


def logistic(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Build a logistic regression model: one linear layer.

    >>> logistic((104,), 2)[-1]
    Linear(in_features=104, out_features=2, bias=True)
    """
    return mlp(input_shape, classes, hidden=())


def linear(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Build one linear layer without bias, initialised to zero: a convex problem over one matrix.

    >>> float(linear((4,), 3)[-1].weight.detach().abs().sum())
    0.0
    """
    layer = nn.Linear(math.prod(any_shape(input_shape)), classes, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(input_shape: Sequence[int], classes: int, hidden: Sequence[int] = (128, 128)) -> nn.Sequential:
    """Build linear layers with ReLU between them; 784-128-128-10 on MNIST, with 118,282 parameters.

    >>> sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
    118282
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise([math.prod(any_shape(input_shape)), *hidden]):
        layers += [nn.Linear(width, following), nn.ReLU()]
    last = hidden[-1] if hidden else math.prod(any_shape(input_shape))
    return nn.Sequential(*layers, nn.Linear(last, classes))


class SparseLinear(nn.Module):
    """A linear layer without bias on sparse rows, initialised to zero: `sum_j values_j W[columns_j]`.

    A row is given by the columns of its nonzero entries and their values. The weight has shape (features, outputs), so
    that the weights of one feature are contiguous in memory.

    >>> SparseLinear(4, 2)(torch.tensor([[1, 3]]), torch.tensor([[1.0, 2.0]])).shape
    torch.Size([1, 2])
    """

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.table = nn.Embedding(features, outputs)
        nn.init.zeros_(self.table.weight)

    def forward(self, columns: Tensor, values: Tensor) -> Tensor:
        outputs: Tensor = (self.table(columns) * values[:, :, None]).sum(1)
        return outputs


class Symbols(nn.Module):
    """Convert floating-point inputs to symbol indices: round them, and clamp them to 0 .. count - 1.

    >>> Symbols(3)(torch.tensor([[0.2, 1.0, 7.0]]))
    tensor([[0, 1, 2]])
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.round().clamp(0, self.count - 1).nan_to_num().long()


def text(input_shape: Sequence[int], classes: int, width: int = 8, hidden: int = 128) -> nn.Sequential:
    """Build a next-symbol model: an embedding, one hidden layer over all positions, and a logit for each symbol.

    Inputs and targets are symbol indices from 0 to `classes` - 1 (Bengio et al., A Neural Probabilistic Language Model,
    2003).

    >>> sum(p.numel() for p in text((20,), 65).parameters())
    29513
    """
    length = math.prod(any_shape(input_shape))
    return nn.Sequential(
        Symbols(classes),
        nn.Embedding(classes, width),
        nn.Flatten(),
        nn.Linear(length * width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


# -- convolutions ---------------------------------------------------------------------------------


class ChannelsLast(nn.Module):
    """Convert images to the channels-last memory format, in which pooling on a CPU is four times faster.

    >>> ChannelsLast()(torch.zeros(2, 1, 4, 4)).stride()
    (16, 1, 4, 1)
    """

    def forward(self, x: Tensor) -> Tensor:
        # contiguous(memory_format=...) leaves images with a single channel as they are
        return x.clone(memory_format=torch.channels_last)


def paper_cnn(input_shape: Sequence[int], classes: int, channels_last: bool = True) -> nn.Sequential:
    """Build the CNN of the PDP-SGD and PCDP-SGD papers for 28x28 images: 26,010 parameters on MNIST.

    Both pooling layers are 2x2 with stride 1, so the side of the feature maps is 28, 14, 13, 5 and 4. The model returns
    logits: the final log-softmax of the papers is part of the cross-entropy loss.

    >>> sum(p.numel() for p in paper_cnn((1, 28, 28), 10).parameters())
    26010
    """
    alternatives = "'cnn-small' for smaller images, 'lenet' or 'resnet20' for 32x32, 'mlp' for other shapes"
    channels, _ = image_shape("cnn", input_shape, [28], alternatives)
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
    """Build two 3x3 convolutions and a linear layer for images of at least 4x4: 1,898 parameters on the 8x8 digits.

    >>> sum(p.numel() for p in small_cnn((1, 8, 8), 10).parameters())
    1898
    """
    shape = any_shape(input_shape)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise SettingError("input_shape", shape, "images of at least 4x4 for 'cnn-small'; use 'mlp' for other shapes")
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
    """Build LeNet-5 with ReLU and max-pooling for 28x28 or 32x32 images: 62,006 parameters on CIFAR-10.

    28x28 images are padded by two pixels, so that both sizes reach the linear layers as 16x5x5.

    >>> sum(p.numel() for p in lenet((3, 32, 32), 10).parameters())
    62006
    """
    alternatives = "'cnn-small' for smaller images, 'mlp' for other shapes"
    channels, side = image_shape("lenet", input_shape, [28, 32], alternatives)
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


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group normalisation, and a shortcut without parameters (He et al. 2016, option A).

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
        strided = x[:, :, :: self.stride, :: self.stride]
        before = self.extra // 2
        return F.pad(strided, (0, 0, 0, 0, before, self.extra - before))  # zeros for the new channels


def resnet20(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Build ResNet-20 with group normalisation for 28x28 or 32x32 images: 269,722 parameters on CIFAR-10.

    >>> sum(p.numel() for p in resnet20((3, 32, 32), 10).parameters())
    269722
    """
    alternatives = "'cnn-small' for smaller images, 'mlp' for other shapes"
    channels, _ = image_shape("resnet20", input_shape, [28, 32], alternatives)
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
