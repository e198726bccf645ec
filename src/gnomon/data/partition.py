"""Partitions: rules that divide records among the clients of a federation, disjointly and from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gnomon import validate
from gnomon.errors import SettingError

MAX_DRAWS = 200
"""Dirichlet draws before the search for one with enough records for every client is given up."""


class Partition(Protocol):
    """A rule that assigns records to clients."""

    @property
    def name(self) -> str:
        """The name of the rule in reports."""

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        """Return the sorted positions of each client's records; no record belongs to two clients.

        Args:
            targets: the targets of all records.
            clients: the number of clients.
            seed: the seed of the random draws.

        Raises:
            SettingError: if the records cannot be divided among so many clients.
        """


@dataclass(frozen=True)
class IID:
    """Shuffle the records and cut them into parts of equal size.

    >>> [len(part) for part in IID().split(torch.zeros(10), clients=3)]
    [4, 3, 3]
    """

    name = "iid"

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        order = _generator(seed).permutation(len(targets))
        return _checked(np.array_split(order, _count(clients, len(targets))))


@dataclass(frozen=True)
class Dirichlet:
    """Divide each class by proportions from a Dirichlet distribution; a small `alpha` makes clients heterogeneous.

    As in the code of FedFDP, a client that has its equal share of all records receives none of the next class, and the
    draw is repeated until every client has at least `least` records.

    >>> parts = Dirichlet(alpha=0.5, least=5).split(torch.arange(10).repeat(20), clients=4)
    >>> sum(map(len, parts)), min(map(len, parts)) >= 5
    (200, True)
    """

    alpha: float = 0.1
    least: int = 10

    def __post_init__(self) -> None:
        validate.positive("alpha", self.alpha)
        validate.whole("least", self.least)

    @property
    def name(self) -> str:
        return f"dirichlet {self.alpha:g}"

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        random, labels = _generator(seed), _labels(targets)
        share = len(labels) / _count(clients, len(labels))
        for _ in range(MAX_DRAWS):
            parts: list[list[int]] = [[] for _ in range(clients)]
            for label in np.unique(labels):
                members = random.permutation(np.flatnonzero(labels == label))
                proportions = random.dirichlet(np.full(clients, self.alpha))
                proportions *= [len(part) < share for part in parts]
                if not proportions.sum() > 0:  # tiny alphas underflow: the client with the fewest takes the class
                    proportions = np.zeros(clients)
                    proportions[min(range(clients), key=lambda i: len(parts[i]))] = 1.0
                cuts = (np.cumsum(proportions / proportions.sum())[:-1] * len(members)).astype(int)
                for part, positions in zip(parts, np.split(members, cuts), strict=True):
                    part.extend(positions.tolist())
            if min(map(len, parts)) >= self.least:
                return _checked(parts)
        raise SettingError(
            "alpha",
            self.alpha,
            f"a larger value, or fewer clients: none of {MAX_DRAWS} draws gave each of {clients} clients "
            f"{self.least} records",
        )


@dataclass(frozen=True)
class Shards:
    """Sort by class, cut into `per_client` shards for each client, and deal them at random (McMahan et al. 2017).

    >>> parts = Shards(2).split(torch.arange(10).repeat_interleave(4), clients=5)
    >>> [len(part) for part in parts]
    [8, 8, 8, 8, 8]
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        validate.whole("per_client", self.per_client)

    @property
    def name(self) -> str:
        return f"{self.per_client} shards each"

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        labels = _labels(targets)
        shards = np.array_split(np.argsort(labels, kind="stable"), _count(clients, len(labels)) * self.per_client)
        hands = np.array_split(_generator(seed).permutation(len(shards)), clients)
        return _checked([np.concatenate([shards[i] for i in hand]) for hand in hands])


