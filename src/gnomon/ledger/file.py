"""The ledger file: an append-only SQLite table of entries, each chained to its predecessor by a hash.

SQLite runs with a write-ahead log and `synchronous = FULL`, so a committed entry survives a killed process and a power
failure. The hash chain reveals edited and missing entries, and a replaced key, because the first entry commits to the
key (in a ledger that predates the commitment: the next entry that is appended). Entries that were truncated at the end
are detected only against a head that was stored elsewhere; checkpoints and statements store one.
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

from gnomon.errors import DataError, GnomonError, StateError

LOCK_TIMEOUT = 60.0
"""Seconds to wait for the write lock of another process."""

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, "
    "content TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
)


class LedgerError(GnomonError, ValueError):
    """The ledger did not record the spending of a run, so that nothing may be released.

    `LedgerFileError` and `LedgerStateError` say whether the file or the call is at fault.

    >>> raise LedgerError("run 3f2a90c1d4e5 is not in the ledger")
    Traceback (most recent call last):
    gnomon.ledger.file.LedgerError: run 3f2a90c1d4e5 is not in the ledger
    """


class LedgerFileError(LedgerError, DataError):
    """A ledger file cannot be read, written or trusted.

    >>> raise LedgerFileError("ledger.sqlite", "has an edited entry 3", "restore a backup")
    Traceback (most recent call last):
    gnomon.ledger.file.LedgerFileError: ledger.sqlite has an edited entry 3: restore a backup
    """


class LedgerStateError(LedgerError, StateError):
    """A call is not possible for a run as the ledger records it, for example a step beyond those declared.

    >>> raise LedgerStateError("run 3f2a90c1d4e5 is closed")
    Traceback (most recent call last):
    gnomon.ledger.file.LedgerStateError: run 3f2a90c1d4e5 is closed
    """


@dataclass(frozen=True)
class Head:
    """The number and the hash of the last entry. Stored elsewhere, it later proves whether entries were lost.

    >>> Head.parse("3:ab12").number
    3
    """

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Parse the text form NUMBER:HASH, as `str(head)` writes it.

        Raises:
            LedgerError: if the text has another form.
        """
        number, colon, digest = text.partition(":")
        if not (number.isdigit() and colon and digest):
            raise LedgerError(
                f"head = {text!r} is invalid; expected NUMBER:HASH, as statements and `gnomon ledger show` print it"
            )
        return cls(int(number), digest)


@dataclass(frozen=True)
class Entry:
    """One entry of the ledger: an event with its number, time, kind, content and chained hash."""

    number: int
    time: str
    kind: str
    content: dict[str, Any]
    hash: str


