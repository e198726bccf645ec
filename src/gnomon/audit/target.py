"""The Trainer under attack: gets data sets of the auditor's choice, and its releases are read from the weights."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gnomon.accounting import FullBatch, Poisson, Sampling
from gnomon.audit.bench import Batch
from gnomon.audit.claim import Claim
from gnomon.audit.observation import Observation, Still
from gnomon.audit.repeatable import without_dropout
from gnomon.errors import SettingError
from gnomon.methods import Method
from gnomon.methods.steps import Descent
from gnomon.release import NoiseSource, SecureNoise, SeededNoise
from gnomon.subspaces import Ambient, StepContext
from gnomon.training import Trainer

NEVER = 1e-12
"""A sample rate at which nobody comes."""


class Target(Protocol):
    """Anything that releases noisy sums. A Trainer is one; a federated server can be another."""

    @property
    def claim(self) -> Claim:
        """What is claimed for it."""

    @property
    def view(self) -> Observation:
        """The coordinates in which its noise is white."""

    def releases(self, data: Batch | None, count: int, *, noisy: bool = True, parts: int = 1) -> Tensor:
        """The sums of `count` steps on a data set, (count, p), float64, in units of the clip bound.

        None stands for a step that nobody takes part in. With `noisy=False` noise is off; `parts` is in how many
        physical batches the data set is cut.
        """


class NoNoise:
    """Zeros in the place of normals."""

    private = False

    def __init__(self, noise: NoiseSource) -> None:
        self._noise = noise

    def normal(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)

    def uniform(self, count: int) -> Tensor:
        return self._noise.uniform(count)


class Reader(torch.optim.SGD):
    """Plain SGD with learning rate 1 that says how far the weights went, with all digits.

    Weights in float32 swallow what is small beside them. Where they went where their gradients sent them, the
    gradients tell how far; where not, somebody else moved them, and the weights tell.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> reader = Reader([weight])
    >>> reader.start()
    >>> weight.grad = torch.tensor([1.23456e-6])
    >>> reader.step()
    >>> f"{float(reader.moved()):.5e}", weight.item()
    ('1.23456e-06', 1.0)
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=1.0)
        self._parameters = parameters

    def start(self) -> None:
        """From here on."""
        self._before = [p.detach().clone() for p in self._parameters]
        self._told = [torch.zeros_like(p, dtype=torch.float64) for p in self._parameters]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Moves the weights."""
        for p, told in zip(self._parameters, self._told, strict=True):
            if p.grad is not None:
                told.add_(p.grad)
        super().step(closure)

    @torch.no_grad()
    def moved(self) -> Tensor:
        """Minus the change of all weights since the start, (p,), float64, and puts them back."""
        found = []
        for p, old, told in zip(self._parameters, self._before, self._told, strict=True):
            seen = old.double() - p.double()
            rounding = torch.finfo(p.dtype).eps * torch.maximum(old.abs(), p.abs()).double()
            found.append(torch.where((seen - told).abs() <= rounding, told, seen).flatten().cpu())
            p.copy_(old)
        return torch.cat(found)


def _plainly_moved(method: Method) -> Method:
    """The method with a step from which the release can be read: how a release moves the model is post-processing."""
    if method.route.expansion(method.subspace) is not None:
        allowed = "a method that clips last: a sketched sum is bounded over the law of its sketches, not in every step"
        raise SettingError("method", method.describe(), allowed)
    return dataclasses.replace(method, step=Descent(), average=False, full_batch=False)


class TrainerTarget:
    """Copies of a Trainer, each on a data set of the auditor's choice. The Trainer itself makes no step.

    A copy has the same class, model, loss, method, clip bound, divisor and noise. Its optimizer is plain SGD with
    learning rate 1, so that `-(change of the weights) * divisor` is the released sum, read as `Reader` does. Weights
    are put back after each step. Copies draw no masks of dropout.

    >>> from gnomon.audit import Probe, probe_loss
    >>> model = Probe(4)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10, progress=False)
    >>> record = torch.tensor([[0.0, 30.0, 40.0, 0.0]]), torch.zeros(1)
    >>> TrainerTarget(trainer, record).releases(record, 1, noisy=False).round(decimals=3)
    tensor([[0.0000, 0.6000, 0.8000, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, trainer: Trainer, one: Batch) -> None:
        self.trainer, self.one, self.claim = trainer, one, Claim.of(trainer)
        mechanism, self.method = trainer.mechanism, _plainly_moved(trainer.method)
        if not isinstance(self.method.subspace, Ambient):  # which is the same at every step
            still = Still(self.method.subspace, mechanism.last_step - 1, mechanism.steps_per_epoch, mechanism.steps)
            self.method = dataclasses.replace(self.method, subspace=still)
        self.model, self.dropout = without_dropout(trainer.model)
        context = StepContext(self.model, trainer.loss, 0, mechanism.steps_per_epoch, mechanism.steps, SeededNoise(0))
        self.view = Observation(self.method, context)

    def releases(self, data: Batch | None, count: int, *, noisy: bool = True, parts: int = 1) -> Tensor:
        return torch.stack(list(self.each(data, count, noisy=noisy, parts=parts)))

    def each(self, data: Batch | None, count: int, *, noisy: bool = True, parts: int = 1) -> Iterator[Tensor]:
        """What `releases` gives, one step at a time, (p,)."""
        size = 1 if data is None else len(data[0])
        physical = self.trainer.sampling.max_physical_batch_size if parts == 1 else max(1, -(-size // parts))
        copied = self.copy(
            Poisson(NEVER) if data is None else FullBatch(),
            count,
            noise=self.trainer.noise if noisy else NoNoise(SecureNoise()),
            max_physical_batch_size=physical,
        )
        scale = copied.mechanism.expected_batch_size / copied.mechanism.max_grad_norm
        reader = copied.optimizer
        assert isinstance(reader, Reader)
        for inputs, targets in copied.batches(self.one if data is None else data):
            reader.start()
            copied.step(inputs, targets)
            yield reader.moved() * scale

    def copy(self, sampler: Sampling, steps: int, **settings: Any) -> Trainer:
        """Return a copy of the Trainer at its start, with another sampling scheme and length."""
        trainer, model = self.trainer, copy.deepcopy(self.model)
        mechanism = dataclasses.replace(
            trainer.mechanism,
            method=self.method,
            sampler=sampler,
            steps=steps,
            max_steps=None,
            adjacency=None,
            accountant="pld",
        )
        chosen: dict[str, Any] = {
            "mechanism": mechanism,
            "max_physical_batch_size": trainer.sampling.max_physical_batch_size,
            "noise": trainer.noise,
            "progress": False,
        }
        optimizer = Reader([p for p in model.parameters() if p.requires_grad])
        return type(trainer)(model, trainer.loss, optimizer, **(chosen | settings))
