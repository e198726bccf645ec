"""Data sets that the auditor feeds to a Trainer: neighbouring pairs, canaries, and the probe model.

The gradient of the probe model at a sample is the sample's input, so the auditor chooses every gradient. Any other
model is attacked with records of its own data set, with scaled inputs and exchanged targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gnomon.audit.whitening import Whitening
from gnomon.data import Loader
from gnomon.errors import SettingError
from gnomon.validate import whole

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""

NON_FINITE = {"NaN": math.nan, "infinity": math.inf, "minus infinity": -math.inf}
"""Values that a damaged record may contain."""

ACCUMULATED_RECORDS = 8
"""Number of records with different gradient norms in the test of gradient accumulation."""


class Probe(nn.Module):
    """A model whose gradient at each sample is that sample's input, split over two parameter tensors.

    >>> model = Probe(4)
    >>> probe_loss(model(torch.ones(1, 4)), torch.zeros(1)).sum().backward()
    >>> model.first.weight.grad
    tensor([[1., 1.]])
    """

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        half = whole("size", size, least=2) // 2
        self.first = nn.Linear(half, 1, bias=False)
        self.second = nn.Linear(size - half, 1, bias=False)
        for p in self.parameters():
            nn.init.zeros_(p)  # changes of zero weights are read without rounding

    @property
    def size(self) -> int:
        """The number of parameters, which is also the number of input features."""
        return self.first.in_features + self.second.in_features

    def forward(self, x: Tensor) -> Tensor:
        half = self.first.in_features
        return self.first(x[:, :half]) + self.second(x[:, half:])


def probe_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the output of the probe as its loss; the target is ignored.

    >>> probe_loss(torch.tensor([[2.0]]), torch.zeros(1))
    tensor([2.])
    """
    return outputs[:, 0]


@dataclass(frozen=True)
class NeighbouringPair:
    """Two data sets that differ in one record, the canary."""

    name: str
    base: Batch | None
    """The data set without the canary; None for an empty batch."""
    canary: Batch
    finite: bool = True
    """Whether the canary's update is finite. A canary whose update is not finite must contribute nothing at all."""

    @property
    def with_canary(self) -> Batch:
        """The data set with the canary."""
        return self.canary if self.base is None else concatenate(self.base, self.canary)


class AttackData(Protocol):
    """The data sets of an attack."""

    def pairs(self, whitening: Whitening) -> list[NeighbouringPair]:
        """Return neighbouring data sets, chosen to move the released sum as far as possible."""

    def canaries(self, whitening: Whitening, count: int) -> Batch:
        """Return up to `count` canaries, each of which is searched for in one release of all of them."""

    def unequal_norms(self, whitening: Whitening) -> Batch:
        """Return records whose updates differ in norm, so that each has a clip weight of its own."""

    @property
    def example(self) -> Batch:
        """One arbitrary record."""


class ProbeAttackData:
    """Attack data for the probe model, where every gradient is chosen freely.

    Args:
        size: the number of parameters of the probe.
        bound: the clip bound.
        batch: the number of records in a data set without the canary.
        seed: seed of the random gradients.

    >>> from gnomon.audit import TrainerTarget
    >>> from gnomon.training import Trainer
    >>> model, attack = Probe(8), ProbeAttackData(8, bound=1.0)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10, progress=False)
    >>> [pair.name for pair in attack.pairs(TrainerTarget(trainer, attack.example).whitening)][:3]
    ['opposed to the batch', 'aligned with the batch', 'alone']
    """

    def __init__(self, size: int, bound: float, batch: int = 16, seed: int = 0) -> None:
        self.size, self.bound, self.batch, self.seed = size, bound, batch, seed

    @property
    def example(self) -> Batch:
        return _as_batch(torch.zeros(1, self.size))

    def pairs(self, whitening: Whitening) -> list[NeighbouringPair]:
        generator = torch.Generator().manual_seed(self.seed)
        gradients, random = (
            torch.randn(count, self.size, generator=generator, dtype=torch.float64) for count in (self.batch, 1)
        )
        c, direction = self.bound, next(whitening.directions())[None]
        mixed, aligned = _as_batch(gradients * c), _as_batch((10 * c * direction).expand(self.batch, -1))
        table: dict[str, tuple[Batch | None, Tensor]] = {
            "opposed to the batch": (aligned, -100 * self.batch * c * direction),
            "aligned with the batch": (aligned, 10 * c * direction),
            "alone": (None, 10 * c * direction),
            "one coordinate": (mixed, 10 * c * direction),
            "random": (mixed, 3 * c * random),
            "huge": (mixed, 1e6 * c * random),
            "short": (mixed, 0.1 * c * direction),
        }
        pairs = [NeighbouringPair(name, base, _as_batch(canary)) for name, (base, canary) in table.items()]
        for name, value in NON_FINITE.items():
            damaged = random.clone()
            damaged[0, 0] = value
            pairs += [NeighbouringPair(name, base, _as_batch(damaged), finite=False) for base in (None, mixed)]
        return pairs

    def canaries(self, whitening: Whitening, count: int) -> Batch:
        return _as_batch(1000 * self.bound * torch.stack(list(islice(whitening.directions(), count))))

    def unequal_norms(self, whitening: Whitening) -> Batch:
        count = ACCUMULATED_RECORDS
        directions = islice(cycle(islice(whitening.directions(), count)), count)
        return _as_batch(torch.stack([2.0**i * self.bound * direction for i, direction in enumerate(directions)]))


