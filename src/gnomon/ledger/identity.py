"""The identity of a data set: a fingerprint of its records' contents, or a name that its holder declares."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import Any

import torch

from gnomon.data import Loader
from gnomon.errors import SettingError

NAME_PREFIX = "name:"
"""Prefix of the ids of data sets that are identified by a declared name; all other ids are hashes of contents."""

SKETCH_SIZE = 1024
"""Number of record hashes kept for a data set. A set that shares about a thousandth of its records is recognised."""


@dataclass(frozen=True)
class Identity:
    """The id of a data set and a sketch of its records: the smallest keyed hashes.

    A copy with one record more or less, in another order, or a subset has another id but shares part of the sketch,
    and so is recognised. The key stays in the ledger; without it the hashes reveal nothing about a record.
    """

    id: str
    sketch: frozenset[str]
    records: int | None = None
    """The number of records, or None for a declared name."""


def identity_of_name(name: str) -> Identity:
    """Return the identity of a data set by its declared name, whatever its records contain.

    Raises:
        SettingError: if the name is empty.

    >>> identity_of_name("patients") == identity_of_name("name:patients")  # the form in which the ledger lists it
    True
    """
    plain = name.strip().removeprefix(NAME_PREFIX)
    if not plain:
        raise SettingError("dataset", name, "a name with at least one character")
    return Identity(NAME_PREFIX + plain, frozenset())


def is_declared_name(dataset: str) -> bool:
    """Return whether the id of a data set is a declared name, and therefore independent of every record.

    >>> is_declared_name(identity_of_name("patients").id), is_declared_name("3f2a90c1d4e5b607")
    (True, False)
    """
    return dataset.startswith(NAME_PREFIX)


def identity_of_records(data: Any, key: bytes) -> Identity:
    """Return the identity of records by the contents of their inputs, under a ledger's key.

    Inputs are compared as float32; labels and order do not count. The same values in a wider type are recognised.
    Changed values are different records: scaled, jittered or rounded ones (also by a detour over float16), and those
    with permuted columns.

    Args:
        data: the records, or a Loader of them.
        key: the ledger's secret key.

    Raises:
        SettingError: if reading the same item twice gives different values, as under random augmentation.

    >>> x = torch.arange(6.0).reshape(3, 2)
    >>> a = identity_of_records((x, torch.zeros(3)), b"key")
    >>> b = identity_of_records((x.flip(0), torch.ones(3)), b"key")
    >>> a == b, bool(a.sketch & identity_of_records((x[:2], torch.zeros(2)), b"key").sketch)
    (True, True)
    """
    loader = data if isinstance(data, Loader) else Loader(data)
    first = torch.tensor([0])
    if list(loader.fingerprints(first)) != list(loader.fingerprints(first)):
        raise SettingError.with_message(
            "dataset is not set, and the items of these data change each time they are read, perhaps by random "
            "augmentation, so that their contents do not identify them: declare a name with dataset=NAME (--data-id)",
            name="dataset",
        )
    hashes = {hashlib.blake2b(content, key=key, digest_size=8).hexdigest() for content in loader.fingerprints()}
    whole = hashlib.blake2b("".join(sorted(hashes)).encode(), key=key, digest_size=8)
    return Identity(whole.hexdigest(), frozenset(heapq.nsmallest(SKETCH_SIZE, hashes)), len(loader))
