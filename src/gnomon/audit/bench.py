"""What the auditor feeds to a Trainer: pairs of neighbouring data sets, and canaries.

The probe is a model whose gradients the auditor writes down: sample i's gradient is its input. For any other model the
auditor makes do with records of the data, stretched and mislabelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gnomon.audit.observation import Observation
from gnomon.data import Loader
from gnomon.errors import SettingError
from gnomon.validate import whole

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""

BROKEN = {"not a number": math.nan, "infinite": math.inf, "minus infinite": -math.inf}
"""Values that no record should hold, and some do."""

UNEQUAL = 8
"""How many records of different lengths are summed in several physical batches."""


class Probe(nn.Module):
    """A model whose gradient at each sample is that sample's input, in two parameter tensors.

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
            nn.init.zeros_(p)  # so that the change of the weights is read without rounding

    @property
    def size(self) -> int:
        """How many parameters, and numbers in an input."""
        return self.first.in_features + self.second.in_features

    def forward(self, x: Tensor) -> Tensor:
        half = self.first.in_features
        return self.first(x[:, :half]) + self.second(x[:, half:])


def probe_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The output itself, whatever the target.

    >>> probe_loss(torch.tensor([[2.0]]), torch.zeros(1))
    tensor([2.])
    """
    return outputs[:, 0]


@dataclass(frozen=True)
class Pair:
    """A data set and the record that its neighbour has in addition."""

    name: str
    without: Batch | None
    """None for a step that nobody takes part in."""
    canary: Batch
    finite: bool = True
    """Whether the record's update is finite. Where it is not, the record must contribute nothing at all."""

    @property
    def joined(self) -> Batch:
        """The data set with the record."""
        return self.canary if self.without is None else joined(self.without, self.canary)


class Bench(Protocol):
    """Data sets of the auditor's choice."""

    def pairs(self, view: Observation) -> list[Pair]:
        """Neighbouring data sets, chosen to move the release as far as they can."""

    def canaries(self, view: Observation, count: int) -> Batch:
        """Records to be found again one by one in a release of all of them."""

    def unequal(self, view: Observation) -> Batch:
        """Records whose updates differ in length, so that each has another clip weight."""

    @property
    def one(self) -> Batch:
        """Any one record."""


class ProbeBench:
    """Gradients as one pleases. `bound` is the clip bound, `batch` how many others there are.

    >>> from gnomon.audit import TrainerTarget
    >>> from gnomon.training import Trainer
    >>> model, bench = Probe(8), ProbeBench(8, bound=1.0)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10, progress=False)
    >>> [pair.name for pair in bench.pairs(TrainerTarget(trainer, bench.one).view)][:3]
    ['opposed bulk', 'aligned bulk', 'alone']
    """

    def __init__(self, size: int, bound: float, batch: int = 16, seed: int = 0) -> None:
        self.size, self.bound, self.batch, self.seed = size, bound, batch, seed

    @property
    def one(self) -> Batch:
        return _as_batch(torch.zeros(1, self.size))

    def pairs(self, view: Observation) -> list[Pair]:
        draw = torch.Generator().manual_seed(self.seed)
        bulk, other = (torch.randn(n, self.size, generator=draw, dtype=torch.float64) for n in (self.batch, 1))
        c, spike = self.bound, next(view.spikes())[None]
        mixed, aligned = _as_batch(bulk * c), _as_batch((10 * c * spike).expand(self.batch, -1))
        table: dict[str, tuple[Batch | None, Tensor]] = {
            "opposed bulk": (aligned, -100 * self.batch * c * spike),
            "aligned bulk": (aligned, 10 * c * spike),
            "alone": (None, 10 * c * spike),
            "spike": (mixed, 10 * c * spike),
            "random": (mixed, 3 * c * other),
            "huge": (mixed, 1e6 * c * other),
            "short": (mixed, 0.1 * c * spike),
        }
        found = [Pair(name, without, _as_batch(z)) for name, (without, z) in table.items()]
        for name, value in BROKEN.items():
            broken = other.clone()
            broken[0, 0] = value
            found += [Pair(name, without, _as_batch(broken), finite=False) for without in (None, mixed)]
        return found

    def canaries(self, view: Observation, count: int) -> Batch:
        return _as_batch(1000 * self.bound * torch.stack(list(islice(view.spikes(), count))))

    def unequal(self, view: Observation) -> Batch:
        spikes = islice(cycle(islice(view.spikes(), UNEQUAL)), UNEQUAL)
        return _as_batch(torch.stack([2.0**i * self.bound * spike for i, spike in enumerate(spikes)]))


