"""Checks that each sample's update depends on that sample alone, made on a few records before training starts."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.clipping import ClipRule, Flat
from gnomon.clipping.rules import total
from gnomon.data import Loader
from gnomon.methods import Update
from gnomon.release.door import SUM_ROUNDINGS, admission, lengths
from gnomon.training.checks.model import NotPrivate
from gnomon.updates import Loss, Updates
from gnomon.updates.leaves import Leaf
from gnomon.updates.random_ops import RepeatableRandomness
from gnomon.updates.snapshot import Snapshot, untouched
from gnomon.updates.trees import batch_size, take_rows, tensors

FEW = 8
"""The number of records on which updates are compared."""

COMBINATIONS = 4
"""The number of random linear combinations of updates that are compared."""

VECTORS = 16
"""The number of random vectors whose products with an update are compared in its place."""

NOTHING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""By data type: a block of an update shorter than this share of the whole update is treated as zero."""

MAX_SEARCHED = 256
"""The number of items of a Dataset that are read to find a second target; targets in memory are all searched."""


def few(loader: Loader, order: Tensor) -> tuple[Any, Any]:
    """Return the first few records in an order; if their targets are equal, the last one is replaced by another record.

    >>> data = Loader((torch.zeros(50, 1), torch.arange(50).eq(40).long()))
    >>> few(data, torch.arange(50))[1]
    tensor([0, 0, 0, 0, 0, 0, 0, 1])
    """
    inputs, targets = loader.take(order[:FEW])
    if bool(unlike(targets, 0).any()):
        return inputs, targets
    rest, step = (order[FEW:], 2**16) if loader.in_memory else (order[FEW : FEW + MAX_SEARCHED], 4 * FEW)
    for some in rest.split(step):
        seen = torch.cat([order[:1], some])
        other = unlike(loader.targets(seen), 0).nonzero().flatten()
        if len(other):
            return loader.take(torch.cat([order[: FEW - 1], seen[other[:1]]]))
    return inputs, targets


def enough(inputs: Any, targets: Any) -> bool:
    """Return whether records can reveal any kind of dependence: at least two, with at least two different targets.

    >>> enough(torch.zeros(3, 1), torch.tensor([0, 0, 1])), enough(torch.zeros(3, 1), torch.tensor([1, 1, 1]))
    (True, False)
    """
    return batch_size(inputs) > 1 and bool(unlike(targets, 0).any())


def unlike(targets: Any, position: int) -> Tensor:
    """Return which records have another target than the record at a position, (B,).

    >>> unlike({"class": torch.tensor([1, 1, 1]), "box": torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 1.0]])}, 0)
    tensor([False,  True, False])
    """
    found = torch.zeros(0, dtype=torch.bool)
    for leaf in pytree.tree_leaves(targets):
        if isinstance(leaf, Tensor) and leaf.dim():
            differs = (leaf != leaf[position]).reshape(len(leaf), -1).any(1).cpu()
            found = found | differs if len(found) else differs
    return found


CoordinateMap = Callable[[Updates], Updates]
"""Maps updates to the coordinates in which a method clips them."""


class Comparable(Protocol):
    """What the check keeps of a set of updates, for comparison with those of other batches."""

    def select(self, index: Tensor) -> Comparable:
        """Return the part that belongs to the samples `index`."""

    def apart_from(self, other: Any) -> float:
        """Return the distance to what is kept of other updates of the same samples, relative to their norms."""

    @property
    def tolerance(self) -> float:
        """The largest distance that rounding explains."""


Summary = Callable[[Updates], Comparable]
"""Returns what the check keeps of a set of updates."""


