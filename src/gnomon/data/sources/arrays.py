"""A user's own arrays, from an .npz file."""

from __future__ import annotations

import dataclasses
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray
from torch import Tensor

from gnomon.data.records import Records
from gnomon.data.sources.holdout import holdout
from gnomon.data.sources.labels import class_labels
from gnomon.data.sources.source import Source
from gnomon.errors import DataError
from gnomon.memory import available_memory, format_bytes

SPLIT = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("inputs", "targets")
HEADERS = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}
MAGIC = b"\x93NUMPY"
SHRINKS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
"""By which factor a member of an archive can be smaller than what it unpacks to, at most; np.savez writes these two."""
SLACK = 2**16
"""Bytes by which a member may exceed that, for its own header."""
DAMAGED = "the file is damaged or was made to exhaust memory; get it again, or write it anew with np.savez"
SMALLER = "store fewer records or smaller numbers (float32, uint8), or read it where there is more memory"
LAYOUT = "store x_train, y_train, x_test and y_test, or inputs and targets, with np.savez"


def npz(path: Path) -> Source:
    """The arrays x_train, y_train, x_test, y_test; or inputs and targets, of which a fixed fifth is the test.

    Inputs become float32; unsigned bytes (uint8) are divided by 255 and other numbers are not, so x_train and x_test
    must both be bytes, or neither. Labels are whole numbers from 0. The number of classes is the array `classes` when
    the file has one. Otherwise it is read off the largest label, which makes that label public. The array `groups`, if
    there is one, says whose each record of x_train (or inputs) is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder) / "own.npz", inputs=np.eye(10), targets=np.arange(10) % 3, classes=3)
    ...     source = npz(Path(folder) / "own.npz")
    >>> len(source.train), len(source.test), source.classes, source.input_shape
    (8, 2, 3, (10,))
    """
    stored = _read(path)
    classes = _classes(stored, path)
    if all(name in stored for name in SPLIT):
        _one_scale(stored["x_train"], stored["x_test"], path)
        train, test = (_records(stored, f"x_{part}", f"y_{part}", classes, path) for part in ("train", "test"))
        train = _grouped(train, stored, path)
    elif all(name in stored for name in WHOLE):
        records = _grouped(_records(stored, *WHOLE, classes, path), stored, path)
        train, test = holdout(records, test=len(records) // 5)
    else:
        raise DataError(path, f"has the arrays {', '.join(sorted(stored)) or 'none'}", LAYOUT)
    shape = tuple(train.inputs.shape[1:])
    if shape != tuple(test.inputs.shape[1:]):
        problem = f"has training inputs of shape {shape} and test inputs of shape {tuple(test.inputs.shape[1:])}"
        raise DataError(path, problem, "store both in the same shape")
    seen = max(2, 1 + max(int(part.targets.max()) for part in (train, test) if len(part)))
    return Source(
        path.stem,
        train,
        test,
        seen if classes is None else classes,
        shape,
        f"arrays of {path.name}",
        cut=SPLIT[0] not in stored,
        counted=classes is None,
    )


def _read(path: Path) -> Mapping[str, NDArray[Any]]:
    if not path.is_file():
        raise DataError(path, "is missing", "give the path of an .npz file")
    try:
        with zipfile.ZipFile(path) as members:
            _check_sizes(path, members)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        problem = f"cannot be read as plain arrays ({error})"
        raise DataError(path, problem, f"{LAYOUT}, without object arrays") from error
    except MemoryError as error:
        raise DataError(path, "does not fit into memory", SMALLER) from error


def _check_sizes(path: Path, members: zipfile.ZipFile) -> None:
    """Refuse what could not be read, before memory is asked for.

    A header of a few bytes can claim any shape, and a small compressed member can unpack to any size. So each header
    must claim the bytes that its member has, each member no more than its compressed bytes can hold, and all arrays
    together no more than the memory that is there.
    """
    total, there = 0, path.stat().st_size
    for member in members.infolist():
        name = member.filename.removesuffix(".npy")
        factor = SHRINKS.get(member.compress_type, math.inf)
        if member.file_size > factor * min(member.compress_size, there) + SLACK:
            problem = (
                f"has an array {name} that claims {format_bytes(member.file_size)} in a file of {format_bytes(there)}"
            )
            raise DataError(path, problem, DAMAGED)
        with members.open(member) as file:
            claimed = _claimed(file)
            if claimed is not None and claimed[1] != (found := member.file_size - file.tell()):
                shape, size = claimed
                problem = (
                    f"has an array {name} whose header claims shape {shape}, {format_bytes(size)}, "
                    f"where the file has {format_bytes(found)}"
                )
                raise DataError(path, problem, DAMAGED)
        total += member.file_size
    free = available_memory()
    if free is not None and total > free:
        problem = f"has arrays of {format_bytes(total)} together, and {format_bytes(free)} of memory are available"
        raise DataError(path, problem, SMALLER)


def _claimed(file: IO[bytes]) -> tuple[tuple[int, ...], int] | None:
    """Shape and bytes that the header of an array claims; None for what NumPy does not read as an array of numbers."""
    if file.read(len(MAGIC)) != MAGIC:
        return None
    file.seek(0)
    version = read_magic(file)
    if version not in HEADERS:
        return None
    shape, _, dtype = HEADERS[version](file)
    return None if dtype.hasobject else (shape, math.prod(shape) * dtype.itemsize)


def _one_scale(train: NDArray[Any], test: NDArray[Any], path: Path) -> None:
    """Bytes are divided by 255 and other numbers are not: both parts must be of one kind."""
    if (train.dtype == np.uint8) != (test.dtype == np.uint8):
        problem = f"has {train.dtype} in x_train and {test.dtype} in x_test"
        raise DataError(path, problem, "store both as uint8, which is divided by 255, or neither")


def _classes(stored: Mapping[str, NDArray[Any]], path: Path) -> int | None:
    if "classes" not in stored:
        return None
    given = stored["classes"]
    if given.ndim != 0 or given.dtype.kind not in "iu" or given < 2:
        raise DataError(path, f"has classes = {given.tolist()}", "store one whole number, 2 or above")
    return int(given)


def _records(stored: Mapping[str, NDArray[Any]], x: str, y: str, classes: int | None, path: Path) -> Records:
    inputs, labels = _inputs(stored[x], f"{path}: {x}"), class_labels(stored[y], classes, f"{path}: {y}")
    if len(inputs) != len(labels) or not len(inputs):
        problem = f"has {len(inputs)} records in {x} and {len(labels)} labels in {y}"
        raise DataError(path, problem, "store one label for each record, and at least one record")
    return Records(inputs, labels)


def _grouped(records: Records, stored: Mapping[str, NDArray[Any]], path: Path) -> Records:
    """The records with the groups that the file gives them."""
    groups = stored.get("groups")
    if groups is not None and groups.shape != (len(records),):
        problem = f"has groups of shape {groups.shape} for {len(records)} records"
        raise DataError(path, problem, "store one name or number for each record of x_train (or inputs)")
    return dataclasses.replace(records, groups=groups)


def _inputs(values: NDArray[Any], where: str) -> Tensor:
    if values.dtype.kind not in "fiub":
        raise DataError(where, f"has the type {values.dtype}", "store real numbers")
    if values.ndim < 2:
        raise DataError(where, f"has the shape {values.shape}", "store an array of shape (records, ...)")
    scale = np.float32(255 if values.dtype == np.uint8 else 1)
    return torch.from_numpy(values.astype(np.float32) / scale)
