"""Content hashes of records, to find records that occur in two sets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from gnomon.data.records import Records

CHUNK = 4096  # records converted at a time, so that memory stays small
LARGEST = 2**24  # float32 holds all whole numbers below


def fingerprints(records: Records) -> list[bytes]:
    """One 16-byte hash for each record, of its inputs alone.

    Numbers are compared as float32, so a copy in another precision or type is still found; whole numbers that
    float32 cannot hold as int64. The shape does not count.

    >>> import torch
    >>> records = Records(torch.tensor([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0]]), torch.tensor([0, 1, 1]))
    >>> a, b, c = fingerprints(records)
    >>> a == b, a == c
    (False, True)
    """
    hashes: list[bytes] = []
    for start in range(0, len(records), CHUNK):
        rows = _plain(records.inputs[start : start + CHUNK])
        hashes += [hashlib.blake2b(row.data, digest_size=16).digest() for row in rows]
    return hashes


def overlap(a: Records, b: Records) -> int:
    """How many records of `b` have inputs that also occur in `a`.

    >>> import torch
    >>> a = Records(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]))
    >>> b = Records(torch.tensor([[2.0], [2.0], [5.0]]), torch.tensor([1, 0, 0]))
    >>> overlap(a, b)
    2
    """
    known = set(fingerprints(a))
    return sum(mark in known for mark in fingerprints(b))


def _plain(inputs: Tensor) -> Iterator[NDArray[Any]]:
    """The numbers of each record, in the type in which they are compared."""
    flat = inputs.detach().cpu().reshape(len(inputs), -1)
    if flat.is_floating_point():
        yield from (flat.float() + 0.0).numpy()  # turns -0.0 into 0.0
        return
    whole = flat.long().contiguous()
    held = ((whole > -LARGEST) & (whole < LARGEST)).all(1).tolist()
    for fits, number, row in zip(held, whole.numpy(), whole.float().numpy(), strict=True):
        yield row if fits else number