@dataclass(frozen=True)
class OneClass:
    """Give each client one class, after a fraction `rest` of all records is divided evenly among the clients.

    With more clients than classes, several clients share a class; with fewer, the remaining classes are not assigned.

    >>> parts = OneClass().split(torch.tensor([0, 1, 0, 1]), clients=2)
    >>> [part.tolist() for part in parts]
    [[0, 2], [1, 3]]
    """

    rest: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= validate.number("rest", self.rest) < 1:
            raise SettingError("rest", self.rest, "a fraction that is at least 0 and below 1")

    @property
    def name(self) -> str:
        return "one class" + (f", {self.rest:.0%} of others" if self.rest else "")

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        random, labels = _generator(seed), _labels(targets)
        classes = np.unique(labels)
        parts: list[Any] = [np.zeros(0, int) for _ in range(_count(clients, len(labels)))]
        is_rest = random.random(len(labels)) < self.rest
        for number, label in enumerate(classes):
            members = np.flatnonzero((labels == label) & ~is_rest)
            holders = range(number, clients, len(classes))
            for client, positions in zip(holders, np.array_split(members, max(1, len(holders))), strict=False):
                parts[client] = positions
        for client, positions in enumerate(np.array_split(random.permutation(np.flatnonzero(is_rest)), clients)):
            parts[client] = np.concatenate([parts[client], positions])
        return _checked(parts)


@dataclass(frozen=True)
class ByKey:
    """Assign all records with the same key, such as a speaker or a hospital, to one client.

    Keys are assigned in order of decreasing size, each to the client with the fewest records so far, which makes the
    clients nearly equal; small keys share a client.

    Args:
        keys: the key of each record.
        least: the smallest number of records that a client may have.

    >>> play = "ROMEO:\\nIs the day so young?\\n\\nBENVOLIO:\\nBut new struck nine.\\n\\nROMEO:\\nAy me!"
    >>> speakers = [speech.split(":\\n")[0] for speech in play.split("\\n\\n")]
    >>> [part.tolist() for part in ByKey(speakers).split(torch.zeros(3), clients=2)]
    [[0, 2], [1]]
    """

    keys: Sequence[Any]
    least: int = 1
    name = "by key"

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        if len(self.keys) != len(targets):
            raise SettingError("number of keys", len(self.keys), f"one key for each of {len(targets)} records")
        groups: dict[Any, list[int]] = {}
        for position, key in enumerate(self.keys):
            groups.setdefault(key.item() if hasattr(key, "item") else key, []).append(position)
        if len(groups) < _count(clients, len(targets)):
            raise SettingError("clients", clients, f"at most {len(groups)}, the number of different keys")
        parts = _deal(list(groups.values()), clients)
        if (fewest := min(map(len, parts))) < self.least:
            most = next((n for n in range(clients - 1, 0, -1) if _fits(groups, n, self.least)), 0)
            expected = f"at most {most}: with {clients} clients one has {fewest} records, fewer than {self.least}"
            raise SettingError("clients", clients, expected)
        return _checked(parts)


def _deal(groups: list[list[int]], clients: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(clients)]
    for group in sorted(groups, key=len, reverse=True):
        min(parts, key=len).extend(group)
    return parts


def _fits(groups: Mapping[Any, list[int]], clients: int, least: int) -> bool:
    return min(map(len, _deal(list(groups.values()), clients))) >= least


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(validate.whole("seed", seed, least=0))


def _count(clients: int, records: int) -> int:
    if validate.whole("clients", clients) > records:
        raise SettingError("clients", clients, f"at most the {records} records")
    return clients


def _labels(targets: Tensor) -> Any:
    if targets.ndim != 1:
        raise SettingError(
            "shape of targets", tuple(targets.shape), "a shape with one dimension: one class for each record"
        )
    return targets.cpu().numpy()


def _checked(parts: Sequence[Any]) -> list[Tensor]:
    empty = [number for number, part in enumerate(parts) if not len(part)]
    if empty:
        raise SettingError("clients", len(parts), f"a smaller number: client {empty[0]} would have no record")
    return [torch.as_tensor(np.sort(np.asarray(part, dtype=np.int64))) for part in parts]
