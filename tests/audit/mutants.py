"""Planted bugs: each a way in which real code has lost its privacy."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from gnomon.audit.target import NoNoise
from gnomon.release import Admitted, Door
from gnomon.subspaces import Embedding, RandomMask
from gnomon.subspaces.random_mask import MaskBasis
from gnomon.subspaces.random_projection import FourierBasis
from gnomon.training import Trainer
from gnomon.updates import gradients


class NoClipping(Door):
    """Every sample counts in full."""

    def admit(self, updates, rule):
        weights = torch.ones(len(updates), 1, dtype=torch.float64)
        weights[~torch.isfinite(updates.norms())] = 0
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

    def admit(self, updates, rule):
        self.came += len(updates)
        return super().admit(updates, rule)

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

    def admit(self, updates, rule):
        self.batches += 1
        return super().admit(updates, rule)

    def release(self):
        self.noise_multiplier /= max(1, self.batches)
        return super().release()


class ProjectorFromPrivateData(Trainer):
    """Private records are among those that the basis is made of."""

    def _loader(self, train):
        loader = super()._loader(train)
        self._seen = loader.take(torch.arange(len(loader)))
        return loader

    def _basis_now(self):
        still = self.method.subspace
        honest = super()._basis_now()
        inner = still.inner
        if hasattr(inner, "public"):
            space = inner.space if isinstance(inner, Embedding) else inner
            # five copies of each private record beside the public ones
            inputs, targets = (torch.cat([a, *[b] * 5]) for a, b in zip(space.public, self._seen, strict=True))
            public = inputs, targets
            space = dataclasses.replace(space, public=public)
            inner = dataclasses.replace(inner, space=space) if isinstance(inner, Embedding) else space
            return dataclasses.replace(still, inner=inner).basis(self.moment())
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
}
"""Each bug of the release, and the finding that must name it."""
