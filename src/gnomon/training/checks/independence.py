"""Whether each sample's update depends on that sample alone, seen from a few records before training starts."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn

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
from gnomon.updates.gradients import batch_size
from gnomon.updates.random_ops import RepeatableRandomness
from gnomon.updates.snapshot import Snapshot, untouched
from gnomon.updates.trees import take_rows, tensors

FEW = 8
"""How many records are enough."""

COMBINATIONS = 4
"""How many random combinations of updates are compared."""

NOTHING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""A block of an update that is shorter than this part of the whole counts as zero in the comparison of blocks."""

LOOKED = 256
"""How many items of a Dataset are made in search of a second target; where targets are in memory, all are seen."""


def few(loader: Loader, order: Tensor) -> tuple[Any, Any]:
    """The first few records of an order, the last of them one with another target if they are all alike.

    >>> data = Loader((torch.zeros(50, 1), torch.arange(50).eq(40).long()))
    >>> few(data, torch.arange(50))[1]
    tensor([0, 0, 0, 0, 0, 0, 0, 1])
    """
    inputs, targets = loader.take(order[:FEW])
    if bool(unlike(targets, 0).any()):
        return inputs, targets
    rest, step = (order[FEW:], 2**16) if loader.in_memory else (order[FEW : FEW + LOOKED], 4 * FEW)
    for some in rest.split(step):
        seen = torch.cat([order[:1], some])
        other = unlike(loader.targets(seen), 0).nonzero().flatten()
        if len(other):
            return loader.take(torch.cat([order[: FEW - 1], seen[other[:1]]]))
    return inputs, targets


def enough(inputs: Any, targets: Any) -> bool:
    """Whether records can show a dependence of any kind: one alone, or with targets that are all alike, hides much.

    >>> enough(torch.zeros(3, 1), torch.tensor([0, 0, 1])), enough(torch.zeros(3, 1), torch.tensor([1, 1, 1]))
    (True, False)
    """
    return batch_size(inputs) > 1 and bool(unlike(targets, 0).any())


def unlike(targets: Any, position: int) -> Tensor:
    """Which records have another target than the one at a position, (B,).

    >>> unlike({"class": torch.tensor([1, 1, 1]), "box": torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 1.0]])}, 0)
    tensor([False,  True, False])
    """
    found = torch.zeros(0, dtype=torch.bool)
    for leaf in pytree.tree_leaves(targets):
        if isinstance(leaf, Tensor) and leaf.dim():
            differs = (leaf != leaf[position]).reshape(len(leaf), -1).any(1).cpu()
            found = found | differs if len(found) else differs
    return found


Coordinates = Callable[[Updates], Updates]
"""How a method looks at updates before it clips them."""

Comparison = Callable[[Updates, Updates], float]
"""How far updates are from what they were, as a share of their lengths."""


