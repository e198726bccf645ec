"""Takes records out of whatever the user holds: tensors, arrays, Records, or any torch Dataset."""

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

from gnomon.data.fingerprint import CHUNK, fingerprints
from gnomon.data.sources import Records
from gnomon.data.sparse import CsrRecords

NUMBERED = "give classes as whole numbers from 0, for example numpy.unique(targets, return_inverse=True)[1]"


class Loader:
    """Batches by position.

    >>> Loader((torch.eye(3), torch.tensor([0, 1, 2]))).take(torch.tensor([2, 0]))[1]
    tensor([2, 0])
    """

    def __init__(self, data: Any, name: str = "train", device: torch.device | None = None) -> None:
        self._name, self._device = name, device
        self._counts: Tensor | None = None
        if isinstance(data, Records):
            data = (data.inputs, data.targets)
        _refuse_lookalikes(data, name)
        self._tensors = _is_pair(data)
        if self._tensors:
            self._data: Any = tuple(pytree.tree_map_only(np.ndarray, _tensor, list(data)))
            sizes = {len(t) for t in pytree.tree_leaves(self._data)}
            if len(sizes) != 1:
                raise ValueError(f"{name} holds inputs and targets of {sorted(sizes)} records: they must agree")
            self._size = sizes.pop()
        elif isinstance(data, tuple | list) and any(isinstance(one, Tensor | np.ndarray) for one in data):
            held = ", ".join(type(one).__name__ for one in data[:4])
            raise TypeError(
                f"{name} holds {len(data)} things ({held}{', ...' if len(data) > 4 else ''}): give two, inputs and "
                "targets, each a tensor or an array; rows of a sparse matrix go into CsrRecords(matrix, targets)"
            )
        elif isinstance(data, CsrRecords) or (isinstance(data, Sized) and hasattr(data, "__getitem__")):
            self._data, self._size = data, len(data)
        else:
            raise TypeError(
                f"{name} = {type(data).__name__} cannot be read: give (inputs, targets) tensors, Records, CsrRecords, "
                "or a torch Dataset with a length whose items are (input, target)"
            )
        if self._size == 0:
            raise ValueError(f"{name} is empty: give at least one record")

    def __len__(self) -> int:
        return self._size

    @property
    def in_memory(self) -> bool:
        """Whether all targets are there already; items of a Dataset have to be made one by one."""
        return self._tensors or isinstance(self._data, CsrRecords)

    def take(self, positions: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of some records; none give tensors of length zero."""
        both = self._read(self._kept(positions))
        if self._device is None:
            return both
        inputs, targets = pytree.tree_map_only(Tensor, lambda t: t.to(self._device), both)
        return inputs, targets

    def targets(self, positions: Tensor) -> Any:
        """The targets of some records, where the data are."""
        positions = self._kept(positions)
        if isinstance(self._data, CsrRecords):
            return self._data.targets(positions)
        return _at(self._data[1], positions) if self._tensors else self._read(positions)[1]

    @property
    def sparse(self) -> bool:
        """Whether these are rows of a sparse matrix."""
        return isinstance(self._data, CsrRecords)

    def marks(self, positions: Tensor | None = None, sparse: bool = False) -> Iterator[bytes]:
        """A hash of the inputs of each of some records, or of all, read a few thousand at a time.

        With `sparse` they are taken as rows of a sparse matrix, to be compared with such.

        >>> one, two = Loader((torch.eye(4).reshape(4, 2, 2), torch.zeros(4))).marks(torch.tensor([2, 2]))
        >>> one == two
        True
        """
        for some in (torch.arange(len(self)) if positions is None else positions).split(CHUNK):
            kept = self._kept(some)
            if isinstance(self._data, CsrRecords):
                yield from self._data.marks(kept)
            elif sparse:
                yield from CsrRecords.of(self._read(kept)[0]).marks(torch.arange(len(kept)))
            else:
                yield from fingerprints(_rows(self._read(kept)[0]))

    def mark(self, position: int, sparse: bool = False) -> bytes:
        """The hash of one record, as `marks` gives it, whatever the shape of the others; of text that of its letters.

        >>> Loader([("a b", 0), ("c", 1), ("a b", 1)]).mark(0) == Loader([("a b", 0)]).mark(0)
        True
        """
        inputs = self._read(torch.tensor([position]))[0]
        if sparse:
            return CsrRecords.of(inputs).marks(torch.tensor([0]))[0]
        leaves = pytree.tree_leaves(inputs)
        if any(isinstance(leaf, Tensor) for leaf in leaves):
            return fingerprints(_rows(inputs))[0]
        return hashlib.blake2b(repr(leaves).encode(), digest_size=16).digest()

    def order(self) -> object:
        """What tells these records, in this order, from others: a hash, or a Dataset itself if its items must be made.

        >>> x = torch.eye(3)
        >>> first, copied, turned = (Loader((one, x)).order() for one in (x, x.clone(), x.flip(0)))
        >>> first == copied, first == turned
        (True, False)
        """
        if not (self.in_memory or isinstance(self._data, list | tuple)):
            return self._data
        return hashlib.blake2b(b"".join(self.marks()), digest_size=16).digest()

    def _kept(self, positions: Tensor) -> Tensor:
        return positions if self._counts is None else positions[self._counts[positions]]

    def _read(self, positions: Tensor) -> tuple[Any, Any]:
        if self._tensors:
            inputs, targets = _at(self._data, positions)
        elif isinstance(self._data, CsrRecords):
            inputs, targets = self._data.take(positions)
        else:
            items = [self._data[i] for i in positions.tolist() or [0]]
            if not (isinstance(items[0], tuple | list) and len(items[0]) == 2):
                raise TypeError(
                    f"the items of {self._name} are {_described(items[0])}: each must be a pair, (input, target); "
                    "several inputs go into a tuple or a dict in the place of the input"
                )
            inputs, targets = default_collate(items)
            if any(isinstance(leaf, str) for leaf in pytree.tree_leaves(targets)):
                raise TypeError(f"{self._name} has targets of type str: {NUMBERED}")
            if not len(positions):
                inputs, targets = pytree.tree_map(lambda t: t[:0], (inputs, targets))
        return inputs, targets

    def without(self, others: Loader) -> Loader:
        """The same positions, but `take` leaves out records whose inputs occur among others.

        Each record is looked at by itself, so one more or less changes nothing for the rest.

        >>> loader = Loader((torch.eye(3), torch.tensor([0, 1, 2])))
        >>> few = loader.without(Loader((torch.eye(3)[:1], torch.tensor([5]))))
        >>> len(few), few.left_out, few.take(torch.tensor([2, 0]))[1]
        (3, 1, tensor([2]))
        """
        sparse = self.sparse or others.sparse
        known = set(others.marks(sparse=sparse))
        found = copy.copy(self)
        found._counts = torch.tensor([mark not in known for mark in self.marks(sparse=sparse)])
        return found

    @property
    def left_out(self) -> int:
        """How many records `take` leaves out. Private, if the records are."""
        return 0 if self._counts is None else int((~self._counts).sum())


def _refuse_lookalikes(data: Any, name: str) -> None:
    """What people hold in the place of records, each named with its remedy. Contents are never quoted."""
    if isinstance(data, DataLoader):
        raise TypeError(
            f"{name} is a DataLoader: give loader.dataset; its batch size and shuffling are not used, because the "
            "Trainer draws batches as it accounts for them"
        )
    if isinstance(data, str | bytes | os.PathLike):
        raise TypeError(
            f"{name} is a {type(data).__name__}, not records: read the file first, for example "
            "gnomon.data.load('npz:FILE').train"
        )
    if isinstance(data, Mapping):
        raise TypeError(f"{name} is a {type(data).__name__}: give a pair, (data['inputs'], data['targets'])")
    if isinstance(data, tuple | list) and len(data) == 2 and _is_table(data[0]):
        for part, one in zip(("inputs", "targets"), data, strict=True):
            _refuse_column(one, f"{name} has {part}", part)


def _is_table(one: Any) -> bool:
    return isinstance(one, Tensor | np.ndarray) or hasattr(one, "to_numpy")


def _refuse_column(one: Any, has: str, part: str) -> None:
    """Refuses a list, a column of a data frame, or an array of something else than numbers."""
    if hasattr(one, "to_numpy"):
        raise TypeError(f"{has} in a {type(one).__name__}: give {part}.to_numpy()")
    if isinstance(one, np.ndarray) and one.dtype.kind not in "biufc":
        raise TypeError(f"{has} of type {one.dtype}: {NUMBERED if part == 'targets' else 'give numbers'}")
    if isinstance(one, list | tuple) and one and not any(isinstance(item, Tensor | np.ndarray) for item in one):
        kind = type(one[0]).__name__
        remedy = NUMBERED if kind == "str" else f"give torch.tensor({part})"
        raise TypeError(f"{has} in a {type(one).__name__} of {kind}: {remedy}")


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # copied where torch could not share it


def _at(tree: Any, positions: Tensor) -> Any:
    return pytree.tree_map(lambda t: t[positions.to(t.device)], tree)


def _rows(inputs: Any) -> Records:
    """Inputs as plain rows of numbers, without targets."""
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    rows = [leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in leaves]  # also if there are none
    flat = rows[0] if len(rows) == 1 else torch.cat([row.float() for row in rows], 1)
    return Records(flat, torch.zeros(len(flat)))


def _is_pair(data: Any) -> bool:
    """Whether these are inputs and targets, each a tensor, an array, or a tree of them."""
    if not (isinstance(data, tuple | list) and len(data) == 2):
        return False
    return all(isinstance(leaf, Tensor | np.ndarray) for leaf in pytree.tree_leaves(data))


def _described(item: Any) -> str:
    if isinstance(item, dict):
        return f"dicts with {', '.join(map(str, list(item)[:4]))}"
    return f"{type(item).__name__}s of {len(item)}" if isinstance(item, tuple | list) else f"{type(item).__name__}s"
