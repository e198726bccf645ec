"""What clipping does to the mean gradient, and how it compares with the noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Bias(NamedTuple):
    """How the clipped mean lies to the true one: the cosine between them, and the ratio of their lengths."""

    cosine: float
    ratio: float


def bias(clipped: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> Bias:
    """Direction and length of a clipped mean beside the mean that nobody clipped.

    >>> import torch
    >>> bias({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([2.0, 0.0])})
    Bias(cosine=1.0, ratio=0.5)
    """
    product = sum(float((clipped[name].double() * value.double()).sum()) for name, value in true.items())
    ours, theirs = length(clipped), length(true)
    return Bias(product / max(ours * theirs, 1e-300), ours / max(theirs, 1e-300))


def length(vector: Mapping[str, Tensor]) -> float:
    """The norm of a vector by parameter.

    >>> import torch
    >>> length({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    5.0
    """
    return float(sum(float(value.double().square().sum()) for value in vector.values()) ** 0.5)


def signal_to_noise(signal: float, deviation: float, dimensions: float) -> float:
    """Length of the summed signal over the expected length of its noise; infinite without noise.

    >>> signal_to_noise(10.0, 2.0, 25)
    1.0
    """
    noise = deviation * dimensions**0.5
    return signal / noise if noise > 0 else float("inf")
