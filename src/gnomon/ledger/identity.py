"""Which data set this is: by what its records contain, or by a name that its holder declares."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import Any

import torch

from gnomon.data import Loader
from gnomon.errors import SettingError

NAME = "name:"
"""How the ids of data sets begin that their holder named; all others are hashes."""

SKETCH = 1024
"""How many marks stand for a data set. Another one is recognised if it shares about a thousandth of its records."""


@dataclass(frozen=True)
class Identity:
    """A mark of the whole data set and a sketch: the smallest keyed hashes of its records.

    A copy of the data with a record more or less, in another order, or a part of it has another mark but shares
    part of the sketch, and so is recognised. The key stays in the ledger; without it the hashes say nothing.
    """

    mark: str
    sketch: frozenset[str]
    records: int | None = None
    """How many records there are, where they were looked at."""


def declared(name: str) -> Identity:
    """The identity of a data set that its holder names; the name alone counts, not the content.

    >>> declared("patients") == declared("name:patients")  # as the ledger lists it
    True
    """
    plain = name.strip().removeprefix(NAME)
    if not plain:
        raise SettingError("dataset", name, "a name")
    return Identity(NAME + plain, frozenset())


def is_name(dataset: str) -> bool:
    """Whether the id of a data set is a declared name, so that nothing about it depends on a record.

    >>> is_name(declared("patients").mark), is_name("3f2a90c1d4e5b607")
    (True, False)
    """
    return dataset.startswith(NAME)


def by_content(data: Any, key: bytes) -> Identity:
    """The identity of records by their inputs as float32, under a ledger's key. Labels and order do not count.

    The same values stored with more bits are known again. Other values are other records: scaled, jittered or rounded
    ones, also by way of float16, and those of permuted columns.

    >>> x = torch.arange(6.0).reshape(3, 2)
    >>> a = by_content((x, torch.zeros(3)), b"key")
    >>> b = by_content((x.flip(0), torch.ones(3)), b"key")
    >>> a == b, bool(a.sketch & by_content((x[:2], torch.zeros(2)), b"key").sketch)
    (True, True)
    """
    loader = data if isinstance(data, Loader) else Loader(data)
    first = torch.tensor([0])
    if list(loader.marks(first)) != list(loader.marks(first)):
        raise SettingError(
            "dataset", None, "a name for these data: their items change each time they are read, by augmentation maybe"
        )
    marks = {hashlib.blake2b(one, key=key, digest_size=8).hexdigest() for one in loader.marks()}
    whole = hashlib.blake2b("".join(sorted(marks)).encode(), key=key, digest_size=8)
    return Identity(whole.hexdigest(), frozenset(heapq.nsmallest(SKETCH, marks)), len(loader))
