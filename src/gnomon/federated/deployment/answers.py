"""Which answers a server has had, on disk before it looks at them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from gnomon.federated.message import Message
from gnomon.federated.rounds import Answer, Exchange
from gnomon.federated.server import Server

ANSWERED = "answered.jsonl"


class AnswerLog:
    """An exchange that notes in a file whose uploads came, so that a server that was killed still knows of them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     exchange = AnswerLog(lambda messages: [("north", Message(1))], Path(place) / ANSWERED)
    ...     answers = list(exchange({})), list(exchange({}))
    ...     exchange.counts()
    Counter({'north': 2})
    """

    def __init__(self, exchange: Exchange, path: Path) -> None:
        self._exchange, self._path = exchange, path

    def __call__(self, messages: Mapping[str, Message]) -> Iterator[Answer]:
        for name, answer in self._exchange(messages):
            if isinstance(answer, Message):
                self._note(name, answer.round)
            yield name, answer

    def _note(self, name: str, number: int) -> None:
        with self._path.open("a") as file:  # a line that a kill cut short ends before this one
            file.write("\n" + json.dumps({"round": number, "client": name}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def counts(self) -> Counter[str]:
        """How many uploads of each client are noted."""
        found: Counter[str] = Counter()
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            try:
                found[json.loads(line)["client"]] += 1
            except ValueError:  # cut short, or between two
                continue
        return found

    def tell(self, server: Server) -> None:
        """Let a server that goes on know of answers that it had and did not live to count."""
        for name, count in self.counts().items():
            key = f"answered|{name}"
            server.persistent.numbers[key] = max(float(count), server.persistent.numbers.get(key, 0.0))
