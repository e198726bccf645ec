"""A user's own arrays, from an .npz file whose sizes are checked before it is read."""

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

from gnomon.data.fingerprint import overlap
from gnomon.data.records import Records
from gnomon.data.sources.source import Source, class_labels
from gnomon.data.split import holdout
from gnomon.errors import DataError
from gnomon.memory import available_memory, format_bytes

SPLIT = ("x_train", "y_train", "x_test", "y_test")
WHOLE = ("inputs", "targets")
PUBLIC = ("x_public", "y_public")
HEADERS = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}
MAGIC = b"\x93NUMPY"
COMPRESSION_FACTORS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
"""The largest possible compression factor of each method that np.savez and np.savez_compressed use."""
SLACK = 2**16
"""Bytes by which a member may exceed this factor, for its own header."""
DAMAGED = "the file is damaged or was made to exhaust memory; download it again, or write it again with np.savez"
SMALLER = "store fewer records or a smaller type (float32, uint8), or use a machine with more memory"
LAYOUT = "store x_train, y_train, x_test and y_test, or inputs and targets, with np.savez"


def npz(path: Path) -> Source:
    """Load the arrays x_train, y_train, x_test and y_test; or inputs and targets, with a fixed fifth as the test set.

    Inputs become float32; unsigned bytes (uint8) are divided by 255 and other numbers are not, so x_train and x_test
    must both be bytes, or neither. Labels are whole numbers from 0. The number of classes is the array `classes` if
    the file has one; otherwise it is read off the largest label, which makes that label public. The optional array
    `groups` holds the group of each record of x_train (or inputs), such as a speaker or a hospital. The optional
    arrays x_public and y_public declare public records, which are NOT protected; none of them may occur among the
    private records, which are those of x_train (or inputs).

    Raises:
        DataError: if the file is missing, damaged, too large for the memory, or lacks these arrays, or if its public
            records are incomplete, do not fit the others, or occur among the private records.

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
        _check_same_scale(stored, "x_train", "x_test", path)
        train, test = (_records(stored, f"x_{part}", f"y_{part}", classes, path) for part in ("train", "test"))
        private = train = _grouped(train, stored, path)
    elif all(name in stored for name in WHOLE):
        private = _grouped(_records(stored, *WHOLE, classes, path), stored, path)
        train, test = holdout(private, test=len(private) // 5)
    else:
        raise DataError(path, f"has the arrays {', '.join(sorted(stored)) or 'none'}", LAYOUT)
    shape = tuple(train.inputs.shape[1:])
    if shape != tuple(test.inputs.shape[1:]):
        problem = f"has training inputs of shape {shape} and test inputs of shape {tuple(test.inputs.shape[1:])}"
        raise DataError(path, problem, "store both in the same shape")
    public = _public(stored, classes, private, path)
    labelled = (train, test) if public is None else (train, test, public)
    observed = max(2, 1 + max(int(part.targets.max()) for part in labelled if len(part)))
    return Source(
        path.stem,
        train,
        test,
        observed if classes is None else classes,
        shape,
        f"arrays of {path.name}",
        cut=SPLIT[0] not in stored,
        counted=classes is None,
        public=public,
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
    """Refuse an archive that cannot be read, before memory is allocated.

    A header of a few bytes can claim any shape, and a small compressed member can unpack to any size. So each header
    must claim as many bytes as its member has, each member no more than its compressed bytes can hold, and all arrays
    together no more than the available memory.
    """
    total, file_bytes = 0, path.stat().st_size
    for member in members.infolist():
        name = member.filename.removesuffix(".npy")
        factor = COMPRESSION_FACTORS.get(member.compress_type, math.inf)
        if member.file_size > factor * min(member.compress_size, file_bytes) + SLACK:
            claim = f"claims {format_bytes(member.file_size)} in a file of {format_bytes(file_bytes)}"
            problem = f"has an array {name} that {claim}"
            raise DataError(path, problem, DAMAGED)
        with members.open(member) as file:
            header = _read_header(file)
            if header is not None and header[1] != (stored := member.file_size - file.tell()):
                shape, size = header
                problem = (
                    f"has an array {name} whose header claims shape {shape}, {format_bytes(size)}, "
                    f"where the file has {format_bytes(stored)}"
                )
                raise DataError(path, problem, DAMAGED)
        total += member.file_size
    free = available_memory()
    if free is not None and total > free:
        problem = f"has arrays of {format_bytes(total)} together, and {format_bytes(free)} of memory are available"
        raise DataError(path, problem, SMALLER)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], int] | None:
    """Return the shape and size in bytes that an array's header claims; None if NumPy reads no array of numbers."""
    if file.read(len(MAGIC)) != MAGIC:
        return None
    file.seek(0)
    version = read_magic(file)
    if version not in HEADERS:
        return None
    shape, _, dtype = HEADERS[version](file)
    return None if dtype.hasobject else (shape, math.prod(shape) * dtype.itemsize)


