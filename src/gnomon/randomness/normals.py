"""Normals from a keystream: by the ziggurat method where it is compiled, by the Box-Muller transform elsewhere."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon.randomness import ziggurat
from gnomon.randomness.keystream import LARGEST_PIECE, PIECE, Keystream


class Normals:
    """Independent standard normals and uniforms from one keystream, for one process and one thread at a time.

    >>> values = np.zeros(3)
    >>> Normals(Keystream()).fill(values)
    >>> bool((values != 0).all())
    True
    """

    def __init__(self, stream: Keystream) -> None:
        self._stream = stream
        self._scratch: ziggurat.Scratch | None = None

    def fill(self, values: NDArray[np.float64]) -> None:
        """Overwrite a contiguous array with standard normals."""
        compiled = ziggurat.KERNEL.after(len(values))
        if compiled is not None:
            self._scratch = self._scratch or ziggurat.Scratch()
            ziggurat.fill(values, self._stream, compiled, self._scratch)
            return
        even = len(values) // 2 * 2
        for start in range(0, even, LARGEST_PIECE):
            self._box_muller(values[start : min(start + LARGEST_PIECE, even)])
        if even < len(values):
            pair = np.empty(2)
            self._box_muller(pair)
            values[even] = pair[0]

    def _box_muller(self, values: NDArray[np.float64]) -> None:
        self._stream.fill(values)
        box_muller(torch.from_numpy(values.view(np.int64)))

    def uniform(self, values: NDArray[np.float64]) -> None:
        """Overwrite a contiguous array with uniforms: every multiple of 2^-53 in [0, 1) is equally likely."""
        for start in range(0, len(values), PIECE):
            piece = values[start : start + PIECE]
            self._stream.fill(piece)
            words = piece.view(np.uint64)
            np.right_shift(words, np.uint64(11), out=words)
            np.multiply(words.view(np.int64), 2.0**-53, out=piece)

    def erase(self) -> None:
        """Drop the key and overwrite the words of the last draw."""
        self._stream.forget()
        if self._scratch is not None:
            self._scratch.words.fill(0)


def box_muller(words: Tensor) -> Tensor:
    """Convert an even number of random 64-bit words, in place, to as many independent standard normals.

    54 bits of each word are used: the first half of the words gives the radii, the second half the angles. The tail
    reaches 8.6 standard deviations.

    >>> box_muller(torch.tensor([2**62, 2**62])).round(decimals=4)  # radius sqrt(2 ln 2), a quarter turn
    tensor([0.0000, 1.1774], dtype=torch.float64)
    """
    values = words.view(torch.float64)
    values.copy_(words.bitwise_right_shift_(10))  # whole numbers in [-2^53, 2^53)
    radius, angle = values[: len(values) // 2], values[len(values) // 2 :]
    # |k + 1/2| 2^-53 lies strictly between 0 and 1, so its logarithm is finite
    radius.add_(0.5).abs_().mul_(2.0**-53).log_().mul_(-2.0).sqrt_()
    angle.mul_(math.pi * 2.0**-53)
    cosine = angle.cos()
    angle.sin_().mul_(radius)
    radius.mul_(cosine)
    return values