class LedgerFile:
    """The SQLite file of a ledger, with exclusive transactions across threads and processes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = LedgerFile(Path(folder) / "ledger.sqlite")
    ...     with store.transaction() as rows:
    ...         before = rows.entries_after(rows.start)
    ...         head = rows.append("note", {"text": "hello"}, rows.start).number
    ...     store.close()
    >>> before, head
    ([], 1)
    """

    def __init__(self, path: Path, *, make_folder: bool = False) -> None:
        self.path, self._make_folder = path, make_folder
        self._process = os.getpid()
        self._connections: dict[int, sqlite3.Connection] = {}  # by thread id: threads cannot share a transaction
        self._abandoned: list[sqlite3.Connection] = []

    @contextmanager
    def transaction(self) -> Iterator[LedgerRows]:
        """Hold the write lock while entries are read and appended; roll back if an exception leaves the block."""
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
        """Close the connections of all threads."""
        self._abandon_after_fork()
        while self._connections:
            self._connections.popitem()[1].close()

    def _abandon_after_fork(self) -> None:
        if self._process != os.getpid():
            # SQLite forbids using or closing an inherited connection in a forked child, so keep references to them.
            self._abandoned += self._connections.values()
            self._connections, self._process = {}, os.getpid()

    def _connect(self) -> sqlite3.Connection:
        self._abandon_after_fork()
        if (connection := self._connections.get(get_ident())) is not None:
            return connection
        try:
            if self._make_folder:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            # Owner-only: with the key in this file, the fingerprints reveal whether a given record is in the data.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except FileNotFoundError:
            raise LedgerFileError(
                f"ledger {self.path}",
                f"cannot be created, because there is no folder {self.path.parent}",
                "create the folder if the path is right; a mistyped path would start an empty ledger",
            ) from None
        except OSError as error:
            raise LedgerFileError(
                f"ledger {self.path}", f"cannot be created or written ({error.strerror})", "name another file"
            ) from None
        connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not {"about", "entries"} <= tables:
            connection.close()
            raise _not_a_ledger(self.path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if not tables:
            _create(connection)
        self._connections[get_ident()] = connection
        return connection

    def _explained(self, error: sqlite3.Error) -> LedgerFileError:
        """Return the ledger error for an SQLite error, with the remedy for its cause."""
        text = str(error)
        if "locked" in text:
            remedy = f"another process held the write lock for {LOCK_TIMEOUT:.0f} s; nothing was released; try again"
        elif "not a database" in text:
            remedy = (
                "the file is not a ledger, or damaged; name another file, or restore the ledger from a backup; do not "
                "start a new ledger for the same data"
            )
        elif "malformed" in text:
            remedy = "the file is damaged; restore a backup; do not start a new ledger for the same data"
        else:
            remedy = "nothing was released; free disk space or name another file"
        return LedgerFileError(f"ledger {self.path}", f"cannot be used ({error})", remedy)


class LedgerRows:
    """The entries of a ledger file, as one transaction sees them."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self.about: dict[str, str] = dict(connection.execute("SELECT name, value FROM about"))
        if not {"id", "key"} <= set(self.about):
            raise _not_a_ledger(path)
        self.start = Head(0, hashlib.sha256(f"gnomon ledger {self.about['id']}".encode()).hexdigest())
        key = f"gnomon ledger key {self.about['id']} {self.about['key']}"
        self.commitment = hashlib.sha256(key.encode()).hexdigest()
        """Hash of the key that an entry records: it binds the key to the hash chain without revealing it."""

    def entries_after(self, head: Head) -> list[Entry]:
        """Return the entries after a head, each verified against its predecessor.

        Raises:
            LedgerFileError: if the entry of the head is missing or differs, or if the hash chain is broken.
        """
        if head.number and self._hash(head.number) != head.hash:
            raise LedgerFileError(
                f"ledger {self._path}",
                f"lacks entry {head.number}, or its hash is not {head.hash[:12]}..., so entries are missing or edited",
                "it was truncated, edited or replaced by an older copy; restore the latest copy",
            )
        entries, last = [], head
        for number, time, kind, content, digest in self._connection.execute(
            "SELECT number, time, kind, content, hash FROM entries WHERE number > ? ORDER BY number", (head.number,)
        ):
            if number != last.number + 1 or digest != _chained_hash(last, number, time, kind, content):
                raise LedgerFileError(
                    f"ledger {self._path}",
                    f"has an edited entry {number}, or lacks an entry before it, so the spending is unknown",
                    "restore a backup",
                )
            entries.append(Entry(number, time, kind, json.loads(content), digest))
            last = Head(number, digest)
        return entries

    def append(self, kind: str, content: dict[str, Any], last: Head) -> Entry:
        """Append an entry after `last`, the present head, and return it."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        number = last.number + 1
        digest = _chained_hash(last, number, time, kind, text)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (number, time, kind, text, digest))
        return Entry(number, time, kind, content, digest)

    def _hash(self, number: int) -> str | None:
        row = self._connection.execute("SELECT hash FROM entries WHERE number = ?", (number,)).fetchone()
        return None if row is None else str(row[0])


def _create(connection: sqlite3.Connection) -> None:
    """Create an empty ledger with a random id and a random key for the fingerprints of records."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    for name in ("id", "key"):
        connection.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, os.urandom(16).hex()))
    connection.execute("COMMIT")


def _not_a_ledger(path: Path) -> LedgerFileError:
    return LedgerFileError(path, "is not a ledger of gnomon", "name another file")


def _chained_hash(last: Head, number: int, time: str, kind: str, content: str) -> str:
    return hashlib.sha256("\n".join([last.hash, str(number), time, kind, content]).encode()).hexdigest()
