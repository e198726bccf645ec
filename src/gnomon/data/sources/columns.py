"""Columns of a table: encode text as numbers, with constants only and nothing learned from the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnomon.errors import DataError


def numeric(column: Sequence[str], name: str, where: str | Path) -> NDArray[np.float32]:
    """Parse a column of numbers and return it as float32, of shape (N, 1).

    Raises:
        DataError: if a value is not a number.

    >>> numeric(["39", "50"], "age", "adult.data").tolist()
    [[39.0], [50.0]]
    >>> numeric(["39", "old"], "age", "adult.data")
    Traceback (most recent call last):
    gnomon.errors.DataError: adult.data has age = 'old' in record 2: expected a number; download the file again
    """
    values = np.empty((len(column), 1), dtype=np.float32)
    for i, value in enumerate(column):
        try:
            values[i] = float(value)
        except ValueError:
            problem = f"has {name} = {value!r} in record {i + 1}"
            raise DataError(where, problem, "expected a number; download the file again") from None
    return values


def one_hot(column: Sequence[str], categories: Sequence[str]) -> NDArray[np.float32]:
    """Encode a column with one indicator for each category; a value that is not in the list becomes a row of zeros.

    >>> one_hot(["b", "?"], ["a", "b"]).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    position = {value: i for i, value in enumerate(categories)}
    index = np.array([position.get(value, len(categories)) for value in column], dtype=np.int64)
    return np.eye(len(categories) + 1, len(categories), dtype=np.float32)[index]


@dataclass(frozen=True)
class Column:
    """The position of a table's column among the inputs: one number, or one indicator for each of its `values`.

    >>> import torch
    >>> Column(1, ("red", "blue")).keys(torch.tensor([[0.5, 0.0, 1.0], [0.1, 0.0, 0.0]]))
    ['blue', '?']
    """

    first: int
    values: tuple[str, ...] = ()

    def keys(self, inputs: Tensor) -> list[str | float]:
        """Return the value of each record in this column; "?" if it is none of the listed values."""
        if not self.values:
            return [float(value) for value in inputs[:, self.first]]
        block = inputs[:, self.first : self.first + len(self.values)]
        largest, indices = block.max(dim=1)
        pairs = zip(largest.tolist(), indices.tolist(), strict=True)
        return [self.values[index] if value > 0 else "?" for value, index in pairs]


def layout(numbers: Iterable[str], categories: Mapping[str, Sequence[str]]) -> dict[str, Column]:
    """Return the position of each column if the inputs are all numbers, followed by the indicators of all categories.

    >>> layout(["age"], {"sex": ("Female", "Male")})["sex"].first
    1
    """
    columns = {name: Column(position) for position, name in enumerate(numbers)}
    position = len(columns)
    for name, values in categories.items():
        columns[name] = Column(position, tuple(values))
        position += len(values)
    return columns
