"""Balls, the simplex and the box."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon import validate
from gnomon.errors import SettingError

SHORT = 2**11
"""Up to so many numbers are sorted; beyond, passes over all of them take less time."""


def threshold(values: Tensor, total: float) -> float:
    """The number t with `sum max(values - t, 0) = total`, for a total above 0.

    It is the largest mean excess of the k largest values over all k. In a long vector it is found by dropping what is
    at or below the mean excess of those that remain until none is: a few passes, no sorting (Michelot 1986).

    >>> threshold(torch.tensor([3.0, 1.0]), 2.5)
    0.75
    """
    left = values.double()
    if 0 < len(left) <= SHORT:
        excess = left.sort(descending=True).values.cumsum(0).sub_(total)
        return float(excess.div_(torch.arange(1, len(left) + 1, device=left.device)).max())
    found = (float(left.sum()) - total) / max(len(left), 1)
    while True:
        kept = left[left > found]
        if len(kept) == len(left) or len(kept) == 0:
            return found
        left = kept
        found = (float(left.sum()) - total) / len(left)


def shrunk(lengths: Tensor, radius: float) -> Tensor:
    """The vector of lengths, 0 or above, nearest to the given ones with sum at most `radius`.

    >>> shrunk(torch.tensor([3.0, 1.0]), 2.0)
    tensor([2., 0.])
    """
    if float(lengths.sum(dtype=torch.float64)) <= radius:
        return lengths
    return (lengths - threshold(lengths, radius)).clamp_min_(0)


@dataclass(frozen=True)
class L1Ball:
    """All vectors whose absolute values sum to at most `radius`.

    >>> L1Ball(1.0).project(torch.tensor([2.0, 0.5]))
    tensor([1., 0.])
    """

    radius: float

    def __post_init__(self) -> None:
        validate.positive("radius", self.radius)

    @property
    def name(self) -> str:
        return f"l1 ball of radius {self.radius:g}"

    def check(self, size: int) -> None:
        """Any size will do."""

    def project(self, vector: Tensor) -> Tensor:
        return shrunk(vector.abs(), self.radius).copysign(vector)

    def lowest(self, direction: Tensor) -> Tensor:
        point = torch.zeros_like(direction)
        largest = int(direction.abs().argmax())
        point[largest] = -math.copysign(self.radius, direction[largest])
        return point

    def width(self, size: int) -> float:
        return self.radius * math.sqrt(2 * math.log(2 * size))

    def diameter(self, size: int) -> float:
        return 2 * self.radius


@dataclass(frozen=True)
class L2Ball:
    """All vectors no longer than `radius`. Its width grows with the dimension: it does not compress.

    >>> L2Ball(1.0).project(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    radius: float

    def __post_init__(self) -> None:
        validate.positive("radius", self.radius)

    @property
    def name(self) -> str:
        return f"l2 ball of radius {self.radius:g}"

    def check(self, size: int) -> None:
        """Any size will do."""

    def project(self, vector: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        return vector * (self.radius / length) if length > self.radius else vector

    def lowest(self, direction: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(direction, dtype=torch.float64))
        return direction * (-self.radius / length) if length > 0 else torch.zeros_like(direction)

    def width(self, size: int) -> float:
        return self.radius * math.sqrt(size)

    def diameter(self, size: int) -> float:
        return 2 * self.radius


@dataclass(frozen=True)
class Simplex:
    """All vectors of numbers 0 or above that sum to `radius`.

    >>> Simplex().project(torch.tensor([2.0, 0.0]))
    tensor([1., 0.])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("radius", self.radius)

    @property
    def name(self) -> str:
        return f"simplex of sum {self.radius:g}"

    def check(self, size: int) -> None:
        """Any size will do."""

    def project(self, vector: Tensor) -> Tensor:
        return (vector - threshold(vector, self.radius)).clamp_min_(0)

    def lowest(self, direction: Tensor) -> Tensor:
        point = torch.zeros_like(direction)
        point[direction.argmin()] = self.radius
        return point

    def width(self, size: int) -> float:
        return self.radius * math.sqrt(2 * math.log(max(size, 1)))

    def diameter(self, size: int) -> float:
        return self.radius * math.sqrt(2) if size > 1 else 0.0


@dataclass(frozen=True)
class Box:
    """All vectors with entries between `low` and `high`.

    >>> Box(-1.0, 1.0).project(torch.tensor([2.0, 0.5]))
    tensor([1.0000, 0.5000])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if validate.number("low", self.low) >= validate.number("high", self.high):
            raise SettingError("low", self.low, f"a number below high = {self.high:g}")

    @property
    def name(self) -> str:
        return f"box from {self.low:g} to {self.high:g}"

    def check(self, size: int) -> None:
        """Any size will do."""

    def project(self, vector: Tensor) -> Tensor:
        return vector.clamp(self.low, self.high)

    def lowest(self, direction: Tensor) -> Tensor:
        return torch.where(direction > 0, self.low, self.high).to(direction.dtype)

    def width(self, size: int) -> float:
        return size * (self.high - self.low) / math.sqrt(2 * math.pi)

    def diameter(self, size: int) -> float:
        return (self.high - self.low) * math.sqrt(size)
