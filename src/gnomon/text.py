"""Counts in messages, with the right form of the noun."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the singular or the plural.

    >>> counted(1, "run"), counted(2, "run"), counted(0, "entry", "entries")
    ('1 run', '2 runs', '0 entries')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def together(runs: int) -> str:
    """Return the number of runs that a total is for.

    >>> together(1), together(2)
    ('1 run', '2 runs together')
    """
    return counted(runs, "run") + (" together" if runs != 1 else "")