class RecordBench:
    """Records of a data set, with real inputs stretched and targets exchanged.

    >>> bench = RecordBench((torch.randn(30, 2), torch.randint(0, 2, (30,))))
    >>> len(bench.canaries(None, 5)[0])
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
    def one(self) -> Batch:
        return self.inputs[:1], self.targets[:1]

    def pairs(self, view: Observation) -> list[Pair]:
        x, y = self.inputs, self.targets
        bulk, last = (x[: self.batch], y[: self.batch]), (x[-1:], y[-1:])
        same = x[:1].expand(self.batch, *x.shape[1:]), y[:1].expand(self.batch, *y.shape[1:])
        other = another_target(y)
        found = [
            Pair("alone", None, last),
            Pair("another record", bulk, last),
            Pair("the same again", same, (x[:1], y[:1])),
            Pair("opposed bulk", same, (x[:1], other)),
        ]
        if x.is_floating_point():
            for stretch in (-1.0, 10.0, -100.0, 1000.0):
                found.append(Pair(f"stretched {stretch:g} times", bulk, (stretch * x[-1:], y[-1:])))
                found.append(Pair(f"opposed bulk, stretched {stretch:g} times", same, (stretch * x[:1], other)))
            # a model may repair such inputs: its update may then count, but no more than any other
            found += [Pair(name, bulk, (torch.full_like(x[-1:], value), y[-1:])) for name, value in BROKEN.items()]
        return found

    def canaries(self, view: Observation, count: int) -> Batch:
        stretch = 100.0 if self.inputs.is_floating_point() else 1
        return stretch * self.inputs[:count], self.targets[:count]

    def unequal(self, view: Observation) -> Batch:
        x, y = self.inputs[:UNEQUAL], self.targets[:UNEQUAL]
        if not x.is_floating_point():
            return x, y
        return x * (2.0 ** torch.arange(len(x))).to(x).view(-1, *[1] * (x.dim() - 1)), y


def another_target(targets: Tensor) -> Tensor:
    """A target unlike the first one, as a batch: another record's, the opposite number, or class 0.

    >>> another_target(torch.tensor([2, 2, 5])), another_target(torch.tensor([3, 3])), another_target(torch.ones(2, 1))
    (tensor([5]), tensor([0]), tensor([[-1.]]))
    """
    first = targets[:1]
    if targets.is_floating_point() and targets.dim() > 1:
        return -first
    unlike = (targets != first).flatten(1).any(1) if targets.dim() > 1 else targets != first
    if bool(unlike.any()):
        return targets[unlike][:1]
    return -first if targets.is_floating_point() else torch.zeros_like(first)  # a class below 0 there is not


def joined(one: Batch, other: Batch) -> Batch:
    """Two data sets as one.

    >>> joined((torch.zeros(2, 1), torch.zeros(2)), (torch.ones(1, 1), torch.ones(1)))[1]
    tensor([0., 0., 1.])
    """
    return torch.cat([one[0], other[0]]), torch.cat([one[1], other[1]])


def singles(batch: Batch) -> Iterator[Batch]:
    """Each record as a data set of its own."""
    yield from ((batch[0][i : i + 1], batch[1][i : i + 1]) for i in range(len(batch[0])))


def _as_batch(rows: Tensor) -> Batch:
    return rows.float().contiguous(), torch.zeros(len(rows))