def _check_same_scale(stored: Mapping[str, NDArray[Any]], first: str, second: str, path: Path) -> None:
    """Refuse bytes, which are divided by 255, in only one of two arrays."""
    if (stored[first].dtype == np.uint8) != (stored[second].dtype == np.uint8):
        problem = f"has {stored[first].dtype} in {first} and {stored[second].dtype} in {second}"
        raise DataError(path, problem, "store both as uint8, which is divided by 255, or neither")


def _classes(stored: Mapping[str, NDArray[Any]], path: Path) -> int | None:
    if "classes" not in stored:
        return None
    classes = stored["classes"]
    if classes.ndim != 0 or classes.dtype.kind not in "iu" or classes < 2:
        raise DataError(path, f"has classes = {classes.tolist()}", "store one whole number of at least 2")
    return int(classes)


def _records(stored: Mapping[str, NDArray[Any]], x: str, y: str, classes: int | None, path: Path) -> Records:
    inputs, labels = _inputs(stored[x], f"{path}: {x}"), class_labels(stored[y], classes, f"{path}: {y}")
    if len(inputs) != len(labels) or not len(inputs):
        problem = f"has {len(inputs)} records in {x} and {len(labels)} labels in {y}"
        raise DataError(path, problem, "store one label for each record, and at least one record")
    return Records(inputs, labels)


def _public(stored: Mapping[str, NDArray[Any]], classes: int | None, private: Records, path: Path) -> Records | None:
    """Return the public records that the file declares, or None.

    Public records are trained on without noise, so they are checked more strictly than private ones: a record that is
    private too would lose its protection, and a non-finite number would spoil the weights.
    """
    present = [name for name in PUBLIC if name in stored]
    if not present:
        return None
    if len(present) == 1:
        missing = next(name for name in PUBLIC if name not in stored)
        raise DataError(path, f"has {present[0]} without {missing}", "store both to declare public records, or neither")
    x_private = SPLIT[0] if SPLIT[0] in stored else WHOLE[0]
    _check_same_scale(stored, x_private, PUBLIC[0], path)
    public = _records(stored, *PUBLIC, classes, path)
    shape, expected = tuple(public.inputs.shape[1:]), tuple(private.inputs.shape[1:])
    if shape != expected:
        problem = f"has public inputs of shape {shape} and private inputs of shape {expected}"
        raise DataError(path, problem, f"store x_public and {x_private} in the same shape")
    bad = int((~public.inputs.flatten(1).isfinite().all(1)).sum())
    if bad:
        problem = f"has NaN or infinite numbers in {bad} of {len(public)} public records"
        raise DataError(f"{path}: x_public", problem, "remove these records from x_public and y_public")
    shared = overlap(private, public)
    if shared:
        problem = f"has {shared} of {len(public)} public records among the private ones in {x_private}"
        raise DataError(f"{path}: x_public", problem, f"remove them from x_public and y_public, or from {x_private}")
    return public


def _grouped(records: Records, stored: Mapping[str, NDArray[Any]], path: Path) -> Records:
    """Return the records with the groups of the file, if it has any."""
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
