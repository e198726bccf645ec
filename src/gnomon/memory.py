"""Memory of this process and of the machine."""

from __future__ import annotations

import ctypes
from pathlib import Path


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
