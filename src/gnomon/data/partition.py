"""How records are spread over clients: positions for each of them, disjoint, from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gnomon import validate
from gnomon.errors import SettingError

TRIES = 200


class Partition(Protocol):
    """A rule that gives each client its records."""

    @property
    def name(self) -> str:
        """For reports."""

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        """The positions of each client's records; no record belongs to two clients."""


@dataclass(frozen=True)
class IID:
    """Shuffled and cut into equal parts.

    >>> [len(part) for part in IID().split(torch.zeros(10), clients=3)]
    [4, 3, 3]
    """

    name = "iid"

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        order = _generator(seed).permutation(len(targets))
        return _checked(np.array_split(order, _count(clients, len(targets))))


@dataclass(frozen=True)
class Dirichlet:
    """Each class is spread by proportions from a Dirichlet law; a small `alpha` makes clients unlike each other.

    As in FedFDP's code a client that has its share of all records gets no more of the next class, and the draw is
    repeated until everybody has at least `least` records.

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
        for _ in range(TRIES):
            parts: list[list[int]] = [[] for _ in range(clients)]
            for label in np.unique(labels):
                mine = random.permutation(np.flatnonzero(labels == label))
                wanted = random.dirichlet(np.full(clients, self.alpha))
                wanted *= [len(part) < share for part in parts]
                if not wanted.sum() > 0:  # tiny alphas underflow: the neediest client takes the class
                    wanted = np.zeros(clients)
                    wanted[min(range(clients), key=lambda i: len(parts[i]))] = 1.0
                cuts = (np.cumsum(wanted / wanted.sum())[:-1] * len(mine)).astype(int)
                for part, some in zip(parts, np.split(mine, cuts), strict=True):
                    part.extend(some.tolist())
            if min(map(len, parts)) >= self.least:
                return _checked(parts)
        raise SettingError("alpha", self.alpha, f"more, or fewer clients: none of {TRIES} draws gave "
                                    f"each of {clients} clients {self.least} records")  # fmt: skip


@dataclass(frozen=True)
class Shards:
    """Sorted by class, cut into `per_client` shards for each client, dealt at random (McMahan et al. 2017).

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
        dealt = np.array_split(_generator(seed).permutation(len(shards)), clients)
        return _checked([np.concatenate([shards[i] for i in hand]) for hand in dealt])


@dataclass(frozen=True)
class OneClass:
    """Each client holds one class, and a share `rest` of its records drawn from all of them.

    With more clients than classes several share a class; with fewer, some classes are nobody's.

    >>> parts = OneClass().split(torch.tensor([0, 1, 0, 1]), clients=2)
    >>> [part.tolist() for part in parts]
    [[0, 2], [1, 3]]
    """

    rest: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= validate.number("rest", self.rest) < 1:
            raise SettingError("rest", self.rest, "a share, 0 or above and below 1")

    @property
    def name(self) -> str:
        return "one class" + (f", {self.rest:.0%} of others" if self.rest else "")

    def split(self, targets: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
        random, labels = _generator(seed), _labels(targets)
        classes = np.unique(labels)
        parts: list[Any] = [np.zeros(0, int) for _ in range(_count(clients, len(labels)))]
        loose = random.random(len(labels)) < self.rest
        for number, label in enumerate(classes):
            mine = np.flatnonzero((labels == label) & ~loose)
            holders = range(number, clients, len(classes))
            for client, some in zip(holders, np.array_split(mine, max(1, len(holders))), strict=False):
                parts[client] = some
        for client, some in enumerate(np.array_split(random.permutation(np.flatnonzero(loose)), clients)):
            parts[client] = np.concatenate([parts[client], some])
        return _checked(parts)


@dataclass(frozen=True)
class ByKey:
    """Everything with the same key, a speaker, a hospital, the value of a column, goes to one client.

    Keys are dealt one after the other, the largest first, each to the client that has the fewest records then: clients
    become as equal as they can, and small keys share a client. A client with fewer than `least` records is an error.

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
            raise SettingError("keys", f"{len(self.keys)} of them", f"one for each of {len(targets)} records")
        groups: dict[Any, list[int]] = {}
        for position, key in enumerate(self.keys):
            groups.setdefault(key.item() if hasattr(key, "item") else key, []).append(position)
        if len(groups) < _count(clients, len(targets)):
            raise SettingError("clients", clients, f"at most {len(groups)}, the number of different keys")
        parts = _dealt(list(groups.values()), clients)
        if (fewest := min(map(len, parts))) < self.least:
            fits = next((n for n in range(clients - 1, 0, -1) if _fits(groups, n, self.least)), 0)
            allowed = f"at most {fits}: with {clients} of them one has {fewest} records, fewer than {self.least}"
            raise SettingError("clients", clients, allowed)
        return _checked(parts)


def _dealt(groups: list[list[int]], clients: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(clients)]
    for group in sorted(groups, key=len, reverse=True):
        min(parts, key=len).extend(group)
    return parts


def _fits(groups: Mapping[Any, list[int]], clients: int, least: int) -> bool:
    return min(map(len, _dealt(list(groups.values()), clients))) >= least


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(validate.whole("seed", seed, least=0))


def _count(clients: int, records: int) -> int:
    if validate.whole("clients", clients) > records:
        raise SettingError("clients", clients, f"at most the {records} records")
    return clients


def _labels(targets: Tensor) -> Any:
    if targets.ndim != 1:
        raise SettingError("targets", f"of shape {tuple(targets.shape)}", "one class a record")
    return targets.cpu().numpy()


def _checked(parts: Sequence[Any]) -> list[Tensor]:
    empty = [number for number, part in enumerate(parts) if not len(part)]
    if empty:
        raise SettingError("clients", len(parts), f"fewer: client {empty[0]} would have no record")
    return [torch.as_tensor(np.sort(np.asarray(part, dtype=np.int64))) for part in parts]
