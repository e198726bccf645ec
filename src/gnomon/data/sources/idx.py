"""IDX, the format of MNIST: a magic number, the sizes, then unsigned bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnomon.errors import DataError


def parse(stored: bytes, dimensions: int, where: str | Path) -> NDArray[np.uint8]:
    """The array of unsigned bytes with that many dimensions.

    >>> parse(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), 1, "labels").tolist()
    [7, 9]
    """
    start = 4 + 4 * dimensions
    if len(stored) < start:
        problem = f"is truncated: {len(stored)} bytes, the header alone has {start}"
        raise DataError(where, problem, "download the file again")
    magic, wanted = int.from_bytes(stored[:4], "big"), 0x0800 + dimensions
    if magic != wanted:
        problem = f"has the magic number {magic}, not {wanted}"
        raise DataError(where, problem, "check that the file is the official one under its official name")
    shape = tuple(int(size) for size in np.frombuffer(stored, ">u4", dimensions, offset=4))
    found, expected = len(stored) - start, math.prod(shape)
    if found != expected:
        problem = f"has {found} bytes of data where its header {shape} asks for {expected}"
        raise DataError(where, problem, "download the file again")
    return np.frombuffer(stored, np.uint8, offset=start).reshape(shape)
