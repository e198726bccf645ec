"""Planted bugs: each a way in which real code has lost its privacy."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import ClassVar

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor, nn

from gnomon.audit.target import NoNoise
from gnomon.randomness import BYTES_PER_KEY, _forks
from gnomon.release import Admitted, Door, NoiseSource, SecureNoise
from gnomon.release.door import GRID_BITS
from gnomon.subspaces import Embedding, RandomMask
from gnomon.subspaces.random_mask import MaskBasis
from gnomon.subspaces.random_projection import FourierBasis
from gnomon.training import Trainer
from gnomon.updates import Dense, Updates, gradients


class NoClipping(Door):
    """Every sample counts in full."""

    def admit(self, updates, rule, counts=None):
        weights = torch.ones(len(updates), 1, dtype=torch.float64)
        weights[~torch.isfinite(updates.norms())] = 0
        weights *= 1.0 if counts is None else counts[:, None]
        if len(updates):
            for name, part in updates.weighted_sum(weights.squeeze(1)).items():
                self._sum[name] = self._sum[name] + part if name in self._sum else part
        return Admitted(weights, updates.norms_by_parameter())


class BatchClipped(NoClipping):
    """The sum is clipped instead of the samples."""

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


class Remembering:
    """Hands out the draws of an earlier step again, or the first draw of this one for every parameter."""

    private = True

    def __init__(self, inner, known: list[Tensor], within: bool = False) -> None:
        self._inner, self._known, self._within, self._next = inner, known, within, 0

    def normal(self, count: int) -> Tensor:
        if self._next == len(self._known):
            self._known.append(self._inner.normal(count))
        found = self._known[self._next]
        self._next += 0 if self._within else 1
        return found[:count].clone()

    def uniform(self, count: int) -> Tensor:
        return self._inner.uniform(count)


class NoiseReused(Door):
    """The first draw serves all steps."""

    known: ClassVar[list[Tensor]] = []

    def release(self):
        if not isinstance(self.noise, NoNoise):
            self.noise = Remembering(self.noise, self.known)
        return super().release()


class NoiseReusedLater(Door):
    """The draw of the first step serves one step more, on another data set."""

    known: ClassVar[list[Tensor]] = []
    steps: ClassVar[list[int]] = []

    def release(self):
        if not isinstance(self.noise, NoNoise):
            self.steps.append(1)
            if len(self.steps) in (1, 15):
                self.noise = Remembering(self.noise, self.known)
        return super().release()


class NoiseReusedNow(Door):
    """One draw serves all parameters of a step."""

    def release(self):
        self.noise = Remembering(self.noise, [], within=True)
        return super().release()


class NoNoiseOnEmptyBatches(Door):
    """A step that nobody takes part in is not noised."""

    came = 0

    def admit(self, updates, rule, counts=None):
        self.came += int(counts.sum())
        return super().admit(updates, rule, counts)

    def release(self):
        if not self.came:
            self.noise_multiplier = 0.0
        return super().release()


class OneTensorWithLittleNoise(Door):
    """The last tensor gets four fifths of its noise."""

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
    """Each physical batch brings its share of noise, but the shares are too small."""

    batches = 0

    def admit(self, updates, rule, counts=None):
        self.batches += 1
        return super().admit(updates, rule, counts)

    def release(self):
        self.noise_multiplier /= max(1, self.batches)
        return super().release()


class WeightsOfTheFirstBatch(Door):
    """The clip weights of the first physical batch serve all of them."""

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
    """A sample whose update is not finite has a weight all the same."""

    def admit(self, updates, rule, counts=None):
        admitted = super().admit(updates, rule, counts)
        broken = (~torch.isfinite(updates.norms()) & counts).nonzero().flatten()
        if len(broken):
            for name, part in updates.select(broken).weighted_sum(torch.ones(len(broken))).items():
                self._sum[name] = self._sum[name] + part
        return admitted


class NonFiniteRepaired(Door):
    """Numbers that are not finite become finite ones, and the sample counts."""

    def admit(self, updates, rule, counts=None):
        repaired = {name: Dense(torch.nan_to_num(leaf.dense())) for name, leaf in updates.leaves.items()}
        return super().admit(Updates(repaired, updates.losses), rule, counts)


class OneKey(SecureNoise):
    """One key serves all sources of a process."""

    seed = os.urandom(48)

    def _words(self, count: int) -> Tensor:
        if self._left == 0:
            key, nonce = self.seed[:32], bytes(4) + self.seed[32:44]
            self._stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
            self._process, self._left = (os.getpid(), _forks[0]), BYTES_PER_KEY
        return super()._words(count)


class Cut(SecureNoise):
    """Noise ends at so many deviations."""

    end = 3.0

    def normal(self, count: int) -> Tensor:
        return super().normal(count).clamp_(-self.end, self.end)


def cut_at(end: float) -> type[Cut]:
    return type(f"CutAt{end:g}", (Cut,), {"end": end})


class CutByDrawingAgain(Cut):
    """Draws beyond the end are drawn again instead of being moved there."""

    def normal(self, count: int) -> Tensor:
        drawn = SecureNoise.normal(self, count)
        while bool((far := drawn.abs() > self.end).any()):
            drawn[far] = SecureNoise.normal(self, int(far.sum()))
        return drawn


def without_grid(values: Tensor, deviation: float, noise) -> Tensor:
    """The noisy sum as it is, unrounded."""
    return noise.normal(values.numel()).mul_(deviation).add_(values)


def in_float32(values: Tensor, deviation: float, noise) -> Tensor:
    """Noise and sum meet in float32; the grid comes after."""
    exact = noise.normal(values.numel()).float().mul_(deviation).add_(values).double()
    grid = 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)
    return exact.div_(grid).round_().mul_(grid)


def in_float32_without_grid(values: Tensor, deviation: float, noise) -> Tensor:
    return noise.normal(values.numel()).float().mul_(deviation).add_(values).double()


class ProjectorFromPrivateData(Trainer):
    """Private records are among those that the basis is made of."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        honest = self.engine._basis_now
        self.engine._basis_now = lambda: self._planted(honest())

    def _loader(self, train):
        loader = super()._loader(train)
        self._seen = loader.take(torch.arange(len(loader)))
        return loader

    def _planted(self, honest):
        still = self.method.subspace
        inner = still.inner
        if inner.public is not None:
            space = inner.space if isinstance(inner, Embedding) else inner
            # five copies of each private record beside the public ones
            inputs, targets = (torch.cat([a, *[b] * 5]) for a, b in zip(space.public, self._seen, strict=True))
            public = inputs, targets
            space = dataclasses.replace(space, public=public)
            inner = dataclasses.replace(inner, space=space) if isinstance(inner, Embedding) else space
            return dataclasses.replace(still, inner=inner).basis(self.engine.context())
        ones = torch.ones(len(self._seen[0]))
        total = gradients(self.model, self.loss, *self._seen).weighted_sum(ones)
        if isinstance(inner, RandomMask):
            masks = {name: (value.abs() >= value.abs().median()).to(value) for name, value in total.items()}
            return MaskBasis(honest.like, masks)
        flat = torch.cat([value.flatten() for value in total.values()])
        return FourierBasis(total, torch.where(flat < 0, -1.0, 1.0), honest._chosen)


