"""What is refused before training starts, because no clip bound would hold for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils import _pytree as pytree

from gnomon.data import Loader
from gnomon.data.split import refuse_shared
from gnomon.methods import Update
from gnomon.updates import Loss, Updates
from gnomon.updates.gradients import batch_size
from gnomon.updates.untouched import untouched
from gnomon.validate import SettingError


class NotPrivate(ValueError):
    """The model or its data flow lets one person reach another one's update.

    >>> issubclass(NotPrivate, ValueError)
    True
    """


def refuse_batch_norm(model: nn.Module) -> None:
    """Batch normalisation in any form: training or frozen, with or without affine weights.

    >>> refuse_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    Traceback (most recent call last):
    gnomon.training.refusals.NotPrivate: module '1' is BatchNorm1d: it mixes the samples of a batch, so no \
clip bound holds, frozen or not; use nn.GroupNorm or nn.LayerNorm instead
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise NotPrivate(
                f"module '{name}' is {type(module).__name__}: it mixes the samples of a batch, so no "
                "clip bound holds, frozen or not; use nn.GroupNorm or nn.LayerNorm instead"
            )


def refuse_max_norm(model: nn.Module) -> None:
    """Embeddings that shorten the rows they look up, in place and without noise: trainable or frozen.

    >>> refuse_max_norm(nn.Embedding(3, 2, max_norm=1.0).requires_grad_(False))
    Traceback (most recent call last):
    gnomon.training.refusals.NotPrivate: module '' is Embedding with max_norm: looking a row up changes it, so the \
saved model would show who looked; build it without max_norm
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise NotPrivate(
                f"module '{name}' is {type(module).__name__} with max_norm: looking a row up changes it, so the saved "
                "model would show who looked; build it without max_norm"
            )


def refuse_optimizer(optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
    """An optimizer or a scheduler that cannot be driven by released gradients alone.

    >>> refuse_optimizer(torch.optim.LBFGS([nn.Parameter(torch.zeros(1))]), None)
    Traceback (most recent call last):
    gnomon.validate.SettingError: optimizer = 'LBFGS' is not allowed: give one that takes one gradient a step
    """
    if isinstance(optimizer, LBFGS):
        raise SettingError("optimizer", "LBFGS", "one that takes one gradient a step")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise SettingError(
            "scheduler", "ReduceLROnPlateau", "one that needs no metric: a private loss must not steer the step size"
        )


def refuse_foreign_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    """The optimizer must hold exactly the model's trainable parameters."""
    names = {p: name for name, p in model.named_parameters() if p.requires_grad}
    held = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if not names:
        raise ValueError("the model has no parameter with requires_grad: there is nothing to train")
    missing = [name for p, name in names.items() if p not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not hold {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}: "
            "pass model.parameters(), or freeze what should not move with requires_grad_(False)"
        )
    if held - set(names):
        raise ValueError(
            f"the optimizer holds {len(held - set(names))} parameters that are not the model's: "
            "build it from model.parameters() after the model is final"
        )


def refuse_dependence(model: nn.Module, loss: Loss, update: Update, inputs: Any, targets: Any) -> None:
    """Runs the update on a few records, changes or removes the last one, and compares the others' updates.

    Finds functional batch norm, batch means, ranking losses, and buffers that a forward pass changes. The
    model is left as it was.
    """
    size = batch_size(inputs)
    if size < 2:
        return
    changed = pytree.tree_map_only(Tensor, _other_last, inputs)
    shorter = pytree.tree_map_only(Tensor, lambda t: t[:-1], (inputs, targets))
    with untouched(model, parameters=True) as before:
        if not model.training:
            model.train()
        random = torch.get_rng_state()
        whole = update(model, loss, inputs, targets)
        draws = not torch.equal(random, torch.get_rng_state())
        if touched := before.changed():
            what = "parameter" if touched in dict(model.named_parameters()) else "buffer"
            raise NotPrivate(
                f"a training forward pass changes the {what} '{touched}': what it reads off people's records would "
                "end up in the saved model; build the module without running statistics "
                "(track_running_stats=False) or whatever else writes there"
            )
        others = torch.arange(size - 1)
        torch.set_rng_state(random)
        _compare(whole.select(others), update(model, loss, changed, targets).select(others), "changed")
        if not draws:  # masks of dropout differ with the batch's size
            _compare(whole.select(others), update(model, loss, *shorter), "removed")


def refuse_overlap(train: Loader, public: Loader) -> None:
    """Public records must not occur, by content, among the private ones."""
    refuse_shared(train.marks(), public.marks())


def _compare(before: Updates, after: Updates, how: str) -> None:
    """A random combination of the untouched samples' updates must be what it was."""
    norms = before.norms()
    weights = torch.randn(len(before), dtype=before.losses.dtype, device=before.losses.device)
    usable = torch.isfinite(norms)  # other samples are left out of every step
    norms = norms.where(usable, 0)
    weights = (
        (weights / norms.clamp(min=1)).to(weights.dtype).where(usable, 0)
    )  # no sample drowns or overflows the rest
    old, new = before.weighted_sum(weights), after.weighted_sum(weights)
    apart = sum(float((old[name] - new[name]).double().square().sum()) for name in old) ** 0.5
    scale = float((weights.abs() * norms).sum())
    tolerance = 3e-4 if before.losses.dtype is torch.float32 else 1e-8
    if not apart <= tolerance * scale:
        raise NotPrivate(
            f"when one sample is {how}, the updates of the others change "
            f"by {apart / max(scale, 1e-300):.1%}: the model or the loss mixes samples "
            "(batch statistics, a batch mean, a loss over pairs), "
            "so no clip bound holds; make each sample's output and loss depend on that sample alone"
        )


def _other_last(x: Tensor) -> Tensor:
    """The batch with another last record, far from it where values are real numbers."""
    x = x.clone()
    x[-1] = 3.0 - 5.0 * x[-1] if x.is_floating_point() else x[0]
    return x