def refuse_dependence(
    model: nn.Module,
    loss: Loss,
    update: Update,
    inputs: Any,
    targets: Any,
    *,
    rule: ClipRule | None = None,
    coordinates: CoordinateMap | None = None,
) -> None:
    """Refuse a model or loss in which the update of one sample depends on the other samples of its batch.

    Updates of a few records are computed, then the other records of the batch are varied and the updates are compared.
    The last record is changed, given another target, or removed; then pairs of records are computed alone. This finds
    functional batch norm, batch means, the maximum or longest sequence of a batch, ranking losses, losses balanced or
    standardised within the batch, and state of model or loss that a forward pass changes. Random numbers are the same
    in each run; if the model draws any, the runs with fewer records use constants instead. Model and loss are left as
    they were, except that caches whose contents do not depend on the records stay filled.

    Args:
        model: the model.
        loss: maps (outputs, targets) to one number per sample.
        update: computes the per-sample updates.
        inputs: the inputs of a few records.
        targets: their targets.
        rule: the clip rule. A rule with one weight per block of an update can lengthen a block relative to the others,
            so clipped updates are then also compared block by block, in float64 on a copy of the model if possible.
        coordinates: the map to the coordinates in which updates are clipped. They may keep little of an update but what
            its batch shares, so clipped coordinates are then also compared block by block.

    Raises:
        NotPrivate: the updates differ by more than rounding.
    """
    if batch_size(inputs) < 2:
        return
    _refuse_dependence(model, loss, update, inputs, targets, Products.drawn())
    clipped = partial(_Clipped, rule or Flat())
    if coordinates is not None:

        def in_coordinates(*batch: Any, **options: Any) -> Updates:
            return coordinates(update(*batch, **options))

        culprit = "the model, the loss or the subspace"
        _refuse_dependence(model, loss, in_coordinates, inputs, targets, clipped, culprit)
    elif rule is not None and _is_blockwise(rule):
        exact = _in_float64(model, update, loss, inputs, targets)
        _refuse_dependence(*(exact or (model, loss, update, inputs, targets)), clipped)


def _refuse_dependence(
    model: nn.Module,
    loss: Loss,
    update: Update,
    inputs: Any,
    targets: Any,
    summary: Summary,
    culprit: str = "the model or the loss",
) -> None:
    size = batch_size(inputs)
    with untouched(model, parameters=True, loss=loss) as before:
        if not model.training:
            model.train()
            before.note(contents=True)
        chance = RepeatableRandomness(model)

        with chance.repeated() as random_ops:
            updates = update(model, loss, inputs, targets)
        whole = summary(updates)  # outside, because a summary draws random numbers of its own
        del updates

        def run(records: tuple[Any, Any], constant: bool = False) -> Comparable:
            chance.restore()
            with chance.repeated(constant) if constant or random_ops.own_generator else nullcontext():
                updates = update(model, loss, *records)
            return summary(updates)

        filled = _refuse_lasting(before, run, inputs, targets) if before.changed() else before
        still = whole
        for how, kept, records in _variants(inputs, targets):
            constant = random_ops.drew and batch_size(records[0]) < size  # dropout masks depend on the batch size
            if constant and still is whole:
                still = run((inputs, targets), constant)
            base = (still if constant else whole).select(kept)
            apart = base.apart_from(run(records, constant).select(torch.arange(len(kept))))
            if not apart <= base.tolerance:
                again = whole.apart_from(run((inputs, targets)))
                _refuse_mixing(culprit, how, apart, again=0.0 if again <= whole.tolerance else again)
        if touched := filled.changed():
            refuse_touched(touched)
        before.note()  # caches stay filled; otherwise the first step would be refused for filling them