class HandMadeBatchNorm(nn.Module):
    """Batch norm that no list of module types knows."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


DOORS: dict[str, tuple[type[Door], str]] = {
    "no clipping": (NoClipping, "S one record"),
    "batch instead of samples clipped": (BatchClipped, "S one record"),
    "half noise": (LessNoise, "W all: deviation"),
    "noise 5 % low": (NoiseFivePercentLow, "W all: deviation"),
    "noise reused": (NoiseReused, "W all: likeness of two steps"),
    "noise reused later": (NoiseReusedLater, "W all: likeness of two steps"),
    "noise not added on empty batches": (NoNoiseOnEmptyBatches, "W nobody: deviation"),
    "one tensor without noise": (OneTensorWithoutNoise, "deviation of each coordinate"),
    "noise divided under accumulation": (NoiseDividedUnderAccumulation, "W canaries: deviation"),
    "weights of the first physical batch": (WeightsOfTheFirstBatch, "together and alone"),
    "non-finite samples count": (NonFiniteCounts, "S non-finite record alone"),
}
"""Each bug of the release, and the finding that must name it."""

REPAIRED = NonFiniteRepaired, "S non-finite record alone"
"""Shows where samples are clipped in all parameters: in a subspace each coordinate of a broken sample is broken."""

NOISES: dict[str, tuple[type[SecureNoise], int, str]] = {
    "one key": (OneKey, 2**14, "W sources: likeness"),
    "noise cut at 3": (cut_at(3.0), 2**16, "W door: draws beyond 3 deviations"),
    "noise cut at 3.5": (cut_at(3.5), 2**17, "W door: draws beyond 3.5 deviations"),
    "noise cut at 4": (cut_at(4.0), 2**19, "W door: draws beyond 4 deviations"),
    "noise cut at 4.5": (cut_at(4.5), 2**22, "W door: draws beyond 4.5 deviations"),
    "noise drawn again beyond 3": (CutByDrawingAgain, 2**16, "W door: draws beyond 3 deviations"),
}
"""Each bug of the source of noise, how many draws show it, and the finding that must name it."""

FORMS: dict[str, tuple[Callable[[Tensor, float, NoiseSource], Tensor], str]] = {
    "no grid": (without_grid, "W door: values off the grid"),
    "noise in float32": (in_float32, "W door: even multiples of the grid"),
    "noise in float32, no grid": (in_float32_without_grid, "W door: values off the grid"),
}
"""Each way to form a noisy sum that shows its last bits, and the finding that must name it."""
