"""Whether validation records are training records, whose scores no noise protects."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from gnomon.data import DataError, FingerprintCache, Loader

IN_MEMORY = 100_000
"""Up to how many validation and training records are compared by content where they are tensors or sparse rows."""
ITEMS = 20_000
"""The same for a Dataset, whose items have to be made one by one."""
SAMPLED = 2_000
"""How many items of a validation Dataset stand for all of them."""
SHARE = 0.1
"""The share of the validation records from which on they count as training records."""


def of_members(validation: Any, train: Any, cache: FingerprintCache | None = None) -> bool:
    """Return whether validation records are training records, wholly or to a considerable part.

    They are if both are the same object or share memory, or if both are Subsets of one Dataset that have a position in
    common. Otherwise the contents of their inputs are compared: tensors, Records, CsrRecords and Datasets with each
    other. Equal contents show it only where they can hardly be chance, because many people have the same values of a
    few features: the training records themselves tell how many of them have a twin, and as large a share of any other
    records would be met among them. Beyond that share, a tenth of the validation records is enough.

    Sets that are larger than `IN_MEMORY` or `ITEMS`, and Datasets whose items differ each time they are read, cannot
    be compared by content. A `cache` stores the fingerprints of the training records.

    >>> x, y = torch.randn(90, 2), torch.zeros(90)
    >>> of_members((x[3:5].clone(), y[3:5]), (x, y)), of_members((x + 1, y), (x, y))
    (True, False)
    >>> both = torch.utils.data.TensorDataset(x, y)
    >>> of_members(Subset(both, [1, 2]), Subset(both, [2, 3])), of_members(Subset(both, [1, 2]), Subset(both, [3]))
    (True, False)
    """
    if validation is train:
        return True
    ours, theirs = Loader(validation, "validation"), Loader(train, "train", cache=cache)
    if _shared(validation, train):
        return True
    (source, mine), (base, others) = _origin(validation), _origin(train)
    if source is base:
        return mine is None or others is None or not mine.isdisjoint(others)
    return _alike(ours, theirs)


def _alike(ours: Loader, theirs: Loader) -> bool:
    """Whether more of our records have the contents of theirs than would by chance."""
    if any(len(one) > (IN_MEMORY if one.in_memory else ITEMS) for one in (ours, theirs)):
        return False
    sparse = ours.sparse or theirs.sparse
    try:
        with _chance_kept():
            times = Counter(_fingerprints(theirs, None, sparse))
            met = [times[mark] for mark in _fingerprints(ours, _some(ours), sparse)]
    except DataError:  # inputs of a kind that cannot be compared with sparse rows cannot be the same either
        return False
    if all(met) and 2 * met.count(1) > len(met):
        return True
    chance = sum(count for count in times.values() if count > 1) / len(theirs)
    beyond = sum(map(bool, met)) - chance * len(met)
    return beyond >= max(SHARE * len(met), 4 * math.sqrt(len(met) * chance * (1 - chance)))


def _some(loader: Loader) -> Tensor:
    """The positions to look at: all, or of many items that have to be made an even selection."""
    if loader.in_memory or len(loader) <= SAMPLED:
        return torch.arange(len(loader))
    return torch.linspace(0, len(loader) - 1, SAMPLED).round().long()


def _fingerprints(loader: Loader, positions: Tensor | None, sparse: bool) -> Iterator[bytes]:
    """The fingerprints of the records at these positions; None for all records."""
    if loader.in_memory:
        yield from loader.fingerprints(positions, sparse=sparse)
    else:
        chosen = range(len(loader)) if positions is None else positions.tolist()
        yield from (loader.fingerprint(position, sparse=sparse) for position in chosen)


def _origin(data: Any) -> tuple[Any, set[int] | None]:
    """The Dataset behind Subsets, of Subsets too, and the positions of their items in it; None for all."""
    positions = None
    while isinstance(data, Subset):
        chosen = [int(index) for index in data.indices]
        positions = chosen if positions is None else [chosen[index] for index in positions]
        data = data.dataset
    return data, None if positions is None else {index % len(data) for index in positions}  # -1 is the last


def _shared(validation: Any, train: Any) -> bool:
    """Whether inputs are partly the same memory; of every other row of a tensor this cannot be told."""
    one, other = (_inputs(data) for data in (validation, train))
    if one is None or other is None or one.device != other.device:
        return False
    (start, end), (begin, stop) = ((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in (one, other))
    return start < stop and begin < end


def _inputs(data: Any) -> Tensor | None:
    """The inputs as one block of memory, if they are one."""
    found = data[0] if isinstance(data, tuple | list) and len(data) else getattr(data, "inputs", None)
    whole = isinstance(found, Tensor) and found.layout is torch.strided and found.is_contiguous() and found.numel() > 0
    return found if whole else None


@contextmanager
def _chance_kept() -> Iterator[None]:
    """Reading items that are drawn at random leaves the generators of Python, NumPy and torch as they were."""
    ours, theirs = random.getstate(), np.random.get_state()  # noqa: NPY002  # the one that a Dataset may draw from
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)  # noqa: NPY002
