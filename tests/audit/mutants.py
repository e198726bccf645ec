"""Planted bugs, each of which has broken the privacy of real implementations."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from gnomon.audit.target import ZeroNoise
from gnomon.randomness.keystream import Keystream
from gnomon.release import Admitted, Door, NoiseSource, SecureNoise
from gnomon.release.door import GRID_BITS
from gnomon.subspaces import Embedding, RandomMask
from gnomon.subspaces.random_mask import MaskBasis
from gnomon.subspaces.random_projection import FourierBasis
from gnomon.training import Trainer
from gnomon.updates import Dense, Updates, gradients


class NoClipping(Door):
    """Samples are not clipped."""

    def admit(self, updates, rule, counts=None):
        weights = torch.ones(len(updates), 1, dtype=torch.float64)
        weights[~torch.isfinite(updates.norms())] = 0
        weights *= 1.0 if counts is None else counts[:, None]
        if len(updates):
            for name, part in updates.weighted_sum(weights.squeeze(1)).items():
                self._sum[name] = self._sum[name] + part if name in self._sum else part
        return Admitted(weights, updates.norms_by_parameter())


class BatchClipped(NoClipping):
    """The sum of the batch is clipped instead of each sample."""

    def release(self):
        if self._sum:
            length = sum(float(value.double().square().sum()) for value in self._sum.values()) ** 0.5
            for value in self._sum.values():
                value.mul_(min(1.0, self.max_grad_norm / max(length, 1e-12)))
        return super().release()


class LessNoise(Door):
    """Half of the declared noise."""

    factor = 0.5

    def release(self):
        self.noise_multiplier *= self.factor
        return super().release()


class NoiseFivePercentLow(LessNoise):
    factor = 0.95


class NoiseOnePercentLow(LessNoise):
    factor = 0.99


class RepeatedNoise:
    """A noise source that repeats the draws of an earlier step, or the first draw of a step for every parameter."""

    private = True

    def __init__(self, inner, known: list[Tensor], within: bool = False) -> None:
        self._inner, self._known, self._within, self._next = inner, known, within, 0

    def normal(self, count: int) -> Tensor:
        if self._next == len(self._known):
            self._known.append(self._inner.normal(count))
        drawn = self._known[self._next]
        self._next += 0 if self._within else 1
        return drawn[:count].clone()

    def uniform(self, count: int) -> Tensor:
        return self._inner.uniform(count)


class NoiseReused(Door):
    """The noise of the first step is used in all steps."""

    known: ClassVar[list[Tensor]] = []

    def release(self):
        if not isinstance(self.noise, ZeroNoise):
            self.noise = RepeatedNoise(self.noise, self.known)
        return super().release()


class NoiseReusedLater(Door):
    """The noise of the first step is used once more in a later step, on a different data set."""

    known: ClassVar[list[Tensor]] = []
    steps: ClassVar[list[int]] = []

    def release(self):
        if not isinstance(self.noise, ZeroNoise):
            self.steps.append(1)
            if len(self.steps) in (1, 15):
                self.noise = RepeatedNoise(self.noise, self.known)
        return super().release()


class NoiseReusedNow(Door):
    """One draw is used for all parameters of a step."""

    def release(self):
        self.noise = RepeatedNoise(self.noise, [], within=True)
        return super().release()


class NoNoiseOnEmptyBatches(Door):
    """No noise is added to an empty batch."""

    came = 0

    def admit(self, updates, rule, counts=None):
        self.came += int(counts.sum())
        return super().admit(updates, rule, counts)

    def release(self):
        if not self.came:
            self.noise_multiplier = 0.0
        return super().release()


class OneTensorWithLittleNoise(Door):
    """The last parameter tensor receives 80 % of the declared noise."""

    kept = 0.8

    def release(self):
        last = list(self.like)[-1]
        bare = self._sum[last].clone() if last in self._sum else torch.zeros_like(self.like[last])
        released = super().release()
        bare = bare.div(self.expected_batch_size).view(released[last].shape)
        return released | {last: bare + self.kept * (released[last] - bare)}


class OneTensorWithoutNoise(OneTensorWithLittleNoise):
    kept = 0.0


class NoiseDividedUnderAccumulation(Door):
    """The noise is divided by the number of physical batches."""

    batches = 0

    def admit(self, updates, rule, counts=None):
        self.batches += 1
        return super().admit(updates, rule, counts)

    def release(self):
        self.noise_multiplier /= max(1, self.batches)
        return super().release()


class WeightsOfTheFirstBatch(Door):
    """The clip weights of the first physical batch are used for all physical batches."""

    first: Tensor | None = None

    def admit(self, updates, rule, counts=None):
        if self.first is None:
            admitted = super().admit(updates, rule, counts)
            self.first = admitted.weights
            return admitted
        weights = self.first[torch.arange(len(updates)) % max(1, len(self.first))]
        weights = weights if counts is None else weights * counts[:, None]
        for name, part in updates.weighted_sum(weights if weights.shape[1] > 1 else weights.squeeze(1)).items():
            self._sum[name] += part
        return Admitted(weights, updates.norms_by_parameter())


class NonFiniteCounts(Door):
    """A sample with a non-finite update is included in the sum."""

    def admit(self, updates, rule, counts=None):
        admitted = super().admit(updates, rule, counts)
        broken = (~torch.isfinite(updates.norms()) & counts).nonzero().flatten()
        if len(broken):
            for name, part in updates.select(broken).weighted_sum(torch.ones(len(broken))).items():
                self._sum[name] = self._sum[name] + part
        return admitted


class NonFiniteRepaired(Door):
    """Non-finite values are replaced by finite values, and the sample is included in the sum."""

    def admit(self, updates, rule, counts=None):
        repaired = {name: Dense(torch.nan_to_num(leaf.dense())) for name, leaf in updates.leaves.items()}
        return super().admit(Updates(repaired, updates.losses), rule, counts)


class OneKeystream(Keystream):
    """Every keystream of the process has the same key and starts at the same block."""

    seed = os.urandom(32)

    def _entropy(self) -> bytes:
        return self.seed


class OneKey(SecureNoise):
    """All sources of a process use the same key."""

    _keystream = OneKeystream


class Cut(SecureNoise):
    """Noise is truncated at `end` standard deviations."""

    end = 3.0

    def normal(self, count: int) -> Tensor:
        return super().normal(count).clamp_(-self.end, self.end)


def cut_at(end: float) -> type[Cut]:
    return type(f"CutAt{end:g}", (Cut,), {"end": end})


class CutByDrawingAgain(Cut):
    """Noise is truncated by drawing values beyond `end` again."""

    def normal(self, count: int) -> Tensor:
        drawn = SecureNoise.normal(self, count)
        while bool((far := drawn.abs() > self.end).any()):
            drawn[far] = SecureNoise.normal(self, int(far.sum()))
        return drawn


def without_grid(values: Tensor, deviation: float, noise, divisor: float) -> None:
    """Add noise without rounding the sum to the grid."""
    values.copy_(noise.normal(values.numel()).mul_(deviation).add_(values)).div_(divisor)


def in_float32(values: Tensor, deviation: float, noise, divisor: float) -> None:
    """Add noise in float32, and round the sum to the grid afterwards."""
    exact = noise.normal(values.numel()).float().mul_(deviation).add_(values).double()
    grid = 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)
    values.copy_(exact.div_(grid).round_().mul_(grid)).div_(divisor)


def in_float32_without_grid(values: Tensor, deviation: float, noise, divisor: float) -> None:
    values.copy_(noise.normal(values.numel()).float().mul_(deviation).add_(values).double()).div_(divisor)


class ProjectorFromPrivateData(Trainer):
    """The basis is computed from private records as well as public ones."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        honest = self.engine._current_basis
        self.engine._current_basis = lambda: self._planted(honest())

    def _admit(self, train):
        loader = super()._admit(train)
        self._seen = loader.take(torch.arange(len(loader)))
        return loader

    def _planted(self, honest):
        frozen = self.method.subspace
        inner = frozen.inner
        if inner.public is not None:
            space = inner.space if isinstance(inner, Embedding) else inner
            # five copies of each private record beside the public ones
            inputs, targets = (torch.cat([a, *[b] * 5]) for a, b in zip(space.public, self._seen, strict=True))
            public = inputs, targets
            space = dataclasses.replace(space, public=public)
            inner = dataclasses.replace(inner, space=space) if isinstance(inner, Embedding) else space
            return dataclasses.replace(frozen, inner=inner).basis(self.engine.context())
        ones = torch.ones(len(self._seen[0]))
        total = gradients(self.model, self.loss, *self._seen).weighted_sum(ones)
        if isinstance(inner, RandomMask):
            masks = {name: (value.abs() >= value.abs().median()).to(value) for name, value in total.items()}
            return MaskBasis(honest.like, masks)
        flat = torch.cat([value.flatten() for value in total.values()])
        return FourierBasis(total, torch.where(flat < 0, -1.0, 1.0), honest._chosen)


