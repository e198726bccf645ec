"""The last whole number at which a condition holds that, once false, stays false."""

from __future__ import annotations

from collections.abc import Callable


def last(holds: Callable[[int], bool], start: int, stride: int, most: int) -> int:
    """The largest n in 0..most with `holds(n)`, looked for around `start` in growing strides. 0 holds.

    >>> last(lambda n: n * n <= 1000, start=20, stride=1, most=10**9)
    31
    """
    low, high = 0, most + 1  # holds(low), not holds(high)
    n = min(max(start, 1), most)
    while high - low > 1:
        if holds(n):
            low, n = n, n + stride
        else:
            high, n = n, n - stride
        stride *= 2
        if not low < n < high:
            n = (low + high) // 2
    return low
