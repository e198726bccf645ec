"""Draw private and public records from one pool, disjoint by content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon.data.fingerprint import fingerprints
from gnomon.data.records import Records
from gnomon.errors import SettingError
from gnomon.validate import whole


@dataclass(frozen=True, eq=False)
class Split:
    """Private records, and public ones that share no content with them.

    >>> few = Records(torch.zeros(2, 1), torch.zeros(2))
    >>> len(Split(private=few, public=few[:0]).public)
    0
    """

    private: Records
    public: Records


def public_private(records: Records, *, private: int, public: int, seed: int = 0) -> Split:
    """Draw `private` and `public` records at random, disjoint by position and by content.

    A public candidate is passed over when its inputs occur among the private records or among the
    public ones taken before, and the next candidate takes its place. If too few are left, records that
    occur once change places with private ones. So which records become public depends on the private
    draw: this is how an experiment splits a public benchmark. Where the private records are truly
    secret, take public ones from elsewhere and call `check_disjoint`.

    >>> from gnomon.data import overlap
    >>> pool = Records(torch.arange(10.0).reshape(10, 1), torch.arange(10))
    >>> split = public_private(pool, private=6, public=3, seed=1)
    >>> len(split.private), len(split.public), overlap(split.private, split.public)
    (6, 3, 0)
    """
    private, public = whole("private", private), whole("public", public, least=0)
    if private + public > len(records):
        asked = f"{private} + {public}"
        raise SettingError("private + public", asked, f"at most the {len(records)} records of the pool")
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(whole("seed", seed, least=0)))
    secret = records[order[:private]]
    if public == 0:
        return Split(secret, records[:0])
    seen = set(fingerprints(secret))
    taken: list[int] = []
    for start in range(private, len(order), max(public, 256)):  # hash no more candidates than are needed
        candidates = order[start : start + max(public, 256)]
        for position, mark in zip(candidates.tolist(), fingerprints(records[candidates]), strict=True):
            if mark not in seen and len(taken) < public:
                seen.add(mark)
                taken.append(position)
        if len(taken) == public:
            return Split(secret, records[taken])
    return _exchanged(records, order, private, public)


def _exchanged(records: Records, order: Tensor, private: int, public: int) -> Split:
    """Public records that occur once in the pool, from those behind the private draw on and then from its end back."""
    marks = fingerprints(records)
    times = Counter(marks)
    candidates = torch.cat([order[private:], order[:private].flip(0)])
    alone = [position for position in candidates.tolist() if times[marks[position]] == 1]
    if len(alone) < public:
        raise SettingError("public", public, f"at most {len(alone)}: all other records have copies")
    taken = torch.zeros(len(order), dtype=torch.bool)
    taken[alone[:public]] = True
    return Split(records[order[~taken[order]][:private]], records[alone[:public]])


def check_disjoint(private: Records, public: Records) -> None:
    """Raise if a public record's inputs occur among the private ones.

    >>> a = Records(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]))
    >>> check_disjoint(a[:1], a[1:])
    >>> check_disjoint(a, a[1:])
    Traceback (most recent call last):
    ValueError: 1 of 1 public records occur in the private set: remove them from the public set, ...
    """
    refuse_shared(fingerprints(private), fingerprints(public))


def refuse_shared(private: Iterable[bytes], public: Iterable[bytes]) -> None:
    """Raise if a mark of a public record is among those of the private ones, which are read one by one.

    >>> refuse_shared([b"a", b"b"], [b"c"])
    """
    marks = list(public)
    known = set(marks)
    found = {mark for mark in private if mark in known}
    if found:
        shared = sum(mark in found for mark in marks)
        raise ValueError(
            f"{shared} of {len(marks)} public records occur in the private set: remove them from the "
            "public set, or draw both with gnomon.data.split.public_private"
        )
