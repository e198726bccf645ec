"""Cached features on disk: a NumPy file and a note beside it with its checksum. No pickle."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from gnomon.errors import DataError
from gnomon.files import write_atomic
from gnomon.memory import format_bytes

BLOCK = 2**24


class Damaged(Exception):
    """A cached file is not what its note says."""


@dataclass(frozen=True)
class Entry:
    """The features of some records under some map in a folder.

    Rows go into a file of another name, which is renamed when it is complete, and the note with its checksum comes
    last. A computation that is interrupted leaves nothing that a later one trusts.

    Args:
        folder: the folder of the cache; created when needed.
        key: a hash of the map and the records.
        shape: the shape of the features.
        dtype: the type of the numbers in the file.
        name: the name of the map, for the note.
    """

    folder: Path
    key: str
    shape: tuple[int, int]
    dtype: str
    name: str

    @property
    def path(self) -> Path:
        """The file of the features."""
        return self.folder / f"features-{self.key[:32]}.npy"

    @property
    def note(self) -> Path:
        """The file beside it with its key and checksum."""
        return self.path.with_suffix(".json")

    def read(self, verify: bool = True) -> Tensor | None:
        """Return the stored features, mapped into memory; None if there are none.

        Raises:
            Damaged: the file is truncated or changed, or the note is not readable.
        """
        if not (self.path.exists() and self.note.exists()):
            return None
        try:
            note = json.loads(self.note.read_bytes())
            checksum = note["sha256"] if note["key"] == self.key else ""
        except (ValueError, KeyError, TypeError):
            raise Damaged(f"{self.note} is damaged") from None
        try:
            # Copy on write: a change of the tensor does not reach the file.
            array = np.load(self.path, mmap_mode="c", allow_pickle=False)
        except (ValueError, EOFError, OSError):
            raise Damaged(f"{self.path} is damaged or truncated") from None
        if array.shape != self.shape or array.dtype != np.dtype(self.dtype):
            raise Damaged(f"{self.path} holds {array.dtype} features of shape {array.shape}, not of {self.shape}")
        if verify and self._checksum() != checksum:
            raise Damaged(f"{self.path} is damaged: its checksum differs from the one in {self.note.name}")
        return torch.from_numpy(array)

    def write(self, chunks: Iterator[Tensor]) -> None:
        """Write the features and then the note, replacing earlier ones.

        Raises:
            DataError: the folder cannot be created, or the disk is full.
        """
        partial = self.folder / f".{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.note.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # as private as the records
            with os.fdopen(descriptor, "wb") as file:
                checksum = self._write_rows(file, chunks)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
            note = {"key": self.key, "sha256": checksum, "map": self.name, "shape": self.shape, "dtype": self.dtype}
            write_atomic(self.note, json.dumps(note, indent=1).encode(), shared=True)
        except OSError as error:
            size = format_bytes(self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize)
            problem = f"cannot store {size} of features ({error.strerror})"
            raise DataError(self.folder, problem, "choose another folder as cache, or cache=None") from error
        finally:
            if self.folder.is_dir():
                partial.unlink(missing_ok=True)

    def _write_rows(self, file: IO[bytes], chunks: Iterator[Tensor]) -> str:
        digest = hashlib.sha256()
        header: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(self.dtype)),
            "fortran_order": False,
            "shape": self.shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            rows = chunk.contiguous().numpy().data
            digest.update(rows)
            file.write(rows)
        return digest.hexdigest()

    def _checksum(self) -> str:
        size = self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(-size, os.SEEK_END)
            while block := file.read(BLOCK):
                digest.update(block)
        return digest.hexdigest()
