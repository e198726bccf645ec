"""The loader: read batches of records from tensors, arrays, Records, sparse rows or any torch Dataset."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, default_collate

from gnomon.data.fingerprint import CHUNK, FINGERPRINT_BYTES, FingerprintCache, content_digest, fingerprints
from gnomon.data.records import Records
from gnomon.data.sparse import CsrRecords
from gnomon.errors import DataError

CLASS_NUMBERS = "give classes as whole numbers from 0, for example numpy.unique(targets, return_inverse=True)[1]"


class RecordTypeError(DataError, TypeError):
    """Records are given in a type that the Loader cannot read.

    >>> raise RecordTypeError("train", "is a str, not records", "read the file first")
    Traceback (most recent call last):
    gnomon.data.loader.RecordTypeError: train is a str, not records: read the file first
    """


class Loader:
    """Read batches of records by position.

    Args:
        data: a pair (inputs, targets) of tensors, arrays or trees of them; Records; CsrRecords; or a torch Dataset
            with a length whose items are (input, target).
        name: the name of the data in error messages.
        device: the device of the batches that `take` returns; None to leave them where the data are.
        cache: stores the fingerprints of records in memory; share one between Loaders of the same data.

    Raises:
        RecordTypeError: if the type of the data cannot be read.
        DataError: if there is no record, or if the numbers of inputs and targets differ.

    >>> Loader((torch.eye(3), torch.tensor([0, 1, 2]))).take(torch.tensor([2, 0]))[1]
    tensor([2, 0])
    """

    def __init__(
        self,
        data: Any,
        name: str = "train",
        device: torch.device | None = None,
        *,
        cache: FingerprintCache | None = None,
    ) -> None:
        self._name, self._device, self._cache = name, device, cache
        self._included: Tensor | None = None  # (N,), False for records that `take` leaves out; None to include all
        self._raw: Loader | None = None
        """The records before a feature map, by which they are recognised; None if they are themselves raw."""
        if isinstance(data, Records):
            self._raw = None if data.raw is None else Loader(data.raw, name, cache=cache)
            data = (data.inputs, data.targets)
        _refuse_lookalikes(data, name)
        self._tensors = _is_pair(data)
        if self._tensors:
            self._data: Any = tuple(pytree.tree_map_only(np.ndarray, _tensor, list(data)))
            sizes = {len(t) for t in pytree.tree_leaves(self._data)}
            if len(sizes) != 1:
                counts = " and ".join(map(str, sorted(sizes)))
                raise DataError(
                    name, f"has inputs and targets of different lengths ({counts})", "give one target for each input"
                )
            self._size = sizes.pop()
        elif isinstance(data, tuple | list) and any(isinstance(part, Tensor | np.ndarray) for part in data):
            types = ", ".join(type(part).__name__ for part in data[:4])
            raise RecordTypeError(
                name,
                f"is a {type(data).__name__} of {len(data)} ({types}{', ...' if len(data) > 4 else ''})",
                "give two, inputs and targets, each a tensor or an array; rows of a sparse matrix go into "
                "CsrRecords(matrix, targets)",
            )
        elif isinstance(data, CsrRecords) or (isinstance(data, Sized) and hasattr(data, "__getitem__")):
            self._data, self._size = data, len(data)
        else:
            raise RecordTypeError(
                name,
                f"is a {type(data).__name__}, which cannot be read",
                "give (inputs, targets) tensors, Records, CsrRecords, or a torch Dataset with a length whose items are "
                "(input, target)",
            )
        if self._size == 0:
            raise DataError(name, "is empty", "give at least one record")

    def __len__(self) -> int:
        return self._size

    @property
    def in_memory(self) -> bool:
        """Whether all records are in memory; the items of a Dataset are computed one by one."""
        return self._tensors or isinstance(self._data, CsrRecords)

    @property
    def sparse(self) -> bool:
        """Whether the records are rows of a sparse matrix."""
        return self._raw.sparse if self._raw is not None else isinstance(self._data, CsrRecords)

    def take(self, positions: Tensor) -> tuple[Any, Any]:
        """Return the inputs and targets of the records at these positions; tensors of length zero for none."""
        batch = self._read(self._keep(positions))
        if self._device is None:
            return batch
        inputs, targets = pytree.tree_map_only(Tensor, lambda t: t.to(self._device), batch)
        return inputs, targets

    def targets(self, positions: Tensor) -> Any:
        """Return the targets of the records at these positions, on the device of the data."""
        positions = self._keep(positions)
        if isinstance(self._data, CsrRecords):
            return self._data.targets(positions)
        return _at(self._data[1], positions) if self._tensors else self._read(positions)[1]

    def fingerprints(self, positions: Tensor | None = None, sparse: bool = False) -> Iterator[bytes]:
        """Yield a hash of the inputs of each record at these positions (default: all records).

        Features are recognised by the records that they were computed from (`Records.raw`).

        Records are read in chunks of a few thousand. Only fingerprints of all records are cached, and only while the
        bytes of the records do not change.

        Args:
            positions: the positions of the records, or None for all.
            sparse: hash dense inputs as rows of a sparse matrix, for comparison with such rows.

        >>> first, second = Loader((torch.eye(4).reshape(4, 2, 2), torch.zeros(4))).fingerprints(torch.tensor([2, 2]))
        >>> first == second
        True
        """
        if positions is not None:
            yield from self._hashes(self._keep(positions), sparse)
            return
        everything = torch.arange(len(self))
        digest = None if self._cache is None else self._input_digest()
        if self._cache is None or digest is None:
            yield from self._hashes(self._keep(everything), sparse)
            return
        hashes = self._cache.lookup(digest, lambda: self._hashes(everything, sparse), sparse=sparse or self.sparse)
        if self._included is None:
            yield from hashes
        else:
            yield from (hashes[position] for position in self._keep(everything).tolist())

    def fingerprint(self, position: int, sparse: bool = False) -> bytes:
        """Return the fingerprint of one record, even if records differ in shape or are text.

        >>> Loader([("a b", 0), ("c", 1), ("a b", 1)]).fingerprint(0) == Loader([("a b", 0)]).fingerprint(0)
        True
        """
        if self._raw is not None:
            return self._raw.fingerprint(position, sparse)
        inputs = self._read(torch.tensor([position]))[0]
        if sparse:
            return CsrRecords.from_inputs(inputs).fingerprints(torch.tensor([0]))[0]
        leaves = pytree.tree_leaves(inputs)
        if any(isinstance(leaf, Tensor) for leaf in leaves):
            return fingerprints(_rows(inputs))[0]
        return hashlib.blake2b(repr(leaves).encode(), digest_size=FINGERPRINT_BYTES).digest()

    def digest(self) -> bytes | None:
        """Return a digest of the inputs of all included records as they are now; None if items must be computed.

        Equal digests mean equal fingerprints in the same order, at a fraction of the cost.

        >>> x = torch.eye(3)
        >>> before = Loader((x, x)).digest()
        >>> x[1, 1] = 2.0
        >>> Loader((x, x)).digest() == before, Loader([(x, x)]).digest()
        (False, None)
        """
        digest = self._input_digest()
        if digest is None or self._included is None:
            return digest
        return hashlib.sha256(digest + self._included.numpy().tobytes()).digest()

    def order(self) -> object:
        """Return a value that identifies the records in their present order.

        This is a hash for data in memory, and the Dataset itself if its items must be computed.

        >>> x = torch.eye(3)
        >>> first, copy, flipped = (Loader((inputs, x)).order() for inputs in (x, x.clone(), x.flip(0)))
        >>> first == copy, first == flipped
        (True, False)
        """
        if not (self.in_memory or isinstance(self._data, list | tuple)):
            return self._data
        return hashlib.blake2b(b"".join(self.fingerprints()), digest_size=16).digest()

    def without(self, others: Loader) -> Loader:
        """Return a Loader with the same positions whose `take` leaves out records that also occur in `others`.

        Each record is compared by itself, so adding or removing one record does not affect any other.

        >>> loader = Loader((torch.eye(3), torch.tensor([0, 1, 2])))
        >>> rest = loader.without(Loader((torch.eye(3)[:1], torch.tensor([5]))))
        >>> len(rest), rest.left_out, rest.take(torch.tensor([2, 0]))[1]
        (3, 1, tensor([2]))
        """
        sparse = self.sparse or others.sparse
        known = set(others.fingerprints(sparse=sparse))
        rest = copy.copy(self)
        rest._included = torch.tensor([fingerprint not in known for fingerprint in self.fingerprints(sparse=sparse)])
        return rest

    @property
    def left_out(self) -> int:
        """The number of records that `take` leaves out. As private as the records themselves."""
        return 0 if self._included is None else int((~self._included).sum())

    def _keep(self, positions: Tensor) -> Tensor:
        return positions if self._included is None else positions[self._included[positions]]

    def _input_digest(self) -> bytes | None:
        """Return a digest of the inputs of all records in memory, included or not."""
        if self._raw is not None:
            return self._raw._input_digest()
        if isinstance(self._data, CsrRecords):
            return self._data.digest()
        if not self._tensors:
            return None
        leaves, structure = pytree.tree_flatten(self._data[0])
        return content_digest(leaves, str(structure))

    def _hashes(self, positions: Tensor, sparse: bool) -> Iterator[bytes]:
        if self._raw is not None:
            yield from self._raw._hashes(positions, sparse)
            return
        for chunk in positions.split(CHUNK):
            if isinstance(self._data, CsrRecords):
                yield from self._data.fingerprints(chunk)
            elif sparse:
                rows = CsrRecords.from_inputs(self._read(chunk)[0])
                yield from rows.fingerprints(torch.arange(len(chunk)))
            else:
                yield from fingerprints(_rows(self._read(chunk)[0]))

    def _read(self, positions: Tensor) -> tuple[Any, Any]:
        if self._tensors:
            inputs, targets = _at(self._data, positions)
        elif isinstance(self._data, CsrRecords):
            inputs, targets = self._data.take(positions)
        else:
            items = [self._data[i] for i in positions.tolist() or [0]]
            if not (isinstance(items[0], tuple | list) and len(items[0]) == 2):
                raise RecordTypeError(
                    f"the items of {self._name}",
                    f"are {_described(items[0])}",
                    "each must be a pair, (input, target); several inputs go into a tuple or a dict in place of the "
                    "input",
                )
            inputs, targets = default_collate(items)
            if any(isinstance(leaf, str) for leaf in pytree.tree_leaves(targets)):
                raise RecordTypeError(self._name, "has targets of type str", CLASS_NUMBERS)
            if not len(positions):
                inputs, targets = pytree.tree_map(lambda t: t[:0], (inputs, targets))
        return inputs, targets


def _refuse_lookalikes(data: Any, name: str) -> None:
    """Refuse objects that are often passed in place of records, each with its remedy. Contents are never quoted."""
    if isinstance(data, DataLoader):
        raise RecordTypeError(
            name,
            "is a DataLoader",
            "give loader.dataset; its batch size and shuffling are not used, because the Trainer draws batches as it "
            "accounts for them",
        )
    if isinstance(data, str | bytes | os.PathLike):
        raise RecordTypeError(
            name,
            f"is a {type(data).__name__}, not records",
            "read the file first, for example gnomon.data.load('npz:FILE').train",
        )
    if isinstance(data, Mapping):
        raise RecordTypeError(name, f"is a {type(data).__name__}", "give a pair, (data['inputs'], data['targets'])")
    if isinstance(data, tuple | list) and len(data) == 2 and _is_table(data[0]):
        for part, values in zip(("inputs", "targets"), data, strict=True):
            _refuse_column(values, name, part)


def _is_table(values: Any) -> bool:
    return isinstance(values, Tensor | np.ndarray) or hasattr(values, "to_numpy")


def _refuse_column(values: Any, name: str, part: str) -> None:
    """Refuse a list, a column of a data frame, or an array of anything but numbers."""
    if hasattr(values, "to_numpy"):
        raise RecordTypeError(name, f"has {part} in a {type(values).__name__}", f"give {part}.to_numpy()")
    if isinstance(values, np.ndarray) and values.dtype.kind not in "biufc":
        remedy = CLASS_NUMBERS if part == "targets" else "give numbers"
        raise RecordTypeError(name, f"has {part} of type {values.dtype}", remedy)
    if isinstance(values, list | tuple) and values and not any(isinstance(v, Tensor | np.ndarray) for v in values):
        kind = type(values[0]).__name__
        remedy = CLASS_NUMBERS if kind == "str" else f"give torch.tensor({part})"
        raise RecordTypeError(name, f"has {part} in a {type(values).__name__} of {kind}", remedy)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # copies arrays that torch cannot share


def _at(tree: Any, positions: Tensor) -> Any:
    return pytree.tree_map(lambda t: t[positions.to(t.device)], tree)


def _rows(inputs: Any) -> Records:
    """Flatten inputs to one row of numbers for each record, without targets."""
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    rows = [leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in leaves]  # also for zero records
    flat = rows[0] if len(rows) == 1 else torch.cat([row.float() for row in rows], 1)
    return Records(flat, torch.zeros(len(flat)))


def _is_pair(data: Any) -> bool:
    """Return whether data are inputs and targets, each a tensor, an array, or a tree of them."""
    if not (isinstance(data, tuple | list) and len(data) == 2):
        return False
    return all(isinstance(leaf, Tensor | np.ndarray) for leaf in pytree.tree_leaves(data))


def _described(item: Any) -> str:
    if isinstance(item, dict):
        return f"dicts with {', '.join(map(str, list(item)[:4]))}"
    return f"{type(item).__name__}s of {len(item)}" if isinstance(item, tuple | list) else f"{type(item).__name__}s"
