"""The file of a ledger: rows that are only ever added, each bound to the one before by its hash.

SQLite with a write-ahead log and `synchronous = FULL`: a row that was added survives a kill at any moment and a
power cut. The hashes show edits and gaps, and an edited key: the first row commits to it (in a ledger of an earlier
version, the next row that is added). That the last rows were cut off shows only beside a head that was kept
elsewhere; checkpoints and statements keep one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import get_ident
from typing import Any

PATIENCE = 60.0
"""Seconds to wait for another process that writes."""

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, "
    "content TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
)


class LedgerError(ValueError):
    """A ledger that cannot be read, written or trusted; nothing is released then.

    >>> raise LedgerError("ledger.sqlite: entry 3 was changed")
    Traceback (most recent call last):
    gnomon.ledger.file.LedgerError: ledger.sqlite: entry 3 was changed
    """


@dataclass(frozen=True)
class Head:
    """The number and the hash of the last entry: whoever keeps it can tell later whether entries were lost.

    >>> Head.read("3:ab12").number
    3
    """

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def read(cls, text: str) -> Head:
        """The head that `str` wrote."""
        number, colon, mark = text.partition(":")
        if not (number.isdigit() and colon and mark):
            raise LedgerError(f"head = {text!r} is not NUMBER:HASH, as statements and `gnomon ledger show` print it")
        return cls(int(number), mark)


@dataclass(frozen=True)
class Entry:
    """One row."""

    number: int
    time: str
    kind: str
    content: dict[str, Any]
    hash: str


class LedgerFile:
    """The rows of one file, read and added inside transactions that one thread of one process at a time can hold.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = LedgerFile(Path(place) / "ledger.sqlite")
    ...     with store.transaction() as rows:
    ...         before = rows.since(rows.start)
    ...         head = rows.append("note", {"text": "hello"}, rows.start).number
    ...     store.close()
    >>> before, head
    ([], 1)
    """

    def __init__(self, path: Path, *, make_folder: bool = False) -> None:
        self.path, self._make_folder = path, make_folder
        self._process = os.getpid()
        self._connections: dict[int, sqlite3.Connection] = {}  # by thread: two cannot share a transaction
        self._abandoned: list[sqlite3.Connection] = []

    @contextmanager
    def transaction(self) -> Iterator[LedgerRows]:
        """Waits for other writers, then sees and adds rows alone. An error undoes everything."""
        try:
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield LedgerRows(connection, self.path)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def close(self) -> None:
        self._leave_after_fork()
        while self._connections:
            self._connections.popitem()[1].close()

    def _leave_after_fork(self) -> None:
        if self._process != os.getpid():
            self._abandoned += self._connections.values()  # must not be used, nor closed, after a fork
            self._connections, self._process = {}, os.getpid()

    def _connect(self) -> sqlite3.Connection:
        self._leave_after_fork()
        if (known := self._connections.get(get_ident())) is not None:
            return known
        try:
            if self._make_folder:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            # for its owner alone: who has the key can ask the marks whether somebody is among the records
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except FileNotFoundError:
            raise LedgerError(
                f"the ledger {self.path} cannot be made: there is no folder {self.path.parent}. If the path is right, "
                "make the folder first; a mistyped one would start an empty ledger"
            ) from None
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.path} cannot be made or written ({error.strerror}): name another file"
            ) from None
        connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not {"about", "entries"} <= tables:
            connection.close()
            raise LedgerError(f"{self.path} is not a ledger of gnomon: name another file")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if not tables:
            _create(connection)
        self._connections[get_ident()] = connection
        return connection

    def _explained(self, error: sqlite3.Error) -> LedgerError:
        remedy = "nothing was released; free the disk or name another file"
        if "locked" in str(error):
            remedy = f"another process has been writing for {PATIENCE:.0f} s; nothing was released"
        elif "not a database" in str(error):
            remedy = (
                "it is not a ledger, or damaged; name another file, or restore the ledger from a copy and do not start "
                "a new one for the same data"
            )
        elif "malformed" in str(error):
            remedy = "the file is damaged; restore it from a copy, do not start a new one for the same data"
        return LedgerError(f"the ledger {self.path} cannot be used ({error}): {remedy}")


class LedgerRows:
    """The rows as one transaction sees them."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self.about: dict[str, str] = dict(connection.execute("SELECT name, value FROM about"))
        if not {"id", "key"} <= set(self.about):
            raise LedgerError(f"{path} is not a ledger of gnomon: name another file")
        self.start = Head(0, hashlib.sha256(f"gnomon ledger {self.about['id']}".encode()).hexdigest())
        key = f"gnomon ledger key {self.about['id']} {self.about['key']}"
        self.commitment = hashlib.sha256(key.encode()).hexdigest()
        """What a row says of the key: it binds the key to the chain of hashes, and does not give it away."""

    def since(self, head: Head) -> list[Entry]:
        """The rows after a head, checked link by link; an error if the head is not there or a link is broken."""
        if head.number and self._hash(head.number) != head.hash:
            raise LedgerError(
                f"{self._path}: entry {head.number} is missing or not the one known as {head.hash[:12]}: the ledger "
                "was cut, changed or replaced by an older copy; restore the right one"
            )
        found, last = [], head
        for number, time, kind, content, mark in self._connection.execute(
            "SELECT number, time, kind, content, hash FROM entries WHERE number > ? ORDER BY number", (head.number,)
        ):
            if number != last.number + 1 or mark != _link(last, number, time, kind, content):
                raise LedgerError(
                    f"{self._path}: entry {number} was changed, or one before it is missing: what was spent is not "
                    "known; restore the ledger from a copy"
                )
            found.append(Entry(number, time, kind, json.loads(content), mark))
            last = Head(number, mark)
        return found

    def append(self, kind: str, content: dict[str, Any], last: Head) -> Entry:
        """Add a row after the last one."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        number = last.number + 1
        mark = _link(last, number, time, kind, text)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (number, time, kind, text, mark))
        return Entry(number, time, kind, content, mark)

    def _hash(self, number: int) -> str | None:
        row = self._connection.execute("SELECT hash FROM entries WHERE number = ?", (number,)).fetchone()
        return None if row is None else str(row[0])


def _create(connection: sqlite3.Connection) -> None:
    """An empty ledger with a name of its own and a key for the marks of records."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    for name in ("id", "key"):
        connection.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, os.urandom(16).hex()))
    connection.execute("COMMIT")


def _link(last: Head, number: int, time: str, kind: str, content: str) -> str:
    return hashlib.sha256("\n".join([last.hash, str(number), time, kind, content]).encode()).hexdigest()
