"""Standard normals from random words by the ziggurat method (Marsaglia and Tsang, 2000), with 256 layers.

The area under exp(-x^2 / 2) for x >= 0 is covered by 256 pieces of equal area: 255 rectangles, stacked on a base that
is a rectangle up to R and the tail beyond it. Each word chooses a layer (8 bits), a sign (1 bit) and a position in the
layer (53 bits of their own). 98.8 % of the positions lie under the curve in full height and are results; the others
are decided with further words, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnomon.randomness.compiled import Kernel
from gnomon.randomness.keystream import PIECE, Keystream

R = 3.6541528853610088
"""Where the tail begins: the value at which 256 layers of equal area close at the top of the curve."""

_UNIT = 2.0**-53
_LAYER, _SIGN = np.uint64(255), np.uint64(1)
_TO_SIGN, _TO_POSITION = np.uint64(8), np.uint64(11)


class Tables(NamedTuple):
    """The layers: layer i spans [0, edges[i]) and lies under the curve in full height on [0, edges[i + 1])."""

    edges: NDArray[np.float64]
    """(257,): edges[0] is the width that the base would have as a rectangle, edges[1] is R and edges[256] is 0."""
    widths: NDArray[np.float64]
    """(256,): the distance of two neighbouring positions in each layer."""
    limits: NDArray[np.int64]
    """(256,): the number of positions of each layer that are results without a further test."""
    heights: NDArray[np.float64]
    """(257,): the curve at each edge."""


@cache
def tables() -> Tables:
    """Return the tables, computed in float64 from the definition of the layers.

    >>> tables().edges[:3].round(4)
    array([3.9108, 3.6542, 3.4493])
    """
    height = math.exp(-R * R / 2)
    area = R * height + math.sqrt(math.pi / 2) * math.erfc(R / math.sqrt(2))
    edges = [area / height, R]
    while len(edges) < 256:
        edges.append(math.sqrt(-2 * math.log(area / edges[-1] + math.exp(-(edges[-1] ** 2) / 2))))
    x = np.array([*edges, 0.0])
    limits = np.floor(x[1:] / x[:-1] * 2.0**53).astype(np.int64)
    return Tables(x, x[:-1] * _UNIT, limits, np.exp(-x * x / 2))


def ziggurat(
    words: NDArray[np.uint64],
    values: NDArray[np.float64],
    waiting: NDArray[np.int64],
    left: int,
    spare: NDArray[np.uint64],
    widths: NDArray[np.float64],
    limits: NDArray[np.int64],
    heights: NDArray[np.float64],
) -> int:
    """Convert words to normals as far as the spare words suffice, and return how many values still wait for more.

    A value waits until it is decided: its word is replaced only together with the decision that rejects it, and each
    spare word is used once. Call again with other spare words until nothing waits.

    Args:
        words: one word for each value. Words of rejected positions are overwritten.
        values: where the normals are written.
        waiting: the positions of the values that still wait, of the length of `values`.
        left: the number of values that wait, or -1 in the first call.
        spare: words that have not been used.
        widths, limits, heights: see `Tables`.
    """
    if left < 0:
        left = 0
        for j in range(len(values)):
            word = words[j]
            layer = word & _LAYER
            position = np.int64(word >> _TO_POSITION)
            negative = -np.int64((word >> _TO_SIGN) & _SIGN)  # 0 or -1
            values[j] = np.float64((position ^ negative) - negative) * widths[layer]
            if position >= limits[layer]:
                waiting[left] = j
                left += 1
    used = 0
    while left > 0 and used + 2 <= len(spare):
        j = waiting[left - 1]
        word = words[j]
        layer = word & _LAYER
        position = np.int64(word >> _TO_POSITION)
        sign = 1.0 - 2.0 * np.float64(np.int64((word >> _TO_SIGN) & _SIGN))
        x = np.float64(position) * widths[layer]
        # uniforms in (0, 1], so that their logarithms are finite
        first = (np.float64(np.int64(spare[used] >> _TO_POSITION)) + 0.5) * _UNIT
        decided = position < limits[layer]
        if not decided and layer == 0:
            # the tail: an exponential beyond R, accepted with probability exp(-beyond^2 / 2)
            second = (np.float64(np.int64(spare[used + 1] >> _TO_POSITION)) + 0.5) * _UNIT
            beyond = -math.log(first) / R
            x = R + beyond
            decided = -2.0 * math.log(second) > beyond * beyond
            used += 2
        elif not decided:
            # the wedge: a uniform height in the layer, accepted below the curve
            height = heights[layer] + first * (heights[layer + np.uint64(1)] - heights[layer])
            decided = height < math.exp(-0.5 * x * x)
            if not decided:
                words[j] = spare[used + 1]
            used += 2
        if decided:
            values[j] = sign * x
            left -= 1
    return left


def _agrees(compiled: Callable[..., int]) -> bool:
    """Return whether the compiled function makes the decisions of the Python function, on fixed words of all layers."""
    words = np.random.Philox(7).random_raw(1536)
    words[512:1024] |= np.uint64(0xFFFF << 48)  # near the ends of the layers, where further words decide
    words[1024:1280] &= ~np.uint64(0xFF)  # the base and its tail
    words[1280:1284] = 0, 2**64 - 1, 2**64 - 2**8, 2**8
    spare = np.random.Philox(8).random_raw(4096)
    results = []
    for run in (compiled, ziggurat):
        values = np.empty(len(words))
        left = run(words.copy(), values, np.empty(len(words), np.int64), -1, spare, *tables()[1:])
        results.append((left, values))
    (left, values), (expected_left, expected) = results
    return left == expected_left == 0 and bool((np.abs(values - expected) <= 1e-14 * np.abs(expected)).all())


KERNEL = Kernel(
    ziggurat,
    "int64(uint64[::1], float64[::1], int64[::1], int64, uint64[::1], float64[::1], int64[::1], float64[::1])",
    _agrees,
)
"""The compiled form, shared by all sources of a process because compiling takes seconds. It holds no random number."""


class Scratch:
    """The memory in which a stream turns words into normals."""

    def __init__(self) -> None:
        self.words = np.zeros(PIECE + spare_words(PIECE), dtype=np.uint64)
        self.waiting = np.zeros(PIECE, dtype=np.int64)


def spare_words(count: int) -> int:
    """Return how many spare words nearly always suffice for so many values: 2.5 % of them are needed on average."""
    return count // 16 + 32


def fill(values: NDArray[np.float64], stream: Keystream, compiled: Callable[..., int], scratch: Scratch) -> None:
    """Overwrite a contiguous array with normals from the stream. No word of it is used twice."""
    for start in range(0, len(values), PIECE):
        piece = values[start : start + PIECE]
        words = scratch.words[: len(piece) + spare_words(len(piece))]
        stream.fill(words)
        own, spare, left = words[: len(piece)], words[len(piece) :], -1
        while left := compiled(own, piece, scratch.waiting, left, spare, *tables()[1:]):
            stream.fill(spare)
