"""The target of an audit: copies of a Trainer whose releases are read from the change of the weights."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from gnomon.accounting import FullBatch, Poisson, Sampling
from gnomon.audit.attack_data import Batch
from gnomon.audit.claim import Claim
from gnomon.audit.whitening import FrozenSubspace, Whitening
from gnomon.errors import SettingError
from gnomon.methods import Method
from gnomon.methods.steps import Descent
from gnomon.release import NoiseSource, SecureNoise, SeededNoise
from gnomon.subspaces import StepContext
from gnomon.training import Trainer

EMPTY_BATCH_RATE = 1e-12
"""A sampling rate so low that every batch is empty."""


class Target(Protocol):
    """Anything that releases noisy sums, such as a Trainer or a federated server."""

    @property
    def claim(self) -> Claim:
        """The privacy claim under audit."""

    @property
    def whitening(self) -> Whitening:
        """The map to coordinates in which the noise is white."""

    def releases(self, data: Batch | None, count: int, *, noisy: bool = True, physical_batches: int = 1) -> Tensor:
        """Return the released sums of `count` steps on a data set, (count, p), float64, in units of the clip bound.

        Args:
            data: the data set; None for an empty batch.
            count: the number of steps, each from the same weights.
            noisy: whether noise is added.
            physical_batches: the number of physical batches into which the data set is split.
        """


class ZeroNoise:
    """A noise source whose normals are zero; uniform draws come from another source."""

    private = False

    def __init__(self, noise: NoiseSource) -> None:
        self._noise = noise

    def normal(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)

    def uniform(self, count: int) -> Tensor:
        return self._noise.uniform(count)


class ReleaseReader(torch.optim.SGD):
    """Plain SGD with learning rate 1 that measures the change of the weights without rounding.

    A float32 weight rounds away a change that is small relative to it. Where a weight changed by its gradients, up to
    rounding, the sum of the gradients is the exact change; elsewhere other code changed the weight as well, and the
    difference of the weights is measured.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> reader = ReleaseReader([weight])
    >>> reader.start()
    >>> weight.grad = torch.tensor([1.23456e-6])
    >>> reader.step()
    >>> f"{float(reader.read_and_reset()):.5e}", weight.item()
    ('1.23456e-06', 1.0)
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=1.0)
        self._parameters = parameters

    def start(self) -> None:
        """Start a measurement from the current weights."""
        self._start = [p.detach().clone() for p in self._parameters]
        self._gradients = [torch.zeros_like(p, dtype=torch.float64) for p in self._parameters]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the weights and add up their gradients."""
        for p, total in zip(self._parameters, self._gradients, strict=True):
            if p.grad is not None:
                total.add_(p.grad)
        super().step(closure)

    @torch.no_grad()
    def read_and_reset(self) -> Tensor:
        """Return minus the change of all weights since the start, (p,), float64, and restore the weights."""
        changes = []
        for p, start, total in zip(self._parameters, self._start, self._gradients, strict=True):
            difference = start.double() - p.double()
            rounding = torch.finfo(p.dtype).eps * torch.maximum(start.abs(), p.abs()).double()
            changes.append(torch.where((difference - total).abs() <= rounding, total, difference).flatten().cpu())
            p.copy_(start)
        return torch.cat(changes)


def without_dropout(model: nn.Module) -> tuple[nn.Module, bool]:
    """Return a copy of a model that draws no random masks in training, and whether the model itself draws any.

    Only the dropout probabilities change: the modules stay in training mode, so nothing else changes.

    >>> deterministic, random = without_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    >>> deterministic[1].p, deterministic[1].training, random
    (0.0, True, True)
    """
    deterministic, random = copy.deepcopy(model), False
    for module in deterministic.modules():
        name = "p" if isinstance(module, _DropoutNd) else "dropout"
        if isinstance(getattr(module, name, None), float) and getattr(module, name) > 0:
            setattr(module, name, 0.0)
            random = True
        if isinstance(module, nn.RReLU):
            module.lower = module.upper = (module.lower + module.upper) / 2
            random = True
    return deterministic, random


def _with_plain_step(method: Method) -> Method:
    """Return the method with a step from which the release can be read; the original step is post-processing."""
    if method.route.expansion(method.subspace) is not None:
        raise SettingError.with_message(
            f"{method.describe()} cannot be audited: the sensitivity of a sketched sum is bounded in distribution over "
            "the sketches, not in every step. Audit a method that adds noise directly after clipping",
            name="method",
        )
    return dataclasses.replace(method, step=Descent(), average=False, full_batch=False)


class TrainerTarget:
    """Copies of a Trainer, each on a data set of the auditor's choice. The Trainer itself makes no step.

    A copy has the same class, model, loss, method, clip bound, divisor and noise source. Its optimizer is plain SGD
    with learning rate 1, so `-(change of the weights) * divisor` is the released sum, measured by `ReleaseReader`. The
    weights are restored after each step. Dropout is switched off in the copies.

    Args:
        trainer: the Trainer under audit.
        example: one arbitrary record, for steps with empty batches.

    Raises:
        SettingError: the method sketches the clipped sum before noise is added.

    >>> from gnomon.audit import Probe, probe_loss
    >>> model = Probe(4)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10, progress=False)
    >>> record = torch.tensor([[0.0, 30.0, 40.0, 0.0]]), torch.zeros(1)
    >>> TrainerTarget(trainer, record).releases(record, 1, noisy=False).round(decimals=3)
    tensor([[0.0000, 0.6000, 0.8000, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, trainer: Trainer, example: Batch) -> None:
        self.trainer, self.example, self.claim = trainer, example, Claim.of(trainer)
        mechanism, self.method = trainer.mechanism, _with_plain_step(trainer.method)
        if not self.method.subspace.whole_space:  # which is the same at every step
            frozen = FrozenSubspace(
                self.method.subspace, mechanism.last_step - 1, mechanism.steps_per_epoch, mechanism.steps
            )
            self.method = dataclasses.replace(self.method, subspace=frozen)
        self.model, self.dropout = without_dropout(trainer.model)
        context = StepContext(self.model, trainer.loss, 0, mechanism.steps_per_epoch, mechanism.steps, SeededNoise(0))
        self.whitening = Whitening(self.method, context)

    def releases(self, data: Batch | None, count: int, *, noisy: bool = True, physical_batches: int = 1) -> Tensor:
        return torch.stack(list(self.each(data, count, noisy=noisy, physical_batches=physical_batches)))

    def each(
        self, data: Batch | None, count: int, *, noisy: bool = True, physical_batches: int = 1
    ) -> Iterator[Tensor]:
        """Yield the released sums of `releases` one step at a time, (p,)."""
        size = 1 if data is None else len(data[0])
        if physical_batches == 1:
            physical_size = self.trainer.sampling.max_physical_batch_size
        else:
            physical_size = max(1, -(-size // physical_batches))
        copied = self.copy(
            Poisson(EMPTY_BATCH_RATE) if data is None else FullBatch(),
            count,
            noise=self.trainer.noise if noisy else ZeroNoise(SecureNoise()),
            max_physical_batch_size=physical_size,
        )
        scale = copied.mechanism.expected_batch_size / copied.mechanism.max_grad_norm
        reader = copied.optimizer
        assert isinstance(reader, ReleaseReader)
        for inputs, targets in copied.batches(self.example if data is None else data):
            reader.start()
            copied.step(inputs, targets)
            yield reader.read_and_reset() * scale

    def copy(self, sampler: Sampling, steps: int, **settings: Any) -> Trainer:
        """Return a copy of the Trainer at its start, with another sampling scheme and length."""
        trainer, model = self.trainer, copy.deepcopy(self.model)
        mechanism = dataclasses.replace(
            trainer.mechanism,
            method=self.method,
            sampler=sampler,
            steps=steps,
            target_epsilon=None,
            adjacency=None,
            accountant="pld",
        )
        defaults: dict[str, Any] = {
            "mechanism": mechanism,
            "max_physical_batch_size": trainer.sampling.max_physical_batch_size,
            "noise": trainer.noise,
            "progress": False,
        }
        optimizer = ReleaseReader([p for p in model.parameters() if p.requires_grad])
        return type(trainer)(model, trainer.loss, optimizer, **(defaults | settings))
