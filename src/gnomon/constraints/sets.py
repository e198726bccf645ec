"""Convex sets to which the weights of a model can be constrained.

Each set has a projection, a linear oracle, a Gaussian width and a diameter. `parse` makes a set from its text on the
command line.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnomon import validate
from gnomon.errors import SettingError


class Constraint(ABC):
    """A convex set C of vectors. A vector has all trainable parameters of a model, one after the other."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The text used in statements and logs."""

    def check(self, size: int) -> None:  # noqa: B027  # most sets have vectors of any size
        """Raise SettingError if vectors with `size` entries cannot be in the set."""

    @abstractmethod
    def project(self, vector: Tensor) -> Tensor:
        """Return the point of C nearest to the vector."""

    @abstractmethod
    def lowest(self, direction: Tensor) -> Tensor:
        """Return a point of C with the smallest inner product with `direction` (the linear oracle)."""

    @abstractmethod
    def width(self, size: int) -> float:
        """Return the Gaussian width `E sup over C of <g, x>`, or an upper bound that is close for large sizes."""

    @abstractmethod
    def diameter(self, size: int) -> float:
        """Return the largest distance between two points of C."""


SHORT = 2**11
"""The largest number of values for which `threshold` sorts; for longer vectors, passes over all values are faster."""


def threshold(values: Tensor, total: float) -> float:
    """Return the number t with `sum max(values - t, 0) = total`, for a total above 0.

    t is the maximum over k of `(sum of the k largest values - total) / k`. For a long vector it is found without
    sorting, in a few passes that drop the values at or below the t of the remaining ones (Michelot 1986).

    >>> threshold(torch.tensor([3.0, 1.0]), 2.5)
    0.75
    """
    remaining = values.double()
    if 0 < len(remaining) <= SHORT:
        excess = remaining.sort(descending=True).values.cumsum(0).sub_(total)
        return float(excess.div_(torch.arange(1, len(remaining) + 1, device=remaining.device)).max())
    candidate = (float(remaining.sum()) - total) / max(len(remaining), 1)
    while True:
        above = remaining[remaining > candidate]
        if len(above) == len(remaining) or len(above) == 0:
            return candidate
        remaining = above
        candidate = (float(remaining.sum()) - total) / len(remaining)


def shrunk(lengths: Tensor, radius: float) -> Tensor:
    """Return the vector nearest to `lengths` with non-negative entries whose sum is at most `radius`.

    >>> shrunk(torch.tensor([3.0, 1.0]), 2.0)
    tensor([2., 0.])
    """
    if float(lengths.sum(dtype=torch.float64)) <= radius:
        return lengths
    return (lengths - threshold(lengths, radius)).clamp_min_(0)


