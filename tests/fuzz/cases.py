"""A fuzz case: a model, a loss, records and neighbouring records, all derived from one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tests.fuzz.models import Builder, Built, Net

IGNORED = -100

Records = tuple[Any, Any]
"""Inputs and targets of some records."""


@dataclass(frozen=True)
class Case:
    """The model, loss and records of a seed."""

    seed: int
    model: Net
    loss: Callable[[Any, Any], Tensor]
    dtype: torch.dtype
    records: Records
    """Ordinary records, and some that are zero, tiny or duplicates."""
    neighbour: Records
    """A single record, usually an extreme one."""
    broken: Records | None
    """A single record with NaN or infinity; None if all inputs are integers."""
    public: Records
    title: str


def case(seed: int) -> Case:
    """Return the case of a seed. It depends on the seed alone, and torch's global generator is left as it was."""
    rng = Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = Builder(rng).model()
        dtype = torch.float32 if rng.random() < 0.7 else torch.float64
        model = built.model.to(dtype)
        draw = Draw(rng, built, dtype)
        name, loss, targets = draw.loss()
        size = rng.choice([1, 2, 3, 3, 5, 7])
        records = (draw.inputs(size), targets(size))
        neighbour = (draw.inputs(1), targets(1))
        broken = draw.broken((draw.inputs(1), targets(1)))
        public = (draw.inputs(6), targets(6))
    records = draw.tamed(records)
    neighbour = draw.extreme(neighbour)
    kinds = sorted({type(m).__name__ for m in model.modules() if next(m.parameters(False), None) is not None})
    title = f"{name}, {str(dtype).removeprefix('torch.')}, {size} records, {', '.join(kinds)}"
    return Case(seed, model, loss, dtype, records, neighbour, broken, public, title)


class Draw:
    """Random inputs and targets for a model."""

    def __init__(self, rng: Random, built: Built, dtype: torch.dtype) -> None:
        self.rng, self.built, self.dtype = rng, built, dtype

    def inputs(self, size: int) -> Any:
        made = {name: self._input(shape, size) for name, shape in self.built.inputs.items()}
        if self.built.by_name:
            return made
        values = tuple(made.values())
        return values if len(values) > 1 else values[0]

    def _input(self, shape: Any, size: int) -> Tensor:
        if isinstance(shape, str):
            return torch.randint(0, 7, (size, int(shape.partition(":")[2])))
        return torch.randn(size, *shape, dtype=self.dtype)

    def loss(self) -> tuple[str, Callable[[Any, Any], Tensor], Callable[[int], Any]]:
        """Return the name of a loss, the loss, and a function that draws targets."""
        rng, scores = self.rng, self.built.scores
        classes, positions = scores[-1], scores[:-1]
        kind = rng.choice(["cross entropy", "cross entropy", "squares", "weighted", "huber", "logistic"])
        slope = rng.choice([1.0, 1.0, 10.0])

        def labels(size: int) -> Tensor:
            found = torch.randint(0, classes, (size, *positions))
            return torch.where(torch.rand(found.shape) < ignored, IGNORED, found)

        def entropy(outputs: Any, targets: Tensor) -> Tensor:
            each = F.cross_entropy(first(outputs).movedim(-1, 1), targets, reduction="none", label_smoothing=smoothing)
            total = slope * each.reshape(len(each), -1).sum(1)
            return total / (targets != IGNORED).reshape(len(targets), -1).sum(1).clamp_min(1) if shared else total

        def weighted(outputs: Any, targets: tuple[Tensor, Tensor]) -> Tensor:
            return targets[1] * entropy(outputs, targets[0])

        def values(size: int) -> Tensor:
            return torch.randn(size, *scores, dtype=self.dtype)

        def both(size: int) -> tuple[Tensor, Tensor]:
            return labels(size), torch.rand(size, dtype=self.dtype) * 3

        ignored, smoothing = rng.choice([0.0, 0.0, 0.4]), rng.choice([0.0, 0.0, 0.1])
        shared = rng.random() < 0.5
        if kind == "cross entropy":
            return kind, entropy, labels
        if kind == "weighted":
            return kind, weighted, both
        if kind == "logistic":
            return (
                kind,
                lambda outputs, targets: (
                    F.binary_cross_entropy_with_logits(first(outputs), targets.sigmoid(), reduction="none")
                    .flatten(1)
                    .sum(1)
                ),
                values,
            )
        each = F.mse_loss if kind == "squares" else F.huber_loss
        return (
            kind,
            lambda outputs, targets: sum(
                slope
                * each(t, targets if t.shape == targets.shape else torch.zeros_like(t), reduction="none")
                .flatten(1)
                .mean(1)
                for t in pytree.tree_leaves(outputs)
            ),
            values,
        )

    # -- records that are unlike the others ------------------------------------------------------

    def tamed(self, records: Records) -> Records:
        """Replace some records by zeros, tiny values or duplicates, none of which amplifies rounding."""
        size = len(pytree.tree_leaves(records)[0])
        factors = {"zero": 0.0, "tiny": 1e-30, "small": 1e-13, "denormal": 1e-42}
        for row in range(size):
            how, other = self.rng.choice(["as it is"] * 12 + ["double", *factors]), self.rng.randrange(size)
            for t in pytree.tree_leaves(records if how == "double" else records[0]):
                if how == "double":
                    t[row] = t[other]
                elif how in factors and t.is_floating_point():
                    t[row] *= factors[how]
        return records

    def extreme(self, record: Records) -> Records:
        """Return a record with extreme values in all features, in one feature, or in its target."""
        rng = self.rng
        how = rng.choice(["scaled", "scaled", "scaled", "spike", "constant", "zero", "target", "ordinary"])
        size = (
            10.0 ** rng.uniform(-30, 30) if rng.random() < 0.7 else rng.choice([1e-45, 1e-40, 1e19, 2e19, 1e30, 3e38])
        )
        which = record[1] if how == "target" else record[0]

        def change(t: Tensor) -> None:
            if not t.is_floating_point():
                if how == "constant":
                    t.fill_(int(t.flatten()[0]))
            elif how == "spike":
                t.view(-1)[rng.randrange(t.numel())] = size
            elif how == "constant":
                t.fill_(size)
            elif how in ("scaled", "target", "zero"):
                t.mul_(0.0 if how == "zero" else size)

        pytree.tree_map_only(Tensor, change, which)
        return record

    def broken(self, record: Records) -> Records | None:
        """Return a record with a non-finite value, or None if all of its values are integers."""
        places = [t for t in pytree.tree_leaves(record) if t.is_floating_point()]
        if not places:
            return None
        chosen = self.rng.choice(places).view(-1)
        chosen[self.rng.randrange(len(chosen))] = self.rng.choice([torch.nan, torch.inf, -torch.inf])
        return record


def first(outputs: Any) -> Tensor:
    """Return the scores among the outputs of a model."""
    if isinstance(outputs, dict):
        return outputs["scores"]
    return outputs[0] if isinstance(outputs, tuple) else outputs


def join(*parts: Records) -> Records:
    """Return several sets of records as one."""
    flat = [pytree.tree_flatten(part) for part in parts]
    return pytree.tree_unflatten([torch.cat(same) for same in zip(*(one[0] for one in flat), strict=True)], flat[0][1])


def take(records: Records, rows: list[int]) -> Records:
    """Return the records at the given positions, which may be none."""
    index = torch.tensor(rows, dtype=torch.long)
    return pytree.tree_map_only(Tensor, lambda t: t[index], records)
