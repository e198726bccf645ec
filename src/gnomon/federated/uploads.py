"""Upload formats: which part of its change a client uploads, and how the server turns it back into a change."""

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
    """The format of an upload. Clients `pack` a change that was already released; the server `unpack`s it."""

    @property
    def name(self) -> str:
        """The format's name in statements and reports."""

    @property
    def needs_basis(self) -> bool:
        """Whether the format needs the basis of the round's subspace."""

    def template(self, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        """Return arrays with the names, shapes and dtypes that an upload must have."""

    def pack(self, change: Arrays, basis: Basis | None) -> Arrays:
        """Client: return the arrays to upload for a change of the weights."""

    def unpack(self, arrays: Arrays, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        """Server: return the change of the weights that uploaded arrays describe."""


@dataclass(frozen=True)
class AllParameters:
    """Upload the change of every parameter.

    >>> AllParameters().pack({"weight": torch.ones(2)}, None)
    {'weight': tensor([1., 1.])}
    """

    name = "all parameters"
    needs_basis = False

    def template(self, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        return dict(weights)

    def pack(self, change: Arrays, basis: Basis | None) -> Arrays:
        return dict(change)

    def unpack(self, arrays: Arrays, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        return dict(arrays)


@dataclass(frozen=True)
class Coordinates:
    """Upload the coordinates of the change in the round's subspace; the server lifts them.

    The upload is lossless if every local step lies in the subspace (FedPCDP, FedPDP). Otherwise it is the orthogonal
    projection of the change (PFA).

    >>> from gnomon.subspaces.basis import AmbientBasis
    >>> Coordinates().pack({"weight": torch.ones(2)}, AmbientBasis({"weight": torch.zeros(2)}))
    {'weight': tensor([1., 1.])}
    """

    name = "coordinates"
    needs_basis = True

    def template(self, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        return dict(_required(basis).like)

    def pack(self, change: Arrays, basis: Basis | None) -> Arrays:
        coordinates = _required(basis).coordinates(as_updates(change))
        return coordinates.weighted_sum(torch.ones(1, device=coordinates.losses.device))

    def unpack(self, arrays: Arrays, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        return _required(basis).lift(arrays)


@dataclass(frozen=True)
class LargestEntries:
    """Upload the entries of the change with the largest absolute values, as positions and values (FedLRS).

    All other entries count as zero. The change was released before, so the positions reveal nothing further.

    Args:
        fraction: the share of all entries to upload.

    >>> arrays = LargestEntries(0.5).pack({"weight": torch.tensor([3.0, -4.0, 0.1, 1.0])}, None)
    >>> LargestEntries(0.5).unpack(arrays, {"weight": torch.zeros(4)}, None)
    {'weight': tensor([ 3., -4.,  0.,  0.])}
    """

    fraction: float = 0.3
    needs_basis = False

    def __post_init__(self) -> None:
        validate.sample_rate("fraction", self.fraction)

    @property
    def name(self) -> str:
        return f"largest {self.fraction:.0%}"

    def _count(self, size: int) -> int:
        return max(1, math.ceil(self.fraction * size))

    def template(self, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        count = self._count(sum(value.numel() for value in weights.values()))
        first = next(iter(weights.values()))
        return {"positions": first.new_zeros(count, dtype=torch.int32), "values": first.new_zeros(count)}

    def pack(self, change: Arrays, basis: Basis | None) -> Arrays:
        flat = torch.cat([value.flatten() for value in change.values()])
        positions = flat.abs().topk(self._count(len(flat))).indices.sort().values
        return {"positions": positions.to(torch.int32), "values": flat[positions]}

    def unpack(self, arrays: Arrays, weights: Mapping[str, Tensor], basis: Basis | None) -> Arrays:
        flat = torch.cat([torch.zeros_like(value).flatten() for value in weights.values()])
        positions = arrays["positions"].long()
        increasing = bool((positions.diff() > 0).all())
        if not (increasing and int(positions[0]) >= 0 and int(positions[-1]) < len(flat)):
            raise Refused("positions")
        flat[positions] = arrays["values"]
        parts = flat.split([value.numel() for value in weights.values()])
        return {name: part.reshape(weights[name].shape) for name, part in zip(weights, parts, strict=True)}


def _required(basis: Basis | None) -> Basis:
    if basis is None:
        raise SettingError.with_message(
            "uploads in coordinates need a subspace: choose a local method with one, or set upload_subspace",
            name="upload",
        )
    return basis