class HandMadeBatchNorm(nn.Module):
    """Batch normalisation that a check of module types does not recognise."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


DOORS: dict[str, tuple[type[Door], str]] = {
    "no clipping": (NoClipping, "S one record"),
    "batch instead of samples clipped": (BatchClipped, "S one record"),
    "half noise": (LessNoise, "W all: upper bound on the deviation"),
    "noise 5 % low": (NoiseFivePercentLow, "W all: upper bound on the deviation"),
    "noise reused": (NoiseReused, "W all: cosine of two steps"),
    "noise reused later": (NoiseReusedLater, "W all: cosine of two steps"),
    "noise not added on empty batches": (NoNoiseOnEmptyBatches, "W empty: deviation"),
    "one tensor without noise": (OneTensorWithoutNoise, "deviation of each coordinate"),
    "noise divided under accumulation": (NoiseDividedUnderAccumulation, "W canaries: deviation"),
    "weights of the first physical batch": (WeightsOfTheFirstBatch, "together and alone"),
    "non-finite samples count": (NonFiniteCounts, "S non-finite record alone"),
}
"""Bugs of the release, and the finding that each must cause."""

REPAIRED = NonFiniteRepaired, "S non-finite record alone"
"""Detected only where samples are clipped in all parameters: in a subspace all coordinates become non-finite."""

NOISES: dict[str, tuple[type[SecureNoise], int, str]] = {
    "one key": (OneKey, 2**14, "W sources: cosine"),
    "noise cut at 3": (cut_at(3.0), 2**16, "W release: draws beyond 3 deviations"),
    "noise cut at 3.5": (cut_at(3.5), 2**17, "W release: draws beyond 3.5 deviations"),
    "noise cut at 4": (cut_at(4.0), 2**19, "W release: draws beyond 4 deviations"),
    "noise cut at 4.5": (cut_at(4.5), 2**22, "W release: draws beyond 4.5 deviations"),
    "noise drawn again beyond 3": (CutByDrawingAgain, 2**16, "W release: draws beyond 3 deviations"),
}
"""Bugs of the noise source, the number of draws that detect each, and the finding that it must cause."""

FORMS: dict[str, tuple[Callable[[Tensor, float, NoiseSource, float], None], str]] = {
    "no grid": (without_grid, "W release: values off the grid"),
    "noise in float32": (in_float32, "W release: even multiples of the grid"),
    "noise in float32, no grid": (in_float32_without_grid, "W release: values off the grid"),
}
"""Bugs in the rounding of the noisy sum, and the finding that each must cause."""
