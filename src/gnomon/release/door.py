"""The door: the only code that turns private numbers into public ones.

Everything that reaches the door is private, and everything that it releases may be published. It trusts no value that
an earlier stage computed: it measures norms itself and enforces the clip bound again. `Door` states the guarantees;
the functions below it are the four parts of the mechanism in the order in which they run: `lengths` measures, `bounded`
enforces the bound, `Updates.weighted_sum` adds up, `add_noise` adds noise and divides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon import validate
from gnomon.clipping import ClipRule
from gnomon.clipping.rules import surely_finite, total
from gnomon.errors import SettingError, StateError
from gnomon.randomness import CHUNK, NoiseSource
from gnomon.randomness.compiled import Kernel
from gnomon.updates import Updates

SMALLEST_DEVIATION = 1e-25
"""The smallest allowed standard deviation of the noise; below it, float32 would lose part of the noise to underflow."""

SUM_ROUNDINGS = 1000
"""The error that is allowed for in a sum over a batch, in roundings of its largest term."""

GRID_BITS = 20
"""Released sums lie on a grid whose spacing is between 2^-21 and 2^-20 standard deviations of the noise."""


class Admitted(NamedTuple):
    """The weights with which a batch was added to the sum. All of it is private.

    Attributes:
        weights: (B, 1) or (B, blocks), float64: the weight of each sample, or of each of its blocks.
        norms: (B, blocks), float64: the norms of the updates before they were weighted.
        unclipped_weights: the weights that samples have where the clip rule does not clip them.

    >>> Admitted(weights=torch.tensor([[0.5]]), norms=torch.tensor([[2.0]])).clipped
    tensor([True])
    """

    weights: Tensor
    norms: Tensor
    unclipped_weights: Tensor | float = 1.0

    @property
    def clipped(self) -> Tensor:
        """Whether each sample was clipped, (B,)."""
        return (self.weights < self.unclipped_weights).any(1)

    def select(self, index: Tensor) -> Admitted:
        """Return the entries of the samples at these positions."""
        unclipped = self.unclipped_weights
        return Admitted(
            self.weights[index], self.norms[index], unclipped[index] if isinstance(unclipped, Tensor) else unclipped
        )


@dataclass
class Door:
    """The release of one logical step: admit any number of physical batches, then release their noisy sum once.

    Formal guarantees, for any updates and any clip rule that weighs each sample by itself:

    1. Sensitivity: each sample adds a vector of length at most `max_grad_norm` to the sum, in the coordinates in which
       it is clipped. The measured length includes an allowance for rounding in the sum (`lengths`). `sketch` may
       change that length; the accounting then has to include its expansion (`gnomon.accounting.Expansion`).
    2. Bad samples: a sample with a NaN or an infinity in its norms or weights adds exactly zero, and so does a row that
       `counts` marks as padding.
    3. Noise: each coordinate gets independent normal noise of standard deviation `noise_multiplier * max_grad_norm`,
       exactly once, also if no sample was admitted. Sum and noise are added in float64 and rounded to a grid that
       does not depend on the data.
    4. Divisor: the noisy sum is divided by the declared `expected_batch_size`, never by the number of samples.
    5. Charge: `charge` is called once, before any noise is drawn. If it raises, nothing is released. A crash may
       therefore count a step too many, but never a step too few.
    6. A door releases at most once and admits nothing afterwards, also if the release failed.

    With `noise_multiplier = 0` the exact sum is released, which protects nothing.

    Args:
        like: a tensor with the shape, dtype and device of the release, for each name.
        max_grad_norm: the clip bound C.
        noise_multiplier: the standard deviation of the noise in units of C.
        expected_batch_size: the declared divisor.
        noise: the source of the noise.
        charge: records the spend; raises to refuse it.
        sketch: maps the exact sum to the vector that gets noise, in the shape of `like` (default: the sum itself). It
            must map zero to zero.

    >>> from gnomon.clipping import Flat
    >>> from gnomon.release import SeededNoise
    >>> door = Door({"weight": torch.zeros(2)}, max_grad_norm=1.0, noise_multiplier=1.0,
    ...             expected_batch_size=10, noise=SeededNoise(0))
    >>> door.release()["weight"].shape  # no sample was admitted: pure noise
    torch.Size([2])
    """

    like: Mapping[str, Tensor]
    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float
    noise: NoiseSource
    charge: Callable[[], None] = lambda: None
    sketch: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None
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
                f"at least {SMALLEST_DEVIATION:g}, because float32 loses smaller noise to underflow",
            )

    @property
    def _deviation(self) -> float:
        """The standard deviation of the noise in each coordinate of the sum."""
        return self.noise_multiplier * self.max_grad_norm

    def admit(self, updates: Updates, rule: ClipRule, counts: Tensor | None = None) -> Admitted:
        """Add the clipped updates of a physical batch to the sum.

        Args:
            updates: the updates in the coordinates in which they are clipped.
            rule: the clip rule. Its weights are lowered where they would exceed the bound.
            counts: (B,), bool: which rows are samples; the others are padding and get weight zero. Default: all.

        Returns:
            The weights and norms of the batch. They are private: do not publish them.

        Raises:
            StateError: the step was already released.
        """
        if not self._open:
            raise StateError("a batch cannot be admitted after the release: open a new Door for the next step")
        admitted = admission(updates, rule, self.max_grad_norm)
        if counts is not None and not bool(counts.all()):
            admitted = admitted._replace(weights=torch.where(counts[:, None], admitted.weights, 0.0))
        weights = admitted.weights
        if len(updates):
            by_block = weights.shape[1] == admitted.norms.shape[1]
            for name, part in updates.weighted_sum(weights if by_block else weights.squeeze(1)).items():
                self._sum[name] = self._sum[name].add_(part) if name in self._sum else part
        return admitted

    def release(self) -> dict[str, Tensor]:
        """Charge the step, add noise to the sum, and return it divided by the expected batch size.

        Returns:
            The release by name, in the shapes and dtypes of `like`. It may be published.

        Raises:
            StateError: the step was already released.
        """
        if not self._open:
            raise StateError("the step was already released, and noise is drawn once per step: open a new Door")
        self._open = False  # before anything can fail: a second attempt would draw a second noise for the same sum
        self.charge()
        if self.sketch is not None and self._sum:
            self._sum = self.sketch(self._sum)
        released = {}
        for name, like in self.like.items():
            exact = self._sum.pop(name) if name in self._sum else torch.zeros_like(like)
            flat = exact.contiguous().view(-1)
            if self._deviation > 0:
                for part in flat.split(CHUNK):  # so that working in float64 stays in the processor's cache
                    add_noise(part, self._deviation, self.noise, self.expected_batch_size)
            else:
                flat.div_(self.expected_batch_size)
            released[name] = flat.view(like.shape).to(like.dtype)
        return released


def admission(updates: Updates, rule: ClipRule, bound: float) -> Admitted:
    """Return the weights and norms with which a door with this clip bound would admit the updates. Private.

    The rule gets a copy of the norms, so that a rule that writes to them cannot weaken the bound.

    >>> from gnomon.clipping import Flat
    >>> from gnomon.updates import Dense
    >>> updates = Updates({"w": Dense(torch.tensor([[3.0, 4.0]]))}, torch.zeros(1))
    >>> admission(updates, Flat(), 1.0).weights.round(decimals=3)
    tensor([[0.2000]], dtype=torch.float64)
    """
    norms, rule = lengths(updates), rule.for_losses(updates.losses)
    return Admitted(bounded(rule.weights(norms.clone(), bound), norms, bound), norms, rule.unclipped_weights(norms))


def lengths(updates: Updates) -> Tensor:
    """Return the norm of each block of each update, (B, blocks), plus an allowance for rounding in the sum.

    A float32 sum errs by a few roundings of its largest terms. Where large terms of one sample cancel, that error can
    be longer than the sample's update itself. Because it is part of the length here, clipping bounds it as well. For
    ordinary samples the allowance is below 1e-5 of the norm.
    """
    rounding = SUM_ROUNDINGS * torch.finfo(updates.losses.dtype).eps
    norms, ceilings = updates.norms_and_ceilings()
    return torch.hypot(norms, rounding * ceilings)


def bounded(weights: Tensor, norms: Tensor, bound: float) -> Tensor:
    """Return the weights, lowered for each sample that would exceed the bound.

    Guarantee: `|(w_i1 n_i1, w_i2 n_i2, ...)| <= bound` up to rounding in float64 for every sample i, and exactly zero
    for a sample with a weight or norm that is not finite.

    >>> norms = torch.tensor([[2.0], [float("nan")]], dtype=torch.float64)
    >>> bounded(torch.ones(2, 1), norms, 1.0)
    tensor([[0.5000],
            [0.0000]], dtype=torch.float64)
    """
    weights = weights.to(torch.float64)
    if weights.dim() == 2 and len(weights) == len(norms) and surely_finite(weights) and surely_finite(norms):
        length = total(weights.abs() * norms)
        return torch.where(length > bound, weights * (bound / length), weights)
    usable = torch.isfinite(norms).all(1, keepdim=True) & torch.isfinite(weights).all(1, keepdim=True)
    weights = torch.where(usable, weights, 0.0)
    length = total(weights.abs() * torch.where(usable, norms, 0.0))
    return torch.where(length > bound, weights * (bound / length), weights)


def add_noise(values: Tensor, deviation: float, noise: NoiseSource, divisor: float) -> None:
    """Replace the values by (values + noise) / divisor, added in float64 and rounded to a grid before any cast.

    The spacing of the grid depends on the deviation alone, so the low-order bits of a release carry nothing about the
    data. The order of the roundings is that of `noise_loop` in all cases.

    >>> from gnomon.release import SeededNoise
    >>> values = torch.zeros(2)
    >>> add_noise(values, 1.0, SeededNoise(0), 10.0)
    >>> bool((values != 0).all())
    True
    """
    drawn = noise.normal(values.numel())
    # float64 has 52 bits of mantissa: adding and subtracting 1.5 * 2^52 grid spacings rounds to a multiple of one
    grid = 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)
    shift = 1.5 * 2.0**52 * grid
    on_cpu = values.device.type == drawn.device.type == "cpu"
    if on_cpu and (values.dtype, drawn.dtype, drawn.shape) == (torch.float32, torch.float64, values.shape):
        compiled = KERNEL.after(values.numel())
        if compiled is not None:
            compiled(drawn.contiguous().numpy(), values.numpy(), deviation, shift, divisor)
            return
    if values.is_cuda:  # not tested: the tests run without a GPU
        drawn = drawn.pin_memory()  # torch keeps pinned memory until a copy that does not block has read it
    drawn = drawn.to(values.device, non_blocking=values.is_cuda)
    values.copy_(drawn.mul_(deviation).add_(values).add_(shift).sub_(shift)).div_(divisor)


def noise_loop(
    drawn: NDArray[np.float64], values: NDArray[np.float32], deviation: float, shift: float, divisor: float
) -> None:
    """Add the noise in one pass over the values. Compiled, it takes a sixth of the time of six passes in torch."""
    narrow = np.float32(divisor)
    for j in range(len(values)):
        exact = drawn[j] * deviation + np.float64(values[j])
        values[j] = np.float32((exact + shift) - shift) / narrow


def _agrees(compiled: Callable[..., None]) -> bool:
    """Return whether the compiled loop is identical to the bit, also in the bits that rounding to the grid hides."""
    drawn = np.random.default_rng(0).standard_normal(512)
    values = np.random.default_rng(1).standard_normal(512).astype(np.float32)
    results = []
    for run in (compiled, noise_loop):
        for shift in (0.0, 1.5 * 2.0**32):
            results.append(values.copy())
            run(drawn, results[-1], 1.3, shift, 333.3)
    return all(np.array_equal(one, other) for one, other in zip(results[:2], results[2:], strict=True))


KERNEL = Kernel(noise_loop, "void(float64[::1], float32[::1], float64, float64, float64)", _agrees)
"""The compiled form of `noise_loop`."""
