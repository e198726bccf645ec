"""What a client uploads of its change, and how the server reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.federated.message import Arrays
from gnomon.federated.refusal import Refused
from gnomon.subspaces import Basis
from gnomon.subspaces.basis import as_updates


class Upload(Protocol):
    """Two verbs: `pack` on the client, `unpack` on the server. Both see public things only."""

    @property
    def name(self) -> str:
        """For reports."""

    def like(self, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        """Arrays of the shapes and formats that must come."""

    def pack(self, change: Arrays, basis: Basis | None) -> Arrays: ...

    def unpack(self, sent: Arrays, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays: ...


@dataclass(frozen=True)
class Whole:
    """Every parameter.

    >>> Whole().pack({"weight": torch.ones(2)}, None)
    {'weight': tensor([1., 1.])}
    """

    name = "all parameters"

    def like(self, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        return dict(weights)

    def pack(self, change: Arrays, basis: Basis | None) -> Arrays:
        return dict(change)

    def unpack(self, sent: Arrays, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        return dict(sent)


@dataclass(frozen=True)
class Coordinates:
    """The change's coordinates in the round's subspace; the server lifts them.

    Lossless where every local step lies in the subspace (FedPCDP, FedPDP); otherwise the part inside it (PFA).

    >>> from gnomon.subspaces.basis import AmbientBasis
    >>> Coordinates().pack({"weight": torch.ones(2)}, AmbientBasis({"weight": torch.zeros(2)}))
    {'weight': tensor([1., 1.])}
    """

    name = "coordinates"

    def like(self, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        return dict(_needed(basis).like)

    def pack(self, change: Arrays, basis: Basis | None) -> Arrays:
        seen = _needed(basis).coordinates(as_updates(change))
        return seen.weighted_sum(torch.ones(1, device=seen.losses.device))

    def unpack(self, sent: Arrays, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        return _needed(basis).lift(sent)


@dataclass(frozen=True)
class Largest:
    """The largest entries of the change, as positions and values; the rest counts as zero (FedLRS's sparsification).

    The change was released before, so which entries are large is no secret.

    >>> sent = Largest(0.5).pack({"weight": torch.tensor([3.0, -4.0, 0.1, 1.0])}, None)
    >>> Largest(0.5).unpack(sent, {"weight": torch.zeros(4)}, None)
    {'weight': tensor([ 3., -4.,  0.,  0.])}
    """

    fraction: float = 0.3

    def __post_init__(self) -> None:
        validate.sample_rate("fraction", self.fraction)

    @property
    def name(self) -> str:
        return f"largest {self.fraction:.0%}"

    def _count(self, size: int) -> int:
        return max(1, math.ceil(self.fraction * size))

    def like(self, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        count = self._count(sum(value.numel() for value in weights.values()))
        first = next(iter(weights.values()))
        return {"positions": first.new_zeros(count, dtype=torch.int32), "values": first.new_zeros(count)}

    def pack(self, change: Arrays, basis: Basis | None) -> Arrays:
        flat = torch.cat([value.flatten() for value in change.values()])
        chosen = flat.abs().topk(self._count(len(flat))).indices.sort().values
        return {"positions": chosen.to(torch.int32), "values": flat[chosen]}

    def unpack(self, sent: Arrays, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        flat = torch.cat([torch.zeros_like(value).flatten() for value in weights.values()])
        where = sent["positions"].long()
        if not (bool((where.diff() > 0).all()) and int(where[0]) >= 0 and int(where[-1]) < len(flat)):
            raise Refused("positions")
        flat[where] = sent["values"]
        parts = flat.split([value.numel() for value in weights.values()])
        return {name: part.reshape(weights[name].shape) for name, part in zip(weights, parts, strict=True)}


def _needed(basis: Basis | None) -> Basis:
    if basis is None:
        raise SettingError("upload", "coordinates", "a strategy with a subspace for uploads in coordinates")
    return basis
