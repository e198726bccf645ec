"""Networks of linear layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from gnomon.models.shapes import any_shape


def logistic(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Logistic regression: one linear layer.

    >>> logistic((104,), 2)[-1]
    Linear(in_features=104, out_features=2, bias=True)
    """
    return mlp(input_shape, classes, hidden=())


def linear(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """One linear layer without bias that starts at zero: a convex problem over one matrix.

    >>> float(linear((4,), 3)[-1].weight.detach().abs().sum())
    0.0
    """
    layer = nn.Linear(math.prod(any_shape(input_shape)), classes, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(input_shape: Sequence[int], classes: int, hidden: Sequence[int] = (128, 128)) -> nn.Sequential:
    """Linear layers with ReLU between them; on MNIST 784-128-128-10, with 118,282 parameters.

    >>> sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
    118282
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise([math.prod(any_shape(input_shape)), *hidden]):
        layers += [nn.Linear(width, following), nn.ReLU()]
    last = hidden[-1] if hidden else math.prod(any_shape(input_shape))
    return nn.Sequential(*layers, nn.Linear(last, classes))
