"""The reasons for which a client or the server refuses a part in a round."""

from __future__ import annotations

from gnomon.errors import GnomonError

REASONS = {
    "absent": "no upload arrived before the deadline",
    "error": "the client failed during the round",
    "budget": "the client's privacy budget is exhausted",
    "basis": "the client's subspace differs from the server's",
    "round": "the message belongs to another round",
    "twice": "the client sent a second upload in the same round",
    "unasked": "the client was not asked in this round",
    "contents": "unexpected arrays or numbers",
    "bytes": "more bytes than this strategy uploads",
    "dtype": "unexpected dtype",
    "shape": "unexpected shape",
    "finite": "values that are not finite",
    "size": "weights above the agreed maximum",
    "norm": "a larger norm than an honest client can produce",
    "positions": "positions that are not increasing or are out of range",
}
"""The constant texts by reason. The text of a client's exception never leaves the client: it could quote a record."""


class Refused(GnomonError, ValueError):
    """A client's part in a round does not count.

    Args:
        reason: a key of `REASONS`.
        detail: what exactly was refused. Only `reason` may be sent to the other side.

    >>> Refused("finite").reason, str(Refused("finite"))
    ('finite', 'values that are not finite')
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(REASONS[reason] + (f": {detail}" if detail else ""))
