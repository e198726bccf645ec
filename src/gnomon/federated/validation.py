"""The checks that an upload must pass before the server uses it: a client may send anything."""

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
"""The number of standard deviations that the bounds allow for; an honest client practically never exceeds them."""

SLACK = 1.0 + 1e-3
"""The factor that norm checks allow for rounding."""


@dataclass(frozen=True)
class UpdateBounds:
    """Bounds on the norm of what an honest client that trains with SGD can upload, from public settings alone.

    A released step is a sum of about B contributions of norm at most C, plus noise in `dims` dimensions, divided by B.

    Args:
        max_grad_norm: the clip bound C.
        noise_multiplier: the standard deviation of the noise, in units of C.
        expected_batch_size: the divisor B.
        steps: the private steps in a round.
        lr: the local learning rate.
        momentum: the momentum of the local optimizer.
        step_factor: the factor by which the strategy can lengthen a local step.

    >>> bounds = UpdateBounds(max_grad_norm=1.0, noise_multiplier=0.0, expected_batch_size=100, steps=5, lr=0.1)
    >>> bounds.step_norm(dims=10), bounds.change_norm(dims=10)
    (2.1, 1.05)
    """

    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float
    steps: int
    lr: float
    momentum: float = 0.0
    step_factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_grad_norm", "expected_batch_size", "lr", "step_factor"):
            validate.positive(name, getattr(self, name))
        validate.non_negative("noise_multiplier", self.noise_multiplier)
        validate.whole("steps", self.steps)
        if not 0 <= validate.number("momentum", self.momentum) < 1:
            raise SettingError("momentum", self.momentum, "a number from 0 up to, but not including, 1")

    def step_norm(self, dims: int) -> float:
        """Return the largest norm of one released step, with noise in `dims` dimensions."""
        batch = self.expected_batch_size
        largest_batch = batch + DEVIATIONS * batch**0.5 + DEVIATIONS
        noise = self.noise_multiplier * (dims**0.5 + DEVIATIONS)
        return float(self.max_grad_norm * (largest_batch + noise) / batch)

    def change_norm(self, dims: int, extra_step_norm: float = 0.0) -> float:
        """Return the largest norm of a round's change.

        Args:
            dims: the dimensions in which noise is drawn.
            extra_step_norm: the norm that the server's own message adds to each step.
        """
        longest_step = self.step_factor * self.step_norm(dims) + extra_step_norm
        return self.steps * self.lr * longest_step / (1 - self.momentum)


def check_upload(
    reply: Message,
    request: Message,
    strategy: Strategy,
    weights: Arrays,
    basis: Basis | None,
    bounds: UpdateBounds,
    dims: int,
) -> Arrays:
    """Check a client's reply to `request` and return the change of the weights that it describes.

    Raises:
        Refused: the upload does not have the form or the norm of an honest client's upload.
    """
    if reply.round != request.round or reply.numbers.get("ticket") != request.numbers["ticket"]:
        raise Refused("round")
    templates = {"change": strategy.upload.template(weights, basis)}
    numbers, extra_step_norm = {"ticket"}, 0.0
    norm_limits: dict[str, float] = {}
    for component in strategy.components:
        templates |= component.upload_templates(weights)
        numbers |= set(component.upload_numbers)
        norm_limits |= component.upload_norm_limits(bounds.step_norm(dims))
        extra_step_norm += component.extra_step_norm(request)
    if reply.bytes > sum(map(array_bytes, templates.values())) + NUMBER_BYTES * (1 + len(numbers)):
        raise Refused("bytes")
    if set(reply.arrays) != set(templates) or set(reply.numbers) != numbers:
        raise Refused("contents")
    for group, template in templates.items():
        reply.arrays[group] = check_arrays(group, reply.arrays[group], template)
    if not all(math.isfinite(value) for value in reply.numbers.values()):
        raise Refused("finite", "numbers")
    change = strategy.upload.unpack(reply.arrays["change"], weights, basis)
    _check_norm("change", change, bounds.change_norm(dims, extra_step_norm))
    for group, limit in norm_limits.items():
        _check_norm(group, reply.arrays[group], limit)
    return change


def _check_norm(group: str, arrays: Arrays, limit: float) -> None:
    if not total_norm(arrays) <= SLACK * limit:  # also if it is not a number
        raise Refused("norm", group)


def check_arrays(group: str, arrays: Arrays, template: Mapping[str, Tensor]) -> Arrays:
    """Check names, dtypes, shapes and values of arrays, and return them on the template's devices.

    Raises:
        Refused: the arrays differ from the template, or have values that are not finite.

    >>> check_arrays("change", {"w": torch.zeros(3)}, {"w": torch.zeros(2)})
    Traceback (most recent call last):
    gnomon.federated.refusal.Refused: unexpected shape: change
    """
    if set(arrays) != set(template):
        raise Refused("contents", group)
    for name, value in arrays.items():
        if value.dtype != template[name].dtype:
            raise Refused("dtype", group)
        if value.shape != template[name].shape:
            raise Refused("shape", group)
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise Refused("finite", group)
    return {name: value.to(template[name].device) for name, value in arrays.items()}
