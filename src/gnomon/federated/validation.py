"""What the server checks before an upload counts: everything, since a client may send anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.federated.message import NUMBER_BYTES, Arrays, Message, array_bytes, total_norm
from gnomon.federated.refusal import Refused
from gnomon.federated.strategies.published import Strategy
from gnomon.subspaces import Basis

DEVIATIONS = 10
"""How many standard deviations of luck are allowed for: beyond that nobody honest gets."""


@dataclass(frozen=True)
class Reach:
    """From public settings alone, for SGD.

    A released step is a sum of at most about B contributions of length C, and noise in `dims` dimensions, divided by B.

    >>> reach = Reach(max_grad_norm=1.0, noise_multiplier=0.0, expected_batch_size=100, steps=5, lr=0.1)
    >>> reach.step(dims=10), reach.change(dims=10)
    (2.1, 1.05)
    """

    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float
    steps: int
    lr: float
    momentum: float = 0.0
    stretch: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_grad_norm", "expected_batch_size", "lr", "stretch"):
            validate.positive(name, getattr(self, name))
        validate.non_negative("noise_multiplier", self.noise_multiplier)
        validate.whole("steps", self.steps)
        if not 0 <= validate.number("momentum", self.momentum) < 1:
            raise SettingError("momentum", self.momentum, "0 or above and below 1")

    def step(self, dims: int) -> float:
        """The length of one released step."""
        batch = self.expected_batch_size
        most = batch + DEVIATIONS * batch**0.5 + DEVIATIONS
        noise = self.noise_multiplier * (dims**0.5 + DEVIATIONS)
        return float(self.max_grad_norm * (most + noise) / batch)

    def change(self, dims: int, room: float = 0.0) -> float:
        """The length of a round's change; `room` is what the server's own message adds to each step."""
        return self.steps * self.lr * (self.stretch * self.step(dims) + room) / (1 - self.momentum)


SLACK = 1.0 + 1e-3
"""Room for rounding in a length."""


def check_upload(
    reply: Message, sent: Message, strategy: Strategy, weights: Arrays, basis: Basis | None, reach: Reach, dims: int
) -> Arrays:
    """Return the change of weights that an upload stands for.

    Raises:
        Refused: the upload does not have the form or the length of an honest client's.
    """
    if reply.round != sent.round or reply.numbers.get("ticket") != sent.numbers["ticket"]:
        raise Refused("round")
    wanted = {"change": strategy.upload.like(weights, basis)}
    numbers, room = {"ticket"}, 0.0
    limits: dict[str, float] = {}
    for component in strategy.components:
        wanted |= component.uploads(weights)
        numbers |= set(component.numbers)
        limits |= component.limits(reach.step(dims))
        room += component.room(sent)
    if reply.bytes > sum(map(array_bytes, wanted.values())) + NUMBER_BYTES * (1 + len(numbers)):
        raise Refused("bytes")
    if set(reply.arrays) != set(wanted) or set(reply.numbers) != numbers:
        raise Refused("contents")
    for group, like in wanted.items():
        reply.arrays[group] = check_arrays(group, reply.arrays[group], like)
    if not all(math.isfinite(value) for value in reply.numbers.values()):
        raise Refused("finite", "numbers")
    change = strategy.upload.unpack(reply.arrays["change"], weights, basis)
    for what, arrays, most in [
        ("change", change, reach.change(dims, room)),
        *((group, reply.arrays[group], limit) for group, limit in limits.items()),
    ]:
        if not total_norm(arrays) <= SLACK * most:  # also if it is not a number
            raise Refused("norm", what)
    return change


def check_arrays(group: str, arrays: Arrays, like: Mapping[str, Tensor]) -> Arrays:
    """Names, formats, shapes and values, in this order; then the arrays, where those are that they are like.

    >>> check_arrays("change", {"w": torch.zeros(3)}, {"w": torch.zeros(2)})
    Traceback (most recent call last):
    gnomon.federated.refusal.Refused: another shape: change
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
