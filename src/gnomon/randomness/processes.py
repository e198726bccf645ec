"""The identity of a process, so that a forked child recognises what it inherited and must not use."""

from __future__ import annotations

import os

_forks = [0]
"""The number of forks between the first process and this one. A process id alone may recur, in a new namespace."""


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def process() -> tuple[int, int]:
    """Return the identity of this process: its id, and the number of forks that led to it.

    >>> process() == process()
    True
    """
    return os.getpid(), _forks[0]
