"""Memory of this process and of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path

LARGEST_MAPPED = 32 * 2**20 - 2**14
"""The largest block, up to the header and a page, by which glibc raises its limits when it is freed."""


def keep_memory() -> bool:
    """Make glibc keep freed memory for later allocations instead of returning it to the system.

    Every training step frees and allocates the same megabytes. With glibc's defaults, the system maps and clears fresh
    pages each time. This is a setting of the whole process, so only the command line and its workers may call it.

    Returns:
        Whether the setting was accepted; False without glibc.

    >>> keep_memory() in (True, False)
    True
    """
    trim_threshold, mmap_threshold, largest = -1, -3, 2**30  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(mmap_threshold, largest)) and bool(mallopt(trim_threshold, largest))


@functools.cache
def reuse_freed_memory() -> None:
    """Let glibc reuse up to 64 MB of freed memory instead of returning it to the system.

    By default, glibc returns freed memory at the end of its heap as soon as there is more than twice the largest block
    that was ever mapped on its own and freed. A training step would then have to touch fresh pages in every step, which
    can take as long as a third of the step. One large block that is freed raises the limit, up to a maximum that glibc
    sets; other allocators are not affected. Calls after the first do nothing.

    >>> reuse_freed_memory()
    """
    block = ctypes.create_string_buffer(0)
    ctypes.resize(block, LARGEST_MAPPED)  # by malloc, and never touched
    del block


def return_freed_memory() -> None:
    """Return freed memory to the system, after work that needed more of it than what follows.

    Freed blocks between blocks in use do not fit later requests of other sizes, so without it the peak of that work
    adds to the peak of what follows. Does nothing without glibc.

    >>> return_freed_memory()
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> int | None:
    """Return the bytes that Linux estimates a process can allocate without swapping; None on other systems.

    >>> available = available_memory()
    >>> available is None or available > 0
    True
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def format_bytes(count: float) -> str:
    """Return a number of bytes with a binary unit, for messages.

    >>> format_bytes(512), format_bytes(3 * 2**20), format_bytes(160e12)
    ('512 bytes', '3 MiB', '146 TiB')
    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while count >= 1024 and power < len(units) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.3g} {units[power]}"
