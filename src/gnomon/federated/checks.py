"""What the server looks at before an upload counts: everything, since a client may send anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnomon.federated.parcel import NUMBER_BYTES, Arrays, Parcel, array_bytes, total_norm
from gnomon.federated.refused import Refused

if TYPE_CHECKING:
    from gnomon.federated.server import Server

SLACK = 1.0 + 1e-3
"""Room for rounding in a length."""


def check_upload(server: Server, name: str, reply: Parcel, sent: Parcel) -> Arrays:
    """The change that a client's answer stands for; an error that says why it does not count."""
    strategy, weights = server.strategy, server.weights
    if reply.round != sent.round or reply.numbers.get("ticket") != sent.numbers["ticket"]:
        raise Refused("round")
    wanted = {"change": strategy.upload.like(weights, server.basis)}
    reach, numbers, room = server.members[name].reach, {"ticket"}, 0.0
    limits: dict[str, float] = {}
    for piece in strategy.pieces:
        wanted |= piece.uploads(weights)
        numbers |= set(piece.numbers)
        limits |= piece.limits(reach.step(server.dims))
        room += piece.room(sent)
    if reply.bytes > sum(map(array_bytes, wanted.values())) + NUMBER_BYTES * (1 + len(numbers)):
        raise Refused("bytes")
    if set(reply.arrays) != set(wanted) or set(reply.numbers) != numbers:
        raise Refused("contents")
    for group, like in wanted.items():
        reply.arrays[group] = check_arrays(group, reply.arrays[group], like)
    if not all(math.isfinite(value) for value in reply.numbers.values()):
        raise Refused("finite", "numbers")
    change = strategy.upload.unpack(reply.arrays["change"], weights, server.basis)
    for what, arrays, most in [
        ("change", change, reach.change(server.dims, room)),
        *((group, reply.arrays[group], limit) for group, limit in limits.items()),
    ]:
        if not total_norm(arrays) <= SLACK * most:  # also if it is not a number
            raise Refused("norm", what)
    return change


def check_arrays(group: str, arrays: Arrays, like: Mapping[str, Tensor]) -> Arrays:
    """Names, formats, shapes and values, in this order; then the arrays, where those are that they are like.

    >>> check_arrays("change", {"w": torch.zeros(3)}, {"w": torch.zeros(2)})
    Traceback (most recent call last):
    gnomon.federated.refused.Refused: another shape: change
    """
    if set(arrays) != set(like):
        raise Refused("contents", group)
    for name, value in arrays.items():
        if value.dtype != like[name].dtype:
            raise Refused("dtype", group)
        if value.shape != like[name].shape:
            raise Refused("shape", group)
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise Refused("finite", group)
    return {name: value.to(like[name].device) for name, value in arrays.items()}