def refuse_dependence(
    model: nn.Module,
    loss: Loss,
    update: Update,
    inputs: Any,
    targets: Any,
    *,
    rule: ClipRule | None = None,
    coordinates: Coordinates | None = None,
) -> None:
    """Runs the update on a few records, then changes the company they are in, and compares.

    The last record is changed, given another target, or removed; then two records at a time are alone. Finds functional
    batch norm, batch means, a batch's maximum or longest sequence, ranking losses, losses balanced or standardised
    within the batch, and state of model or loss that a forward pass changes. Random numbers are the same in each run;
    where there are some, the runs with fewer records have constants in their place. Model and loss are left as they
    were, except for caches that hold the same whatever the records are: those stay filled.

    A clip `rule` that treats blocks of an update apart can lengthen one block beside the others, and `coordinates` may
    keep little of an update but what its batch shares. Then clipped updates are compared as well, block by block: with
    such a rule alone in float64 on a copy of the model, where the model has a copy that runs.
    """
    if batch_size(inputs) < 2:
        return
    _refuse_dependence(model, loss, update, inputs, targets, _whole_apart)
    clipped = partial(_blocks_apart, rule or Flat())
    if coordinates is not None:

        def in_coordinates(*batch: Any) -> Updates:
            return coordinates(update(*batch))

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
    compare: Comparison,
    culprit: str = "the model or the loss",
) -> None:
    size = batch_size(inputs)
    with untouched(model, parameters=True, loss=loss) as before:
        if not model.training:
            model.train()
            before.note(contents=True)
        chance = RepeatableRandomness(model)

        with chance.repeated() as watch:
            whole = update(model, loss, inputs, targets)

        def run(records: tuple[Any, Any], constant: bool = False) -> Updates:
            chance.restore()
            with chance.repeated(constant) if constant or watch.own else nullcontext():
                return update(model, loss, *records)

        filled = _refuse_lasting(before, run, inputs, targets) if before.changed() else before
        still = whole
        for how, kept, records in _variants(inputs, targets):
            constant = watch.drew and batch_size(records[0]) < size  # masks of dropout differ with the batch's size
            if constant and still is whole:
                still = run((inputs, targets), constant)
            base = (still if constant else whole).select(kept)
            apart = compare(base, run(records, constant).select(torch.arange(len(kept))))
            if not apart <= _tolerance(base):
                again = compare(whole, run((inputs, targets)))
                _refuse_mixing(culprit, how, apart, again=0.0 if again <= _tolerance(whole) else again)
        if touched := filled.changed():
            refuse_touched(touched)
        before.note()  # caches stay filled: the first step would be refused for filling them


def refuse_padding(model: nn.Module, loss: Loss, update: Update, inputs: Any, targets: Any) -> None:
    """Refuses a model whose updates depend on the padded length of a batch of sequences.

    A collated batch is as long as its longest record, so an update that depends on the length depends on the other
    records. Rows that end, or begin, with a run of equal values are shortened by half of that run, and updates are
    compared. A model that takes one length only, and a batch without such rows, show nothing.
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
            with chance.repeated(constant=True):
                before = update(model, loss, *rows)
            try:
                with chance.repeated(constant=True):
                    after = update(model, loss, *shorter)
            except Exception:  # the model takes one length only, so no batch of it is padded
                continue
        apart = _whole_apart(before, after)
        if not apart <= _tolerance(before):
            raise NotPrivate(
                f"with less padding, the updates of the same sequences change by {apart:.1%}: the padded length of a "
                "batch is that of its longest record, so one record reaches the updates of others and no clip bound "
                "holds; mask the padding in attention and pooling, or pad all records to one declared length"
            )


def _shortened(tree: Any, length: int, kept: slice) -> Any:
    """The tensors of that length with the kept positions alone."""

    def shortened(values: Tensor) -> Tensor:
        return values[:, kept] if values.dim() > 1 and values.shape[1] == length else values

    return pytree.tree_map_only(Tensor, shortened, tree)


def _padding(tree: Any, length: int, last: bool) -> Tensor:
    """How many positions at the end, or the beginning, of each record look like padding, (B,); zeros if none do.

    Padding is a run of one value in all tensors of that length, the same for at least half of the records and not for
    all of them: the longest record has none.
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


def _refuse_lasting(before: Snapshot, run: Callable[[Any], Updates], inputs: Any, targets: Any) -> Snapshot:
    """Refuses what the first run left behind, unless other records leave the same and it stays: a causal mask, say."""
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
    """Which records are as they were, and the batch that begins with them: all but the last one, then pairs alone."""
    size = batch_size(inputs)
    others = torch.arange(size - 1)
    yield "one sample is changed", others, (_each(_other_last, inputs), targets)
    unequal = unlike(targets, -1).nonzero().flatten()
    if len(unequal):  # a target that some record has is one that the loss takes
        exchanged = _each(lambda t: torch.cat([t[:-1], t[unequal[:1]]]), targets)
        yield "one sample is given another target", others, (inputs, exchanged)
    yield "one sample is removed", others, take_rows((inputs, targets), slice(-1))
    for start in range(0, min(size, FEW), 2) if size > 2 else ():
        pair = torch.tensor([min(start, size - 2), min(start, size - 2) + 1])
        yield "all but two samples are removed", pair, take_rows((inputs, targets), pair)


