"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes, *, shared: bool = False) -> None:
    """Replace a file by a complete new one. A failure or a kill leaves the one that was there.

    `shared` says that other processes may write the same file at the same time; the last one wins.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_whole(Path(place) / "note.txt", b"hello")
    ...     (Path(place) / "note.txt").read_text()
    'hello'
    """
    own = f".{os.getpid()}-{secrets.token_hex(4)}" if shared else ""
    partial = path.with_name(f".{path.name}{own}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        said = f"{error.strerror} (nothing was written; what was there before is intact)"
        raise OSError(error.errno, said, str(path)) from None


def _sync(folder: Path) -> None:
    """Make a rename durable, where folders can be synced."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(number)
    except OSError:
        pass
    finally:
        os.close(number)