def refuse_padding(model: nn.Module, loss: Loss, update: Update, inputs: Any, targets: Any) -> None:
    """Refuse a model whose updates depend on the padded length of a batch of sequences.

    A collated batch is as long as its longest record, so an update that depends on the length depends on the other
    records. Rows that end, or begin, with a run of equal values are shortened by half of that run, and updates are
    compared. A model that accepts a single length, and a batch without such rows, cannot be checked and pass.

    Raises:
        NotPrivate: with less padding the updates change by more than rounding.
    """
    length = next((t.shape[1] for t in tensors(inputs) if t.dim() > 1), 0)
    for last in (True, False):
        runs = _padding((inputs, targets), length, last)
        filled = runs.argsort(descending=True)[: min(FEW, int((runs > 2).sum()))]
        if len(filled) < 2:
            continue
        cut = int(runs[filled].min()) // 2
        rows = take_rows((inputs, targets), filled)
        shorter = _shortened(rows, length, slice(0, length - cut) if last else slice(cut, length))
        with untouched(model, parameters=True, loss=loss):
            chance = RepeatableRandomness(model)
            products = Products.drawn()
            with chance.repeated(constant=True):
                longer_updates = update(model, loss, *rows)
            before = products(longer_updates)
            try:
                with chance.repeated(constant=True):
                    shorter_updates = update(model, loss, *shorter)
            except Exception:  # the model accepts a single length, so none of its batches is padded
                continue
            after = products(shorter_updates)
        apart = before.apart_from(after)
        if not apart <= before.tolerance:
            raise NotPrivate(
                f"with less padding, the updates of the same sequences change by {apart:.1%}: the padded length of a "
                "batch is that of its longest record, so one record reaches the updates of others and no clip bound "
                "holds; mask the padding in attention and pooling, or pad all records to one declared length"
            )


def _shortened(tree: Any, length: int, kept: slice) -> Any:
    """Return the tree with only the kept positions of each tensor of that length."""

    def shortened(values: Tensor) -> Tensor:
        return values[:, kept] if values.dim() > 1 and values.shape[1] == length else values

    return pytree.tree_map_only(Tensor, shortened, tree)


def _padding(tree: Any, length: int, last: bool) -> Tensor:
    """Return how many positions at the end, or the beginning, of each record look like padding, (B,).

    Padding is a run of one value in all tensors of that length, the same for at least half of the records and not for
    all of them, because the longest record has no padding.
    """
    if length < 2:
        return torch.zeros(0, dtype=torch.long)
    sequences = [t.double() for t in tensors(tree) if t.dim() > 1 and t.shape[1] == length]
    together = torch.cat([t.reshape(*t.shape[:2], -1) for t in sequences], 2)
    together = together.flip(1) if last else together
    edges, kinds, counts = together[:, 0].unique(dim=0, return_inverse=True, return_counts=True)
    most = int(counts.argmax())
    if len(edges) < 2 or 2 * int(counts[most]) < len(kinds):
        return torch.zeros(len(kinds), dtype=torch.long)
    runs = (together == edges[most]).all(2).long().cumprod(1).sum(1)
    return torch.where(runs < length, runs, 0)


def _refuse_lasting(before: Snapshot, run: Callable[[Any], Comparable], inputs: Any, targets: Any) -> Snapshot:
    """Refuse state that the first run changed, unless other records leave the same, as with a cached causal mask."""
    left = before.later()
    run((inputs, targets))
    if touched := left.changed():
        refuse_touched(touched)
    before.restore()
    run(_each(lambda t: t[-1:].expand_as(t).clone(), (inputs, targets)))
    if touched := left.changed():
        refuse_touched(touched)
    return left


def _variants(inputs: Any, targets: Any) -> Iterator[tuple[str, Tensor, tuple[Any, Any]]]:
    """Yield the name of each variation, the positions of unchanged records, and the batch that starts with them."""
    size = batch_size(inputs)
    others = torch.arange(size - 1)
    yield "one sample is changed", others, (_each(_other_last, inputs), targets)
    unequal = unlike(targets, -1).nonzero().flatten()
    if len(unequal):  # the loss accepts a target that some record has
        exchanged = _each(lambda t: torch.cat([t[:-1], t[unequal[:1]]]), targets)
        yield "one sample is given another target", others, (inputs, exchanged)
    yield "one sample is removed", others, take_rows((inputs, targets), slice(-1))
    for start in range(0, min(size, FEW), 2) if size > 2 else ():
        pair = torch.tensor([min(start, size - 2), min(start, size - 2) + 1])
        yield "all but two samples are removed", pair, take_rows((inputs, targets), pair)


