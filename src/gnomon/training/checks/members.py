"""Checks whether validation records are training records, whose scores no noise protects."""

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
from gnomon.data.loader import RecordTypeError

IN_MEMORY = 100_000
"""The largest number of records that are compared by content if they are tensors or sparse rows."""
ITEMS = 20_000
"""The same for a Dataset, whose items are read one by one."""
SAMPLED = 2_000
"""The number of items that are compared of a larger validation Dataset."""
SHARE = 0.1
"""The share of known records from which on a validation set counts as training records."""


class MembershipCheck:
    """Whether scores on validation records are scores of training records, now and at any time in a run.

    >>> check, records = MembershipCheck(), (torch.randn(9, 2), torch.zeros(9))
    >>> check.compare(records, records)
    >>> check.current, check.ever
    (True, True)
    """

    def __init__(self, cache: FingerprintCache | None = None) -> None:
        self._cache = cache
        self.train: Any = None
        """The training records, once there are any."""
        self.current = False
        """Whether the validation records that were compared last are training records, wholly or in part."""
        self.ever = False

    def compare(self, validation: Any, train: Any = None) -> None:
        """Compare validation records with training records (default: those of the run, if there are any)."""
        train = self.train if train is None else train
        if train is not None:
            self.current = of_members(validation, train, self._cache)
            self.ever |= self.current


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
    """Return whether more validation records equal training records than would by chance."""
    if any(len(one) > (IN_MEMORY if one.in_memory else ITEMS) for one in (ours, theirs)):
        return False
    sparse = ours.sparse or theirs.sparse
    try:
        with _chance_kept():
            times = Counter(_fingerprints(theirs, None, sparse))
            met = [times[mark] for mark in _fingerprints(ours, _some(ours), sparse)]
    except RecordTypeError:  # a record that cannot be read is named before it costs anything
        raise
    except DataError:  # inputs that cannot be compared with sparse rows are not equal to them
        return False
    if all(met) and 2 * met.count(1) > len(met):
        return True
    chance = sum(count for count in times.values() if count > 1) / len(theirs)
    beyond = sum(map(bool, met)) - chance * len(met)
    return beyond >= max(SHARE * len(met), 4 * math.sqrt(len(met) * chance * (1 - chance)))


def _some(loader: Loader) -> Tensor:
    """Return the positions to compare: all, or an even selection of a large Dataset."""
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
    """Return the Dataset behind nested Subsets, and the positions of their items in it; None for all of them."""
    positions = None
    while isinstance(data, Subset):
        chosen = [int(index) for index in data.indices]
        positions = chosen if positions is None else [chosen[index] for index in positions]
        data = data.dataset
    return data, None if positions is None else {index % len(data) for index in positions}  # -1 is the last item


def _shared(validation: Any, train: Any) -> bool:
    """Return whether two sets of inputs share memory; this is not visible for strided views of a tensor."""
    one, other = (_inputs(data) for data in (validation, train))
    if one is None or other is None or one.device != other.device:
        return False
    (start, end), (begin, stop) = ((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in (one, other))
    return start < stop and begin < end


def _inputs(data: Any) -> Tensor | None:
    """Return the inputs if they are one contiguous block of memory, else None."""
    found = data[0] if isinstance(data, tuple | list) and len(data) else getattr(data, "inputs", None)
    whole = isinstance(found, Tensor) and found.layout is torch.strided and found.is_contiguous() and found.numel() > 0
    return found if whole else None


@contextmanager
def _chance_kept() -> Iterator[None]:
    """Restore the random generators of Python, NumPy and torch after items were read, which may draw from them."""
    ours, theirs = random.getstate(), np.random.get_state()  # noqa: NPY002  # the generator that a Dataset may draw from
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)  # noqa: NPY002
