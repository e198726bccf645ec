"""Takes records out of whatever the user holds: tensors, Records, or any torch Dataset."""

from __future__ import annotations

import copy
from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from gnomon.data.fingerprint import fingerprints
from gnomon.data.sources import Records
from gnomon.data.sparse import CsrRecords


class Loader:
    """Batches by position.

    >>> Loader((torch.eye(3), torch.tensor([0, 1, 2]))).take(torch.tensor([2, 0]))[1]
    tensor([2, 0])
    """

    def __init__(self, data: Any, name: str = "train", device: torch.device | None = None) -> None:
        self._device = device
        self._counts: Tensor | None = None
        if isinstance(data, Records):
            data = (data.inputs, data.targets)
        if isinstance(data, tuple | list) and len(data) != 2 and any(isinstance(one, Tensor) for one in data):
            raise TypeError(f"{name} holds {len(data)} tensors: give two, inputs and targets")
        self._tensors = isinstance(data, tuple | list) and len(data) == 2 and _all_tensors(data)
        self._data: Any = tuple(data) if self._tensors else data
        if self._tensors:
            sizes = {len(t) for t in pytree.tree_leaves(self._data)}
            if len(sizes) != 1:
                raise ValueError(f"{name} holds inputs and targets of {sorted(sizes)} records: they must agree")
            self._size = sizes.pop()
        elif isinstance(data, CsrRecords) or (isinstance(data, Sized) and hasattr(data, "__getitem__")):
            self._size = len(data)
        else:
            raise TypeError(
                f"{name} = {type(data).__name__} cannot be read: give (inputs, targets) tensors, Records, CsrRecords, "
                "or a torch Dataset with a length whose items are (input, target)"
            )
        if self._size == 0:
            raise ValueError(f"{name} is empty: give at least one record")

    def __len__(self) -> int:
        return self._size

    def take(self, positions: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of some records; none give tensors of length zero."""
        if self._counts is not None:
            positions = positions[self._counts[positions]]
        if self._tensors:
            inputs, targets = pytree.tree_map(lambda t: t[positions.to(t.device)], self._data)
        elif isinstance(self._data, CsrRecords):
            inputs, targets = self._data.take(positions)
        else:
            chosen = positions.tolist() or [0]
            inputs, targets = default_collate([self._data[i] for i in chosen])
            if not len(positions):
                inputs, targets = pytree.tree_map(lambda t: t[:0], (inputs, targets))
        if self._device is not None:
            inputs, targets = pytree.tree_map_only(Tensor, lambda t: t.to(self._device), (inputs, targets))
        return inputs, targets

    def rows(self, positions: Tensor | None = None) -> Records:
        """The inputs of some records, or all, as plain rows of numbers without targets.

        >>> Loader((torch.eye(4).reshape(4, 2, 2), torch.zeros(4))).rows().inputs.shape
        torch.Size([4, 4])
        """
        inputs, _ = self.take(torch.arange(len(self)) if positions is None else positions)
        leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        rows = [leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in leaves]  # also if there are none
        flat = rows[0] if len(rows) == 1 else torch.cat([row.float() for row in rows], 1)
        return Records(flat, torch.zeros(len(flat)))

    def without(self, others: Loader) -> Loader:
        """The same positions, but `take` leaves out records whose inputs occur among others.

        Each record is looked at by itself, so one more or less changes nothing for the rest.

        >>> loader = Loader((torch.eye(3), torch.tensor([0, 1, 2])))
        >>> few = loader.without(Loader((torch.eye(3)[:1], torch.tensor([5]))))
        >>> len(few), few.left_out, few.take(torch.tensor([2, 0]))[1]
        (3, 1, tensor([2]))
        """
        known = set(fingerprints(others.rows()))
        found = copy.copy(self)
        found._counts = torch.tensor([mark not in known for mark in fingerprints(self.rows())])
        return found

    @property
    def left_out(self) -> int:
        """How many records `take` leaves out. Private, if the records are."""
        return 0 if self._counts is None else int((~self._counts).sum())


def _all_tensors(tree: Any) -> bool:
    return all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(tree))
