"""How much memory there is, and how this process treats what it has freed."""

from __future__ import annotations

import ctypes
from pathlib import Path


def keep_memory() -> bool:
    """Ask the C library to keep freed memory for the next step instead of handing it back to the system.

    Steps free and ask for the same megabytes again and again; with glibc's defaults the system clears fresh pages for
    them each time. Only for processes of our own: the command line and its workers. False where it is not glibc.

    >>> keep_memory() in (True, False)
    True
    """
    trim_threshold, mmap_threshold, most = -1, -3, 2**30  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(mmap_threshold, most)) and bool(mallopt(trim_threshold, most))


def available_memory() -> int | None:
    """Bytes that a process can still get without swapping, as Linux estimates them; None where nobody says.

    >>> found = available_memory()
    >>> found is None or found > 0
    True
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def size_words(count: float) -> str:
    """A number of bytes as people read it.

    >>> size_words(512), size_words(3 * 2**20), size_words(160e12)
    ('512 bytes', '3 MiB', '146 TiB')
    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while count >= 1024 and power < len(units) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.3g} {units[power]}"
