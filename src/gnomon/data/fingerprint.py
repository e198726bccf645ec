"""Content hashes of records, to find records that occur in two sets."""

from __future__ import annotations

import hashlib

from torch import Tensor

from gnomon.data.sources.records import Records

CHUNK = 4096  # records converted at a time, so that memory stays small


def fingerprints(records: Records) -> list[bytes]:
    """One 16-byte hash for each record, of its inputs alone.

    Real numbers are compared as float32 and whole numbers as int64, so a copy in another precision
    is still found. The shape does not count.

    >>> import torch
    >>> records = Records(torch.tensor([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0]]), torch.tensor([0, 1, 1]))
    >>> a, b, c = fingerprints(records)
    >>> a == b, a == c
    (False, True)
    """
    hashes: list[bytes] = []
    for start in range(0, len(records), CHUNK):
        rows = _plain(records.inputs[start : start + CHUNK]).numpy()
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


def _plain(inputs: Tensor) -> Tensor:
    flat = inputs.detach().cpu().reshape(len(inputs), -1)
    if flat.is_floating_point():
        return flat.float() + 0.0  # turns -0.0 into 0.0
    return flat.long().contiguous()
