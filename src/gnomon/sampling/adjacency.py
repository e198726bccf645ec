"""Which two data sets count as neighbours."""

from __future__ import annotations

from typing import Literal, get_args

from dp_accounting import NeighboringRelation

from gnomon.errors import SettingError

Adjacency = Literal["add-remove", "zero-out", "replace-one"]
"""How neighbours differ: one record is there or not; it counts or counts as nothing; it is another one."""

RELATIONS: dict[Adjacency, NeighboringRelation] = {
    "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero-out": NeighboringRelation.REPLACE_SPECIAL,
    "replace-one": NeighboringRelation.REPLACE_ONE,
}


def sensitivity(adjacency: Adjacency) -> float:
    """How far one record can move a sum of vectors of norm at most 1.

    >>> sensitivity("zero-out"), sensitivity("replace-one")
    (1.0, 2.0)
    """
    return 2.0 if adjacency == "replace-one" else 1.0


def checked(value: object) -> Adjacency:
    """The value, if it names an adjacency.

    >>> checked("zero-out")
    'zero-out'
    """
    for name in get_args(Adjacency):
        if value == name:
            found: Adjacency = name
            return found
    raise SettingError("adjacency", value, " or ".join(map(repr, get_args(Adjacency))))
