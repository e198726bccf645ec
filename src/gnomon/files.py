"""Atomic replacement of files."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, shared: bool = False) -> None:
    """Write a file atomically and durably: a failure or a kill leaves the previous file intact.

    Args:
        path: The file to create or replace.
        content: Its new content.
        shared: Whether other processes may write the same file at the same time; the last writer wins.

    Raises:
        OSError: The file could not be written; the previous file is intact.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(Path(folder) / "note.txt", b"hello")
    ...     (Path(folder) / "note.txt").read_text()
    'hello'
    """
    suffix = f".{os.getpid()}-{secrets.token_hex(4)}" if shared else ""
    partial = path.with_name(f".{path.name}{suffix}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        message = f"{error.strerror} (nothing was written; the previous file is intact)"
        raise OSError(error.errno, message, str(path)) from None


def _sync(folder: Path) -> None:
    """Make a rename durable on systems that can sync folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
