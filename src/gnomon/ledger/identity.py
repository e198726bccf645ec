"""Which data set this is: by what its records contain, or by a name that its holder declares."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import Any

import torch

from gnomon.data import Loader
from gnomon.validate import SettingError

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


def declared(name: str) -> Identity:
    """The identity of a data set that its holder names; the name alone counts, not the content.

    >>> declared("patients").mark == declared("patients").mark
    True
    """
    if not name.strip():
        raise SettingError("dataset", name, "a name")
    return Identity("name:" + name.strip(), frozenset())


def by_content(data: Any, key: bytes) -> Identity:
    """The identity of records by their inputs, under a ledger's key. Labels, order and precision do not count.

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
    return Identity(whole.hexdigest(), frozenset(heapq.nsmallest(SKETCH, marks)))