@dataclass(frozen=True)
class L1Ball(Constraint):
    """The vectors whose absolute values sum to at most `radius`.

    >>> L1Ball(1.0).project(torch.tensor([2.0, 0.5]))
    tensor([1., 0.])
    """

    radius: float

    def __post_init__(self) -> None:
        validate.positive("radius", self.radius)

    @property
    def name(self) -> str:
        return f"l1 ball of radius {self.radius:g}"

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
class L2Ball(Constraint):
    """The vectors of Euclidean length at most `radius`. Its width grows with the dimension, so sketches do not help.

    >>> L2Ball(1.0).project(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    radius: float

    def __post_init__(self) -> None:
        validate.positive("radius", self.radius)

    @property
    def name(self) -> str:
        return f"l2 ball of radius {self.radius:g}"

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
class Simplex(Constraint):
    """The vectors with non-negative entries that sum to `radius`.

    >>> Simplex().project(torch.tensor([2.0, 0.0]))
    tensor([1., 0.])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("radius", self.radius)

    @property
    def name(self) -> str:
        return f"simplex of sum {self.radius:g}"

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
class Box(Constraint):
    """The vectors with all entries between `low` and `high`.

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

    def project(self, vector: Tensor) -> Tensor:
        return vector.clamp(self.low, self.high)

    def lowest(self, direction: Tensor) -> Tensor:
        return torch.where(direction > 0, self.low, self.high).to(direction.dtype)

    def width(self, size: int) -> float:
        return size * (self.high - self.low) / math.sqrt(2 * math.pi)

    def diameter(self, size: int) -> float:
        return (self.high - self.low) * math.sqrt(size)


@dataclass(frozen=True)
class GroupBall(Constraint):
    """The vectors whose groups of `group` consecutive entries have lengths that sum to at most `radius` (group lasso).

    >>> GroupBall(5.0, group=2).project(torch.tensor([6.0, 8.0, 0.0, 1.0]))
    tensor([3., 4., 0., 0.])
    """

    radius: float
    group: int

    def __post_init__(self) -> None:
        validate.positive("radius", self.radius)
        validate.whole("group", self.group)

    @property
    def name(self) -> str:
        return f"group ball of radius {self.radius:g}, groups of {self.group}"

    def check(self, size: int) -> None:
        if size % self.group:
            raise SettingError("group", self.group, f"a divisor of the {size} parameters of the model")

    def project(self, vector: Tensor) -> Tensor:
        rows = vector.reshape(-1, self.group)
        lengths = torch.linalg.vector_norm(rows, dim=1)
        allowed = shrunk(lengths, self.radius)
        return (rows * (allowed / lengths.clamp_min(torch.finfo(vector.dtype).tiny))[:, None]).reshape(vector.shape)

    def lowest(self, direction: Tensor) -> Tensor:
        rows = direction.reshape(-1, self.group)
        lengths = torch.linalg.vector_norm(rows, dim=1)
        largest = lengths.argmax()
        point = torch.zeros_like(rows)
        if float(lengths[largest]) > 0:
            point[largest] = rows[largest] * (-self.radius / lengths[largest])
        return point.reshape(direction.shape)

    def width(self, size: int) -> float:
        groups = max(1, size // self.group)
        return self.radius * (math.sqrt(self.group) + math.sqrt(2 * math.log(groups)))

    def diameter(self, size: int) -> float:
        return 2 * self.radius


@dataclass(frozen=True)
class NuclearBall(Constraint):
    """The matrices with `rows` rows whose singular values sum to at most `radius`; its extreme points have rank 1.

    >>> NuclearBall(1.0, rows=2).project(torch.tensor([2.0, 0.0, 0.0, 0.0]))
    tensor([1., 0., 0., 0.])
    """

    radius: float
    rows: int

    def __post_init__(self) -> None:
        validate.positive("radius", self.radius)
        validate.whole("rows", self.rows)

    @property
    def name(self) -> str:
        return f"nuclear ball of radius {self.radius:g}, {self.rows} rows"

    def check(self, size: int) -> None:
        if size % self.rows:
            raise SettingError("rows", self.rows, f"a divisor of the {size} parameters (use a model without bias)")

    def project(self, vector: Tensor) -> Tensor:
        left, values, right = torch.linalg.svd(vector.reshape(self.rows, -1), full_matrices=False)
        if float(values.sum(dtype=torch.float64)) <= self.radius:
            return vector
        return ((left * shrunk(values, self.radius)) @ right).reshape(vector.shape)

    def lowest(self, direction: Tensor) -> Tensor:
        left, _, right = torch.linalg.svd(direction.reshape(self.rows, -1), full_matrices=False)
        return torch.outer(left[:, 0], right[0]).mul_(-self.radius).reshape(direction.shape)

    def width(self, size: int) -> float:
        return self.radius * (math.sqrt(self.rows) + math.sqrt(size / self.rows))

    def diameter(self, size: int) -> float:
        return 2 * self.radius


def _integer(value: float) -> Any:
    """Return a whole number as an int, and leave other numbers for the constructor to refuse."""
    return int(value) if value == int(value) else value


CONSTRUCTORS: dict[str, tuple[tuple[int, ...], Callable[..., Constraint]]] = {
    "l1": ((1,), L1Ball),
    "l2": ((1,), L2Ball),
    "simplex": ((0, 1), Simplex),
    "box": ((2,), Box),
    "group": ((2,), lambda radius, group: GroupBall(radius, _integer(group))),
    "nuclear": ((2,), lambda radius, rows: NuclearBall(radius, _integer(rows))),
}
"""The allowed numbers of arguments and the constructor of each set, by its name on the command line."""

NOTATION = "l1:RADIUS, l2:RADIUS, simplex[:SUM], box:LOW,HIGH, group:RADIUS,GROUP or nuclear:RADIUS,ROWS"
"""The texts that `parse` understands."""


def parse(constraint: str | Constraint | None) -> Constraint:
    """Return the constraint that a text describes. A constraint is returned unchanged.

    Raises:
        SettingError: the text does not describe a constraint.

    >>> parse("l1:5")
    L1Ball(radius=5.0)
    >>> parse("box:-1,1")
    Box(low=-1.0, high=1.0)
    """
    if isinstance(constraint, Constraint):
        return constraint
    if not isinstance(constraint, str):
        raise SettingError("constraint", constraint, f"{NOTATION}, or a constraint such as L1Ball(5)")
    kind, _, arguments = constraint.partition(":")
    try:
        numbers = [float(part) for part in arguments.split(",")] if arguments else []
    except ValueError:
        raise SettingError("constraint", constraint, NOTATION) from None
    if kind not in CONSTRUCTORS or len(numbers) not in CONSTRUCTORS[kind][0]:
        raise SettingError("constraint", constraint, NOTATION)
    try:
        return CONSTRUCTORS[kind][1](*numbers)
    except (OverflowError, ValueError) as error:
        raise SettingError("constraint", constraint, f"{NOTATION} ({error})") from None