def _each(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: change(t) if t.dim() else t, tree)


def refuse_touched(touched: str) -> NoReturn:
    """Refuses state that was written to without noise, by its name. No value is quoted: it may come from a record."""
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


def _whole_apart(before: Updates, after: Updates) -> float:
    """How far random combinations of updates are from what they were, in units of their lengths; the farthest counts.

    Differences can cancel in one combination, not in several.
    """
    norms, losses = before.norms(), before.losses
    usable = torch.isfinite(norms)  # other samples are left out of every step
    norms = norms.where(usable, 0)
    draw = torch.Generator()
    draw.seed()
    found = []
    for _ in range(COMBINATIONS):
        drawn = torch.randn(len(before), generator=draw).to(losses)
        weights = (drawn / norms.clamp(min=1)).to(losses.dtype).where(usable, 0)  # none drowns or overflows the rest
        old, new = before.weighted_sum(weights), after.weighted_sum(weights)
        apart = sum(float((old[name] - new[name]).double().square().sum()) for name in old) ** 0.5
        scale = float((weights.abs() * norms).sum())
        found.append(apart / max(scale, 1e-300) if apart else 0.0)
    return float(torch.tensor(found, dtype=torch.float64).max())  # not a number if one is not


def _blocks_apart(rule: ClipRule, before: Updates, after: Updates) -> float:
    """How far random combinations of clipped updates are from what they were, in the block where that is farthest.

    The bound is so low that every block is clipped, because training may come there. A block counts with its length and
    with what rounding may do to it: of a block that is zero but for rounding nothing can be said.
    """
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
    old, new = (admission(some, rule, bound).weights.expand_as(norms) for some in (before, after))
    old, new = (torch.where(usable[:, None], weights, 0.0) for weights in (old, new))
    counted = old * (norms + room / _tolerance(before))
    draw = torch.Generator()
    draw.seed()
    worst = 0.0
    for _ in range(COMBINATIONS):
        drawn = torch.randn(len(before), 1, generator=draw, dtype=torch.float64).to(norms.device) / bound
        was, now = before.weighted_sum(drawn * old), after.weighted_sum(drawn * new)
        scales = (drawn.abs() * counted).sum(0)
        for name, scale in zip(was, scales.tolist(), strict=True):
            apart = float(torch.linalg.vector_norm((was[name] - now[name]).double()))
            if math.isnan(apart):
                return apart
            worst = max(worst, apart / max(scale, 1e-300))
    return worst


def _is_blockwise(rule: ClipRule) -> bool:
    """Whether a rule gives the blocks of one sample different weights."""
    made_up = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    return rule.for_losses(torch.ones(2)).weights(made_up, 1.0).shape[1] > 1


def _in_float64(
    model: nn.Module, update: Update, loss: Loss, inputs: Any, targets: Any
) -> tuple[nn.Module, Loss, Update, Any, Any] | None:
    """A copy of the model in float64, with loss and records; None if there is no such copy, or it does not run."""

    def wide(tree: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, tree)

    try:
        exact, criterion = copy.deepcopy(model).double(), copy.deepcopy(loss)
        if isinstance(criterion, nn.Module):
            criterion.double()
        batch = wide(inputs), wide(targets)
        with untouched(exact):
            update(exact, criterion, *batch)
    except Exception:  # it was written for float32: then its own precision has to do
        return None
    return exact, criterion, update, *batch


def _tolerance(updates: Updates) -> float:
    return 3e-4 if updates.losses.dtype is torch.float32 else 1e-8


def _other_last(x: Tensor) -> Tensor:
    """The batch with another last record, beyond all others where values are real numbers."""
    x = x.clone()
    beyond = 1 + 3 * x.abs().amax(0) if x.is_floating_point() else None
    x[-1] = x[0] if beyond is None else torch.where(x[-1] > 0, -beyond, beyond)
    return x
