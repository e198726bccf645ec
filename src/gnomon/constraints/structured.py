"""Balls for vectors with a structure: groups of entries, or a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon import validate
from gnomon.constraints.balls import shrunk
from gnomon.errors import SettingError


@dataclass(frozen=True)
class GroupBall:
    """All vectors whose blocks of `group` entries have lengths that sum to at most `radius` (group lasso).

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
            raise SettingError("group", self.group, f"a divisor of the {size} parameters")

    def project(self, vector: Tensor) -> Tensor:
        rows = vector.reshape(-1, self.group)
        lengths = torch.linalg.vector_norm(rows, dim=1)
        kept = shrunk(lengths, self.radius)
        return (rows * (kept / lengths.clamp_min(torch.finfo(vector.dtype).tiny))[:, None]).reshape(vector.shape)

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
class NuclearBall:
    """All matrices of `rows` rows whose singular values sum to at most `radius`: matrices of low rank.

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
            raise SettingError("rows", self.rows, f"a divisor of the {size} parameters (a model without bias)")

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
