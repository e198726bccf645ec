"""Text columns of a table as numbers, with nothing learned from the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gnomon.errors import DataError


def numeric(column: Sequence[str], name: str, where: str | Path) -> NDArray[np.float32]:
    """The values as float32, (N, 1); an error names the column and the first value that is no number.

    >>> numeric(["39", "50"], "age", "adult.data").tolist()
    [[39.0], [50.0]]
    >>> numeric(["39", "old"], "age", "adult.data")
    Traceback (most recent call last):
    gnomon.errors.DataError: adult.data has age = 'old' in record 2: a number belongs there
    """
    values = np.empty((len(column), 1), dtype=np.float32)
    for i, value in enumerate(column):
        try:
            values[i] = float(value)
        except ValueError:
            problem = f"has {name} = {value!r} in record {i + 1}"
            raise DataError(where, problem, "a number belongs there") from None
    return values


def one_hot(column: Sequence[str], categories: Sequence[str]) -> NDArray[np.float32]:
    """One column for each category; a value that is not in the list, "?" among them, is a row of zeros.

    >>> one_hot(["b", "?"], ["a", "b"]).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    position = {value: i for i, value in enumerate(categories)}
    index = np.array([position.get(value, len(categories)) for value in column], dtype=np.int64)
    return np.eye(len(categories) + 1, len(categories), dtype=np.float32)[index]


@dataclass(frozen=True)
class Column:
    """A column of a table among the inputs: one number, or one place for each of its `values`.

    >>> import torch
    >>> Column(1, ("red", "blue")).keys(torch.tensor([[0.5, 0.0, 1.0], [0.1, 0.0, 0.0]]))
    ['blue', '?']
    """

    first: int
    values: tuple[str, ...] = ()

    def keys(self, inputs: Tensor) -> list[str | float]:
        """What each record has in this column; "?" where it is none of the values."""
        if not self.values:
            return [float(value) for value in inputs[:, self.first]]
        block = inputs[:, self.first : self.first + len(self.values)]
        found = [(float(best), int(where)) for best, where in zip(*block.max(dim=1), strict=True)]
        return [self.values[where] if best > 0 else "?" for best, where in found]


def layout(numbers: Iterable[str], categories: Mapping[str, Sequence[str]]) -> dict[str, Column]:
    """Where columns stand, if the numbers come first and then a place for each category.

    >>> layout(["age"], {"sex": ("Female", "Male")})["sex"].first
    1
    """
    found = {name: Column(place) for place, name in enumerate(numbers)}
    place = len(found)
    for name, values in categories.items():
        found[name] = Column(place, tuple(values))
        place += len(values)
    return found
