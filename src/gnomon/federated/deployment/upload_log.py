"""A durable log of the uploads that a server has received, written before it looks at them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from gnomon.federated.message import Message
from gnomon.federated.rounds import Exchange, Reply
from gnomon.federated.server import Server


class UploadLog:
    """An exchange that logs each client whose upload arrives, so that a server that was killed still knows of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exchange = UploadLog(lambda messages: [("north", Message(1))], Path(folder) / "answered.jsonl")
    ...     replies = list(exchange({})), list(exchange({}))
    ...     exchange.counts()
    Counter({'north': 2})
    """

    def __init__(self, exchange: Exchange, path: Path) -> None:
        self._exchange, self._path = exchange, path

    def __call__(self, messages: Mapping[str, Message]) -> Iterator[Reply]:
        for name, reply in self._exchange(messages):
            if isinstance(reply, Message):
                self._append(name, reply.round)
            yield name, reply

    def _append(self, name: str, number: int) -> None:
        with self._path.open("a") as file:
            # the leading line break ends a line that was cut short when the server was killed
            file.write("\n" + json.dumps({"round": number, "client": name}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def counts(self) -> Counter[str]:
        """Return the number of logged uploads of each client."""
        counts: Counter[str] = Counter()
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            try:
                counts[json.loads(line)["client"]] += 1
            except ValueError:  # an empty line, or one that was cut short
                continue
        return counts

    def restore_counts(self, server: Server) -> None:
        """Raise the server's upload counts to those of the log: it may have been killed before it counted an upload."""
        received = server.state.uploads_received
        for name, count in self.counts().items():
            received[name] = max(count, received.get(name, 0))
