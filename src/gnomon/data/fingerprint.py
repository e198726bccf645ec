"""Fingerprints: content hashes of records, which find records that occur in two sets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon.data.records import Records

CHUNK = 4096
"""Records that are converted at a time, which bounds the memory used."""

FINGERPRINT_BYTES = 16

FLOAT32_LIMIT = 2**24
"""float32 represents every whole number of smaller magnitude exactly."""


def fingerprints(records: Records) -> list[bytes]:
    """Return a 16-byte hash of the inputs of each record; targets and shape do not count.

    Numbers are compared as float32, so that a copy in another floating-point or integer type has the same
    fingerprint. Rows with whole numbers that float32 cannot represent are compared as int64.

    >>> import torch
    >>> records = Records(torch.tensor([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0]]), torch.tensor([0, 1, 1]))
    >>> a, b, c = fingerprints(records)
    >>> a == b, a == c
    (False, True)
    """
    hashes: list[bytes] = []
    for start in range(0, len(records), CHUNK):
        rows = _comparable_rows(records.inputs[start : start + CHUNK])
        hashes += [hashlib.blake2b(row.data, digest_size=FINGERPRINT_BYTES).digest() for row in rows]
    return hashes


def overlap(a: Records, b: Records) -> int:
    """Return the number of records of `b` whose inputs also occur in `a`.

    >>> import torch
    >>> a = Records(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]))
    >>> b = Records(torch.tensor([[2.0], [2.0], [5.0]]), torch.tensor([1, 0, 0]))
    >>> overlap(a, b)
    2
    """
    known = set(fingerprints(a))
    return sum(fingerprint in known for fingerprint in fingerprints(b))


def content_digest(tensors: Iterable[Tensor], description: str = "") -> bytes | None:
    """Return the SHA-256 of the bytes, shapes and types of tensors; None if one of them is not a plain dense tensor.

    The digest reads all bytes, so it notices every change in place. It is several times as fast as the fingerprints
    of the records, because it hashes large blocks.

    >>> import torch
    >>> x = torch.zeros(3, 2)
    >>> before = content_digest([x])
    >>> x.numpy()[1] = 5.0  # a change that PyTorch's version counter does not see
    >>> content_digest([x]) == before
    False
    """
    digest = hashlib.sha256(description.encode())
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
            return None
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        for start in range(0, len(tensor), CHUNK):
            block = tensor[start : start + CHUNK].detach().cpu().contiguous()
            digest.update(block.view(torch.uint8).numpy().data)
    return digest.digest()


class FingerprintCache:
    """The fingerprints of one set of records in memory, valid as long as their bytes do not change.

    Every lookup passes the present `content_digest` of the records, so that a change in place, by whatever means,
    leads to new fingerprints. The owner decides how long the cache lives.

    >>> cache = FingerprintCache()
    >>> cache.lookup(b"digest", lambda: [b"0" * 16, b"1" * 16])[1]
    b'1111111111111111'
    >>> cache.lookup(b"digest", lambda: [])[1]  # not computed again
    b'1111111111111111'
    """

    def __init__(self) -> None:
        self._entries: dict[bool, tuple[bytes, bytes]] = {}  # by sparse or dense: the digest, all hashes in one string

    def lookup(self, digest: bytes, compute: Callable[[], Iterable[bytes]], *, sparse: bool = False) -> list[bytes]:
        """Return the stored fingerprints for this digest, or compute and store them.

        Args:
            digest: the present `content_digest` of the records.
            compute: computes the fingerprints.
            sparse: whether they are fingerprints of sparse rows, which are stored beside those of dense rows.
        """
        stored = self._entries.get(sparse)
        if stored is None or stored[0] != digest:
            stored = digest, b"".join(compute())  # 16 bytes a record; a list of hashes would take four times as much
            self._entries[sparse] = stored
        hashes = stored[1]
        return [hashes[start : start + FINGERPRINT_BYTES] for start in range(0, len(hashes), FINGERPRINT_BYTES)]


def _comparable_rows(inputs: Tensor) -> Iterator[NDArray[Any]]:
    """Yield the numbers of each record in the type in which they are compared."""
    flat = inputs.detach().cpu().reshape(len(inputs), -1)
    if flat.is_floating_point():
        yield from (flat.float() + 0.0).numpy()  # adding 0.0 turns -0.0 into 0.0
        return
    integers = flat.long().contiguous()
    exact = ((integers > -FLOAT32_LIMIT) & (integers < FLOAT32_LIMIT)).all(1).tolist()
    for fits, as_integers, as_floats in zip(exact, integers.numpy(), integers.float().numpy(), strict=True):
        yield as_floats if fits else as_integers
