"""Why a client's part in a round was refused."""

from __future__ import annotations

REASONS = {
    "absent": "no answer before the deadline",
    "error": "the client could not do the round",
    "budget": "the client's privacy budget is spent",
    "basis": "the client's subspace is not the server's",
    "round": "an answer to another round",
    "twice": "a second answer in one round",
    "unasked": "an answer that nobody asked for",
    "contents": "other arrays or numbers than this method uploads",
    "bytes": "more bytes than this method uploads",
    "dtype": "another number format",
    "shape": "another shape",
    "finite": "values that are not finite",
    "size": "weights above the agreed size",
    "norm": "a longer change than an honest client can make",
    "positions": "positions that are not rising or out of range",
}
"""The constant texts. What a client's exception said never leaves the client: it could quote a record."""


class Refused(ValueError):
    """A client's part in a round that does not count, with one of the `REASONS`.

    >>> Refused("finite").reason, str(Refused("finite"))
    ('finite', 'values that are not finite')
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(REASONS[reason] + (f": {detail}" if detail else ""))
