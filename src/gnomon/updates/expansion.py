"""Expansion along the batch: per-sample gradients of values that a model computes once for all samples.

Position embeddings of shape (1, T, d), class tokens, gains of user-defined normalisations and similar values have no
batch dimension, so the gradient that reaches them is a sum over samples. During a recorded forward pass such a value is
replaced by a view that repeats it along the batch, with stride 0 and without a copy. The gradient that reaches the view
has one row per sample. Which dimension becomes the batch is found by trial and verified once for each layout of a
model: see `gnomon.updates.layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Key = tuple[str, int]
"""The name of a module, and the number of the mark among those of the module in one forward pass."""

MOST_ONES = 3
"""The largest number of dimensions of size 1 that are inserted between the batch and the dimensions of a value."""


@dataclass(frozen=True)
class Expansion:
    """How a value without a batch dimension is repeated along the batch.

    Args:
        ones: the number of dimensions of size 1 between the batch and the dimensions of the value; None if the first
            dimension of the value, of size 1, becomes the batch.

    >>> Expansion(None).expand(torch.zeros(1, 4, 8), 3).shape, Expansion(1).expand(torch.zeros(8), 3).shape
    (torch.Size([3, 4, 8]), torch.Size([3, 1, 8]))
    """

    ones: int | None

    def expand(self, value: Tensor, size: int) -> Tensor:
        """Return a view of the value in the shape in which the model uses it, one row per sample."""
        return self.place(self.rows(value, size))

    def rows(self, value: Tensor, size: int) -> Tensor:
        """Return a view with the batch in front of the dimensions of the value."""
        return value.expand(size, *(value.shape[1:] if self.ones is None else value.shape))

    def place(self, rows: Tensor) -> Tensor:
        """Insert the dimensions of size 1 after the batch."""
        return rows.reshape(len(rows), *[1] * self.ones, *rows.shape[1:]) if self.ones else rows

    def unplace(self, grad: Tensor) -> Tensor:
        """Remove the dimensions of size 1 after the batch."""
        return grad.reshape(len(grad), *grad.shape[1 + self.ones :]) if self.ones else grad


def candidates(shape: torch.Size) -> Iterator[Expansion]:
    """Yield the expansions of a value of this shape that a model may accept.

    >>> [expansion.ones for expansion in candidates(torch.Size([1, 4]))]
    [None, 0, 1, 2, 3]
    """
    if shape and shape[0] == 1:
        yield Expansion(None)
    for ones in range(MOST_ONES + 1):
        yield Expansion(ones)


@dataclass(frozen=True)
class Expansions:
    """The values that a recorded forward pass expands along the batch.

    Args:
        outputs: outputs of modules, by mark.
        parameters: parameters that modules without a rule use directly, by the names of module and parameter.
    """

    outputs: Mapping[Key, Expansion] = field(default_factory=dict)
    parameters: Mapping[tuple[str, str], Expansion] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.outputs or self.parameters)


@dataclass(frozen=True)
class ExpandedParameter:
    """A parameter that a recorded forward pass used in expanded form."""

    name: str
    """The name of the parameter in the model."""
    value: Tensor
    """The expanded value, whose gradient has one row per sample."""
    expansion: Expansion
    shape: torch.Size
    """The shape of the parameter."""

    def per_sample(self, grad: Tensor) -> Tensor:
        """Return the gradient of the expanded value as one gradient per sample, (B, *shape)."""
        return self.expansion.unplace(grad).reshape(len(grad), *self.shape)
