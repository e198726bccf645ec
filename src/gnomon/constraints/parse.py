"""Constraints by the text that the command line uses."""

from __future__ import annotations

from collections.abc import Callable

from gnomon.constraints.balls import Box, L1Ball, L2Ball, Simplex
from gnomon.constraints.constraint import Constraint
from gnomon.constraints.structured import GroupBall, NuclearBall
from gnomon.errors import SettingError

MAKERS: dict[str, tuple[tuple[int, ...], Callable[..., Constraint]]] = {
    "l1": ((1,), L1Ball),
    "l2": ((1,), L2Ball),
    "simplex": ((0, 1), Simplex),
    "box": ((2,), Box),
    "group": ((2,), lambda radius, group: GroupBall(radius, int(group) if group == int(group) else group)),
    "nuclear": ((2,), lambda radius, rows: NuclearBall(radius, int(rows) if rows == int(rows) else rows)),
}
"""How many numbers each takes, and what makes it."""

ALLOWED = "l1:RADIUS, l2:RADIUS, simplex[:SUM], box:LOW,HIGH, group:RADIUS,GROUP or nuclear:RADIUS,ROWS"


def parse(text: str | Constraint | None) -> Constraint:
    """The constraint that a text names; a constraint is returned as it is.

    >>> parse("l1:5")
    L1Ball(radius=5.0)
    >>> parse("box:-1,1")
    Box(low=-1.0, high=1.0)
    """
    if not isinstance(text, str):
        if text is None or not callable(getattr(text, "project", None)):
            raise SettingError("constraint", text, f"{ALLOWED}, or a constraint such as L1Ball(5)")
        return text
    kind, _, rest = text.partition(":")
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        raise SettingError("constraint", text, ALLOWED) from None
    if kind not in MAKERS or len(numbers) not in MAKERS[kind][0]:
        raise SettingError("constraint", text, ALLOWED)
    try:
        return MAKERS[kind][1](*numbers)
    except (OverflowError, ValueError) as error:
        raise SettingError("constraint", text, f"{ALLOWED} ({error})") from None
