"""Whether each sample's update depends on that sample alone, seen from a few records before training starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from operator import itemgetter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.data import Loader
from gnomon.methods import Update
from gnomon.training.refusals import NotPrivate
from gnomon.updates import Loss, Updates
from gnomon.updates.chance import Chance
from gnomon.updates.gradients import batch_size
from gnomon.updates.snapshot import Snapshot, untouched

FEW = 8
"""How many records are enough."""

COMBINATIONS = 4
"""How many random combinations of updates are compared."""

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


def refuse_dependence(model: nn.Module, loss: Loss, update: Update, inputs: Any, targets: Any) -> None:
    """Runs the update on a few records, then changes the company they are in, and compares.

    The last record is changed, given another target, or removed; then two records at a time are alone. Finds functional
    batch norm, batch means, a batch's maximum or longest sequence, ranking losses, losses balanced or standardised
    within the batch, and state of model or loss that a forward pass changes. Random numbers are the same in each run;
    where there are some, the runs with fewer records have constants in their place. Model and loss are left as they
    were, except for caches that hold the same whatever the records are: those stay filled.
    """
    size = batch_size(inputs)
    if size < 2:
        return
    with untouched(model, parameters=True, loss=loss) as before:
        if not model.training:
            model.train()
            before.note(contents=True)
        chance = Chance(model)

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
            apart = _apart(base, run(records, constant).select(torch.arange(len(kept))))
            if not apart <= _tolerance(base):
                again = _apart(whole, run((inputs, targets)))
                _refuse_mixing(how, apart, again=0.0 if again <= _tolerance(whole) else again)
        if touched := filled.changed():
            refuse_touched(touched)
        before.note()  # caches stay filled: the first step would be refused for filling them


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
    yield "one sample is removed", others, _each(lambda t: t[:-1], (inputs, targets))
    for start in range(0, min(size, FEW), 2) if size > 2 else ():
        pair = torch.tensor([min(start, size - 2), min(start, size - 2) + 1])
        yield "all but two samples are removed", pair, _each(itemgetter(pair), (inputs, targets))


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


def _refuse_mixing(how: str, apart: float, again: float) -> None:
    if again:
        raise NotPrivate(
            f"two runs over the same records give updates that are {again:.1%} apart: the model or the loss draws "
            "random numbers that torch does not know of, so whether it mixes samples cannot be seen; draw with torch"
        )
    raise NotPrivate(
        f"when {how}, the updates of the others change by {apart:.1%}: the model or the loss mixes samples "
        "(batch statistics, a batch mean, maximum or count, the longest sequence, a loss over pairs), so "
        "no clip bound holds; make each sample's output and loss depend on that sample alone"
    )


def _apart(before: Updates, after: Updates) -> float:
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


def _tolerance(updates: Updates) -> float:
    return 3e-4 if updates.losses.dtype is torch.float32 else 1e-8


def _other_last(x: Tensor) -> Tensor:
    """The batch with another last record, beyond all others where values are real numbers."""
    x = x.clone()
    beyond = 1 + 3 * x.abs().amax(0) if x.is_floating_point() else None
    x[-1] = x[0] if beyond is None else torch.where(x[-1] > 0, -beyond, beyond)
    return x
