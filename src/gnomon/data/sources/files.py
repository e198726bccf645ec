"""Find the data folder and read a file in it, compressed or not."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from gnomon.errors import DataError
from gnomon.memory import format_bytes

WHERE = "or name another folder with data_dir (--data-dir) or GNOMON_DATA; 'digits' needs no files"

LARGEST = 2**28
"""Bytes that a compressed file may unpack to, several times as many as the largest official one has."""


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the data sets: the argument, else GNOMON_DATA, else ./data.

    >>> data_folder("somewhere").name
    'somewhere'
    """
    if data_dir is not None:
        return Path(data_dir).expanduser()
    return Path(os.environ.get("GNOMON_DATA") or "data").expanduser()


def find(path: Path) -> Path:
    """The file itself if it is there, else the file with .gz added."""
    packed = path.with_name(path.name + ".gz")
    for candidate in (path, packed):
        if candidate.is_file():
            return candidate
    raise DataError(path, f"is missing, and so is {packed.name}", f"put the official file there, {WHERE}")


def contents(path: Path) -> bytes:
    """All bytes of a file that `find` gave, decompressed."""
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            unpacked = file.read(LARGEST + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(path, f"is truncated or damaged ({error})", "download the file again") from error
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the file's permissions") from error
    if len(unpacked) > LARGEST:
        problem = f"unpacks to more than {format_bytes(LARGEST)}, and no file of the data sets is as large"
        raise DataError(path, problem, "check that the file is the official one; get it again")
    return unpacked


def text(path: Path) -> str:
    """The decompressed file as text."""
    try:
        return contents(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(path, f"is not text ({error.reason})", "download the file again") from error