class RecordAttackData:
    """Attack data made of the records of a data set, with scaled inputs and exchanged targets.

    Args:
        data: records of the model under audit.
        batch: the number of records in a data set without the canary.
        seed: seed of the choice of records.

    Raises:
        SettingError: a record has more than one input tensor or more than one target tensor.

    >>> attack = RecordAttackData((torch.randn(30, 2), torch.randint(0, 2, (30,))))
    >>> len(attack.canaries(None, 5)[0])
    5
    """

    def __init__(self, data: Any, batch: int = 16, seed: int = 0) -> None:
        loader = Loader(data, "data")
        chosen = torch.randperm(len(loader), generator=torch.Generator().manual_seed(seed))[:2000]
        self.inputs, self.targets = loader.take(chosen)
        if not (isinstance(self.inputs, Tensor) and isinstance(self.targets, Tensor)):
            raise SettingError("data", type(self.inputs).__name__, "records with one input and one target tensor")
        self.batch = max(1, min(batch, len(chosen) - 2))

    @property
    def example(self) -> Batch:
        return self.inputs[:1], self.targets[:1]

    def pairs(self, whitening: Whitening) -> list[NeighbouringPair]:
        x, y = self.inputs, self.targets
        base, last = (x[: self.batch], y[: self.batch]), (x[-1:], y[-1:])
        repeated = x[:1].expand(self.batch, *x.shape[1:]), y[:1].expand(self.batch, *y.shape[1:])
        exchanged = exchanged_target(y)
        pairs = [
            NeighbouringPair("alone", None, last),
            NeighbouringPair("another record", base, last),
            NeighbouringPair("the same record again", repeated, (x[:1], y[:1])),
            NeighbouringPair("exchanged target", repeated, (x[:1], exchanged)),
        ]
        if x.is_floating_point():
            for factor in (-1.0, 10.0, -100.0, 1000.0):
                pairs.append(NeighbouringPair(f"input times {factor:g}", base, (factor * x[-1:], y[-1:])))
                name = f"exchanged target, input times {factor:g}"
                pairs.append(NeighbouringPair(name, repeated, (factor * x[:1], exchanged)))
            # A model may replace non-finite inputs itself: the update may then count, up to the clip bound.
            pairs += [
                NeighbouringPair(name, base, (torch.full_like(x[-1:], value), y[-1:]))
                for name, value in NON_FINITE.items()
            ]
        return pairs

    def canaries(self, whitening: Whitening, count: int) -> Batch:
        factor = 100.0 if self.inputs.is_floating_point() else 1
        return factor * self.inputs[:count], self.targets[:count]

    def unequal_norms(self, whitening: Whitening) -> Batch:
        x, y = self.inputs[:ACCUMULATED_RECORDS], self.targets[:ACCUMULATED_RECORDS]
        if not x.is_floating_point():
            return x, y
        return x * (2.0 ** torch.arange(len(x))).to(x).view(-1, *[1] * (x.dim() - 1)), y


def exchanged_target(targets: Tensor) -> Tensor:
    """Return a target that differs from the first, as a batch: another record's, the negated value, or class 0.

    >>> exchanged_target(torch.tensor([2, 2, 5])), exchanged_target(torch.tensor([3, 3]))
    (tensor([5]), tensor([0]))
    >>> exchanged_target(torch.ones(2, 1))
    tensor([[-1.]])
    """
    first = targets[:1]
    if targets.is_floating_point() and targets.dim() > 1:
        return -first
    unlike = (targets != first).flatten(1).any(1) if targets.dim() > 1 else targets != first
    if bool(unlike.any()):
        return targets[unlike][:1]
    return -first if targets.is_floating_point() else torch.zeros_like(first)  # class labels are not negative


def concatenate(first: Batch, second: Batch) -> Batch:
    """Return two data sets as one.

    >>> concatenate((torch.zeros(2, 1), torch.zeros(2)), (torch.ones(1, 1), torch.ones(1)))[1]
    tensor([0., 0., 1.])
    """
    return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])


def single_records(batch: Batch) -> Iterator[Batch]:
    """Yield each record as a data set of its own."""
    yield from ((batch[0][i : i + 1], batch[1][i : i + 1]) for i in range(len(batch[0])))


def _as_batch(rows: Tensor) -> Batch:
    return rows.float().contiguous(), torch.zeros(len(rows))
