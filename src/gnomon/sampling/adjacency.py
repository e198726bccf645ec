"""Adjacency relations: which two data sets count as neighbours."""

from __future__ import annotations

from typing import Literal, get_args

from gnomon.errors import SettingError

Adjacency = Literal["add-remove", "zero-out", "replace-one"]
"""How two neighbouring data sets differ.

- `add-remove`: one of them holds one record more.
- `zero-out`: both hold the same number of records, but one record contributes nothing in one of them.
- `replace-one`: both hold the same number of records, and one record is replaced by another.
"""


def sensitivity(adjacency: Adjacency) -> float:
    """Return the largest distance between the sums of two neighbours, if every vector has norm at most 1.

    >>> sensitivity("zero-out"), sensitivity("replace-one")
    (1.0, 2.0)
    """
    return 2.0 if adjacency == "replace-one" else 1.0


def parse_adjacency(value: object) -> Adjacency:
    """Return the value if it names an adjacency, and raise SettingError otherwise.

    >>> parse_adjacency("zero-out")
    'zero-out'
    """
    names: tuple[Adjacency, ...] = get_args(Adjacency)
    for name in names:
        if value == name:
            return name
    raise SettingError("adjacency", value, " or ".join(map(repr, names)))