def _each(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: change(t) if t.dim() else t, tree)


def refuse_touched(touched: str) -> NoReturn:
    """Raise an error that names state written without noise. It quotes no value, which may come from a record."""
    raise NotPrivate(
        f"a training forward pass changes the attribute, buffer or parameter '{touched}': what it reads off people's "
        "records would stay there and end up in the saved model, or in the updates of others, without noise; build the "
        "module without running statistics (track_running_stats=False), keep no counter, queue or cache there, and "
        "compute what depends on shapes alone before training. Large tensors that you change yourself between steps "
        "need a write that torch counts, such as copy_() under no_grad() instead of .data"
    )


def _refuse_mixing(culprit: str, how: str, apart: float, again: float) -> None:
    if again:
        raise NotPrivate(
            f"two runs over the same records give updates that are {again:.1%} apart: {culprit} draws "
            "random numbers that torch does not know of, so whether it mixes samples cannot be seen; draw with torch"
        )
    raise NotPrivate(
        f"when {how}, the updates of the others change by {apart:.1%}: {culprit} mixes samples "
        "(batch statistics, a batch mean, maximum or count, the longest sequence, a loss over pairs), so "
        "no clip bound holds; make each sample's output and loss depend on that sample alone"
    )


@dataclass(frozen=True)
class Products:
    """Multiplies each update by the same secret random vectors, and keeps the products instead of the updates.

    They are small, so the check needs no more memory than a step. The products stand for a difference of two updates:
    an estimate of less than a third of its length has a probability below one in a million.

    Args:
        seed: the seed of the random vectors.
    """

    seed: int

    @classmethod
    def drawn(cls) -> Products:
        """Return random vectors that nobody can foresee."""
        return cls(torch.Generator().seed())

    def __call__(self, updates: Updates) -> _Multiplied:
        draw = torch.Generator().manual_seed(self.seed)
        return _Multiplied(
            updates.norms(), [self._times(leaf, draw) for leaf in updates.leaves.values()], updates.losses.dtype
        )

    def _times(self, leaf: Leaf, draw: torch.Generator) -> Tensor:
        """Return the products of each sample's matrix with the vectors, (B, vectors, rows)."""
        if leaf.columns <= VECTORS:
            vectors = torch.eye(leaf.columns)  # the matrix itself
        else:
            vectors = torch.randn(VECTORS, leaf.columns, generator=draw) / math.sqrt(VECTORS)
        return leaf.times(vectors.to(leaf.like).expand(len(leaf), -1, -1))


@dataclass(frozen=True)
class _Multiplied:
    """The norms of updates, and their products with random vectors by parameter."""

    norms: Tensor
    products: list[Tensor]
    dtype: torch.dtype

    @property
    def tolerance(self) -> float:
        return _TOLERANCE[self.dtype]

    def select(self, index: Tensor) -> _Multiplied:
        return _Multiplied(self.norms[index], [part[index] for part in self.products], self.dtype)

    def apart_from(self, other: _Multiplied) -> float:
        """Return the largest relative distance between random linear combinations of two sets of updates.

        Differences can cancel in one combination, but hardly in several.
        """
        index = torch.isfinite(self.norms).nonzero().squeeze(1)  # samples with other norms are left out of every step
        norms = self.norms[index]
        drawn = torch.randn(COMBINATIONS, len(index), dtype=torch.float64, generator=_unforeseen()).to(norms.device)
        weights = drawn / norms.clamp(min=1)  # so that no sample dominates or overflows the sum
        square = weights.new_zeros(COMBINATIONS)
        for one, two in zip(self.products, other.products, strict=True):
            difference = (one[index].double() - two[index].double()).flatten(1)
            square += (weights @ difference).square().sum(1)
        scale = weights.abs() @ norms
        return float(torch.where(square > 0, square.sqrt() / scale.clamp(min=1e-300), square).max())  # NaN if any is


def _unforeseen() -> torch.Generator:
    """Return a generator with a seed from the operating system."""
    generator = torch.Generator()
    generator.seed()
    return generator


