"""How this process treats memory it has freed."""

from __future__ import annotations

import ctypes


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
