"""Splits: private and public records that are disjoint by content, and a fixed training and test set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnomon.data.fingerprint import fingerprints
from gnomon.data.records import Records
from gnomon.errors import DataError, SettingError
from gnomon.validate import whole


@dataclass(frozen=True, eq=False)
class Split:
    """Private records, and public records that have none of their inputs.

    >>> records = Records(torch.zeros(2, 1), torch.zeros(2))
    >>> len(Split(private=records, public=records[:0]).public)
    0
    """

    private: Records
    public: Records


def public_private(records: Records, *, private: int, public: int, seed: int = 0) -> Split:
    """Draw `private` and `public` records at random, disjoint by position and by content.

    A public candidate is skipped if its inputs occur among the private records or the public records drawn before it,
    and the next candidate takes its place. If too few candidates remain, records without a copy are exchanged with
    private ones. Which records become public therefore depends on the private draw: this is how an experiment splits
    a public benchmark. If the private records are truly secret, take public records from elsewhere and call
    `check_disjoint`.

    Args:
        records: the pool.
        private: the number of private records.
        public: the number of public records; may be 0.
        seed: the seed of the draw, which depends on nothing else.

    Raises:
        SettingError: if the pool has too few records, or too few that have no copy.

    >>> from gnomon.data import overlap
    >>> pool = Records(torch.arange(10.0).reshape(10, 1), torch.arange(10))
    >>> split = public_private(pool, private=6, public=3, seed=1)
    >>> len(split.private), len(split.public), overlap(split.private, split.public)
    (6, 3, 0)
    """
    private, public = whole("private", private), whole("public", public, least=0)
    if private + public > len(records):
        requested = f"{private} + {public}"
        raise SettingError("private + public", requested, f"at most the {len(records)} records of the pool")
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(whole("seed", seed, least=0)))
    private_records = records[order[:private]]
    if public == 0:
        return Split(private_records, records[:0])
    seen = set(fingerprints(private_records))
    drawn: list[int] = []
    for start in range(private, len(order), max(public, 256)):  # in blocks, to hash no more candidates than needed
        candidates = order[start : start + max(public, 256)]
        for position, fingerprint in zip(candidates.tolist(), fingerprints(records[candidates]), strict=True):
            if fingerprint not in seen and len(drawn) < public:
                seen.add(fingerprint)
                drawn.append(position)
        if len(drawn) == public:
            return Split(private_records, records[drawn])
    return _exchanged(records, order, private, public)


def _exchanged(records: Records, order: Tensor, private: int, public: int) -> Split:
    """Draw public records without a copy in the pool: first those outside the private draw, then from its end."""
    hashes = fingerprints(records)
    occurrences = Counter(hashes)
    candidates = torch.cat([order[private:], order[:private].flip(0)])
    unique = [position for position in candidates.tolist() if occurrences[hashes[position]] == 1]
    if len(unique) < public:
        raise SettingError("public", public, f"at most {len(unique)}: all other records have copies")
    is_public = torch.zeros(len(order), dtype=torch.bool)
    is_public[unique[:public]] = True
    return Split(records[order[~is_public[order]][:private]], records[unique[:public]])


def holdout(records: Records, test: int, seed: int = 0) -> tuple[Records, Records]:
    """Split records into a training set and a test set of `test` records, for data that have no official test set.

    The split depends only on the number of records and the seed.

    >>> train, held_out = holdout(Records(torch.arange(10.0), torch.arange(10)), test=2)
    >>> len(train), len(held_out), sorted(torch.cat([train.targets, held_out.targets]).tolist())
    (8, 2, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(records)))
    cut = len(records) - test
    return records[order[:cut]], records[order[cut:]]


def check_disjoint(private: Records, public: Records) -> None:
    """Raise DataError if the inputs of a public record occur among the private records.

    >>> a = Records(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]))
    >>> check_disjoint(a[:1], a[1:])
    >>> check_disjoint(a, a[1:])
    Traceback (most recent call last):
    gnomon.errors.DataError: 1 of 1 public records occur in the private set: remove them from the public set, or draw \
both with gnomon.data.public_private
    """
    refuse_shared(fingerprints(private), fingerprints(public))


def refuse_shared(private: Iterable[bytes], public: Iterable[bytes]) -> None:
    """Raise DataError if the fingerprint of a public record is among those of the private records.

    The private fingerprints are consumed one by one, so that they need not fit into memory.

    >>> refuse_shared([b"a", b"b"], [b"c"])
    """
    public_hashes = list(public)
    known = set(public_hashes)
    shared = {fingerprint for fingerprint in private if fingerprint in known}
    if shared:
        count = sum(fingerprint in shared for fingerprint in public_hashes)
        raise DataError(
            f"{count} of {len(public_hashes)} public records",
            "occur in the private set",
            "remove them from the public set, or draw both with gnomon.data.public_private",
        )
