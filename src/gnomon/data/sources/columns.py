"""Text columns of a table as numbers, with nothing learned from the values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnomon.data.sources.errors import DataError


def numeric(column: Sequence[str], name: str, where: str | Path) -> NDArray[np.float32]:
    """The values as float32, (N, 1); an error names the column and the first value that is no number.

    >>> numeric(["39", "50"], "age", "adult.data").tolist()
    [[39.0], [50.0]]
    >>> numeric(["39", "old"], "age", "adult.data")
    Traceback (most recent call last):
    gnomon.data.sources.errors.DataError: adult.data has age = 'old' in record 2: a number belongs there
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
