"""The door: the only code that turns private numbers into public ones.

Everything that reaches it is private, everything that leaves it may be published. It trusts nothing that
was computed before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gnomon import validate
from gnomon.clipping import ClipRule, for_losses
from gnomon.clipping.rules import total, uncut
from gnomon.errors import SettingError
from gnomon.randomness import NoiseSource
from gnomon.updates import Updates

CHUNK = 2**16
"""How many numbers are noised at a time, so that float64 costs no memory to speak of."""

SMALLEST_DEVIATION = 1e-25
"""Noise below this would meet the smallest numbers of float32."""

SUM_ROUNDINGS = 1000
"""How many roundings of its largest term a sum over a batch is allowed to err by."""

GRID_BITS = 20
"""Released sums lie on a grid of about 2^-20 standard deviations of the noise."""


class Admitted(NamedTuple):
    """How a batch came through the door: each sample's weights, and its norms before them, by block. Private.

    >>> Admitted(weights=torch.tensor([[0.5]]), norms=torch.tensor([[2.0]])).clipped
    tensor([True])
    """

    weights: Tensor
    norms: Tensor
    uncut: Tensor | float = 1.0
    """What samples weigh that their clip rule leaves whole."""

    @property
    def clipped(self) -> Tensor:
        """Whether each sample was cut, (B,)."""
        return (self.weights < self.uncut).any(1)

    def select(self, index: Tensor) -> Admitted:
        """Some of the samples."""
        uncut = self.uncut[index] if isinstance(self.uncut, Tensor) else self.uncut
        return Admitted(self.weights[index], self.norms[index], uncut)


@dataclass
class Door:
    """One logical step: let physical batches in, then release their noisy sum once.

    `max_grad_norm` bounds what one person can change in the sum; noise has the standard deviation
    `noise_multiplier * max_grad_norm` in each coordinate; the result is divided by the declared
    `expected_batch_size`, never by how many came. `charge` is called before noise is drawn, so that a
    crash may count a step too many but never one too few.

    Guarantees, whatever came before: every sample's weighted update is at most `max_grad_norm` long; a
    sample with a non-finite update adds exactly nothing; noise is added exactly once, also if nobody came.

    >>> from gnomon.clipping import Flat
    >>> from gnomon.release import SeededNoise
    >>> door = Door({"weight": torch.zeros(2)}, max_grad_norm=1.0, noise_multiplier=1.0,
    ...             expected_batch_size=10, noise=SeededNoise(0))
    >>> door.release()["weight"].shape  # nobody came: pure noise
    torch.Size([2])
    """

    like: Mapping[str, Tensor]
    """A tensor of the right shape, dtype and device for each name."""
    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float
    noise: NoiseSource
    charge: Callable[[], None] = lambda: None
    see: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None
    """Turns the exact sum into what is noised and released, in the shape of `like`. It maps zero to zero, and how far
    it can stretch a change is part of the accounting (`gnomon.accounting.Expansion`)."""
    _sum: dict[str, Tensor] = field(init=False, default_factory=dict)
    _open: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        validate.positive("max_grad_norm", self.max_grad_norm)
        validate.non_negative("noise_multiplier", self.noise_multiplier)
        validate.positive("expected_batch_size", self.expected_batch_size)
        if self.noise_multiplier > 0 and self._deviation < SMALLEST_DEVIATION:
            raise SettingError(
                "noise_multiplier * max_grad_norm",
                self._deviation,
                f"at least {SMALLEST_DEVIATION:g}: smaller noise is lost in rounding",
            )

    @property
    def _deviation(self) -> float:
        return self.noise_multiplier * self.max_grad_norm

    def admit(self, updates: Updates, rule: ClipRule, counts: Tensor | None = None) -> Admitted:
        """Add the clipped updates of a physical batch. What it returns is private.

        `counts` (B,) tells samples from rows that only fill the batch up: those weigh exactly zero.
        """
        if not self._open:
            raise RuntimeError("this step has been released; open a new one")
        admitted = admission(updates, rule, self.max_grad_norm)
        if counts is not None:
            admitted = admitted._replace(weights=torch.where(counts[:, None], admitted.weights, 0.0))
        weights = admitted.weights
        if len(updates):
            wide = weights if weights.shape[1] == admitted.norms.shape[1] else weights.squeeze(1)
            for name, part in updates.weighted_sum(wide).items():
                self._sum[name] = self._sum[name].add_(part) if name in self._sum else part
        return admitted

    def release(self) -> dict[str, Tensor]:
        """The noisy sum divided by the expected batch size, by parameter. Once only."""
        if not self._open:
            raise RuntimeError("this step has been released already; noise is drawn once a step")
        self._open = False
        self.charge()
        released = {}
        if self.see is not None and self._sum:
            self._sum = self.see(self._sum)
        for name, like in self.like.items():
            value = self._sum.pop(name) if name in self._sum else torch.zeros_like(like)
            flat = value.contiguous().view(-1)
            if self._deviation > 0:
                for part in flat.split(CHUNK):
                    part.copy_(noised(part, self._deviation, self.noise))
            released[name] = flat.div_(self.expected_batch_size).view(like.shape).to(like.dtype)
        return released


def admission(updates: Updates, rule: ClipRule, bound: float) -> Admitted:
    """How updates come through a door with this rule and bound. Private.

    >>> from gnomon.clipping import Flat
    >>> from gnomon.updates import Dense
    >>> updates = Updates({"w": Dense(torch.tensor([[3.0, 4.0]]))}, torch.zeros(1))
    >>> admission(updates, Flat(), 1.0).weights.round(decimals=3)
    tensor([[0.2000]], dtype=torch.float64)
    """
    norms, told = lengths(updates), for_losses(rule, updates.losses)
    return Admitted(bounded(told.weights(norms.clone(), bound), norms, bound), norms, uncut(told, norms))


def lengths(updates: Updates) -> Tensor:
    """Each sample's norm for each parameter, with room for rounding in the sum that follows.

    A sum in float32 errs by a few roundings of its largest terms. Where large terms of one sample cancel,
    that can be longer than the sample's update itself; counted here, clipping bounds it as well. For
    ordinary samples the addition is below 1e-5 of the norm.
    """
    rounding = SUM_ROUNDINGS * torch.finfo(updates.losses.dtype).eps
    return torch.hypot(updates.norms_by_parameter(), rounding * updates.ceilings_by_parameter())


def bounded(weights: Tensor, norms: Tensor, bound: float) -> Tensor:
    """The weights, lowered where a clip rule would let a sample through that is longer than the bound.

    Guarantee: `|(w_i1 n_i1, ...)| <= bound` up to rounding, and zero where anything is not finite.

    >>> norms = torch.tensor([[2.0], [float("nan")]], dtype=torch.float64)
    >>> bounded(torch.ones(2, 1), norms, 1.0)
    tensor([[0.5000],
            [0.0000]], dtype=torch.float64)
    """
    weights = weights.to(torch.float64)
    usable = torch.isfinite(norms).all(1, keepdim=True) & torch.isfinite(weights).all(1, keepdim=True)
    weights = torch.where(usable, weights, 0.0)
    length = total(weights.abs() * torch.where(usable, norms, 0.0))
    return torch.where(length > bound, weights * (bound / length), weights)


def noised(values: Tensor, deviation: float, noise: NoiseSource) -> Tensor:
    """The values plus normal noise, formed in float64 and rounded to a grid before any cast.

    >>> from gnomon.release import SeededNoise
    >>> noised(torch.zeros(2), 1.0, SeededNoise(0)).dtype
    torch.float64
    """
    exact = noise.normal(values.numel()).to(values.device).mul_(deviation).add_(values)
    # adding and taking away 1.5 * 2^52 grid steps rounds to the nearest of them
    grid = 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)
    shift = 1.5 * 2.0**52 * grid
    return exact.add_(shift).sub_(shift)