@dataclass(frozen=True)
class _Clipped:
    """Updates that are compared block by block after clipping, in the way of a clip rule."""

    rule: ClipRule
    updates: Updates

    @property
    def tolerance(self) -> float:
        return _TOLERANCE[self.updates.losses.dtype]

    def select(self, index: Tensor) -> _Clipped:
        return _Clipped(self.rule, self.updates.select(index))

    def apart_from(self, other: _Clipped) -> float:
        """Return the largest relative distance, over blocks, between random combinations of clipped updates.

        The bound is so low that every block is clipped, as it may be in training. The distance of a block is relative
        to its norm plus its possible rounding error: a block that is zero up to rounding cannot be compared.
        """
        before, after = self.updates, other.updates
        rounding = SUM_ROUNDINGS * torch.finfo(before.losses.dtype).eps
        norms = lengths(before)  # (B, blocks)
        usable = torch.isfinite(norms).all(1) & torch.isfinite(lengths(after)).all(1)
        norms = torch.where(usable[:, None], norms, 0.0)
        positive = norms[norms > 0]
        if not len(positive):
            return 0.0
        bound = max(1e-3 * float(positive.min()), 1e-12 * float(positive.max()))
        ceilings = torch.where(usable[:, None], before.ceilings_by_parameter(), 0.0)
        room = 0.02 * rounding * ceilings + NOTHING[before.losses.dtype] * total(norms)
        old, new = (admission(some, self.rule, bound).weights.expand_as(norms) for some in (before, after))
        old, new = (torch.where(usable[:, None], weights, 0.0) for weights in (old, new))
        counted = old * (norms + room / self.tolerance)
        draw = _unforeseen()
        worst = 0.0
        for _ in range(COMBINATIONS):
            drawn = torch.randn(len(before), 1, generator=draw, dtype=torch.float64).to(norms.device) / bound
            was, now = before.weighted_sum(drawn * old), after.weighted_sum(drawn * new)
            scales = (drawn.abs() * counted).sum(0)
            for name, scale in zip(was, scales.tolist(), strict=True):
                apart = _distance(was[name], now[name])
                if math.isnan(apart):
                    return apart
                worst = max(worst, apart / max(scale, 1e-300))
        return worst


def _distance(old: Tensor, new: Tensor) -> float:
    """Return the norm of the difference of two sums; the first is overwritten, because sums may be large."""
    return float(torch.linalg.vector_norm(old.sub_(new), dtype=torch.float64))


def _is_blockwise(rule: ClipRule) -> bool:
    """Return whether a rule gives the blocks of one sample different weights."""
    made_up = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    return rule.for_losses(torch.ones(2)).weights(made_up, 1.0).shape[1] > 1


def _in_float64(
    model: nn.Module, update: Update, loss: Loss, inputs: Any, targets: Any
) -> tuple[nn.Module, Loss, Update, Any, Any] | None:
    """Return a float64 copy of model, loss and records; None if they cannot be copied or the copy does not run."""

    def wide(tree: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, tree)

    try:
        exact, criterion = copy.deepcopy(model).double(), copy.deepcopy(loss)
        if isinstance(criterion, nn.Module):
            criterion.double()
        batch = wide(inputs), wide(targets)
        with untouched(exact):
            update(exact, criterion, *batch)
    except Exception:  # a model written for float32 is compared in its own precision
        return None
    return exact, criterion, update, *batch


_TOLERANCE = {torch.float32: 3e-4, torch.float64: 1e-8}
"""By data type: the largest relative distance of two updates that rounding explains."""


def _other_last(x: Tensor) -> Tensor:
    """Return the batch with another last record; real values are made larger in magnitude than all others."""
    x = x.clone()
    beyond = 1 + 3 * x.abs().amax(0) if x.is_floating_point() else None
    x[-1] = x[0] if beyond is None else torch.where(x[-1] > 0, -beyond, beyond)
    return x
