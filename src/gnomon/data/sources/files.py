"""Files of the data sets: find the data folder and read a file in it, compressed or not."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from gnomon.errors import DataError
from gnomon.memory import format_bytes

OTHER_FOLDER = "or name another folder with data_dir (--data-dir) or GNOMON_DATA; 'digits' needs no files"

LARGEST = 2**28
"""The largest size, in bytes, to which a compressed file may unpack; several times that of any official file."""


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the data sets: the argument, else GNOMON_DATA, else ./data.

    >>> data_folder("somewhere").name
    'somewhere'
    """
    if data_dir is not None:
        return Path(data_dir).expanduser()
    return Path(os.environ.get("GNOMON_DATA") or "data").expanduser()


def find(path: Path) -> Path:
    """Return the path if the file exists, else the path with .gz appended.

    Raises:
        DataError: if neither file exists.
    """
    packed = path.with_name(path.name + ".gz")
    for candidate in (path, packed):
        if candidate.is_file():
            return candidate
    raise DataError(path, f"is missing, and so is {packed.name}", f"put the official file there, {OTHER_FOLDER}")


def contents(path: Path) -> bytes:
    """Return the bytes of a file that `find` returned, decompressed.

    Raises:
        DataError: if the file cannot be read, is damaged, or unpacks to more than `LARGEST` bytes.
    """
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
        problem = f"unpacks to more than {format_bytes(LARGEST)}, which is more than any official file has"
        raise DataError(path, problem, "check that the file is the official one; download it again")
    return unpacked


def text(path: Path) -> str:
    """Return the contents of a file as text, decompressed.

    Raises:
        DataError: as for `contents`, or if the file is not UTF-8 text.
    """
    try:
        return contents(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(path, f"is not text ({error.reason})", "download the file again") from error
