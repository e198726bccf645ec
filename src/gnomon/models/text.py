"""A network that reads a few symbols and guesses the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from gnomon.models.shapes import any_shape


class Symbols(nn.Module):
    """Numbers as symbols: rounded, and held to those that there are.

    >>> import torch
    >>> Symbols(3)(torch.tensor([[0.2, 1.0, 7.0]]))
    tensor([[0, 1, 2]])
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.round().clamp(0, self.count - 1).nan_to_num().long()


def text(input_shape: Sequence[int], classes: int, width: int = 8, hidden: int = 128) -> nn.Sequential:
    """A vector for each symbol, one hidden layer over all of them, and a score for each symbol that may follow.

    Symbols are numbers from 0 below `classes`, in and out (Bengio et al., A Neural Probabilistic Language Model, 2003).

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
