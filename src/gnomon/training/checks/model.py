"""Checks of model, optimizer and public records before training starts, where no clip bound could hold."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gnomon.data import Loader
from gnomon.data.split import refuse_shared
from gnomon.errors import GnomonError, SettingError


class NotPrivate(GnomonError, ValueError):
    """The model or its data flow lets one record influence the update of another, so no clip bound holds.

    >>> issubclass(NotPrivate, ValueError)
    True
    """


def check_model(model: nn.Module) -> None:
    """Refuse a model for which no clip bound could hold, or that no step could compute.

    Raises:
        NotPrivate: a module mixes samples, changes weights in a forward pass, or is spread over processes.
        SettingError: the model is on a device without float64.

    >>> check_model(nn.Linear(2, 2))
    """
    for parameter in model.parameters():
        refuse_device(parameter.device)
    refuse_distributed(model)
    refuse_batch_norm(model)
    refuse_max_norm(model)


def refuse_batch_norm(model: nn.Module) -> None:
    """Refuse batch normalisation in any form: training or frozen, with or without affine weights.

    >>> refuse_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    Traceback (most recent call last):
    gnomon.training.checks.model.NotPrivate: module '1' is BatchNorm1d: it mixes the samples of a batch, so no \
clip bound holds, frozen or not; use nn.GroupNorm or nn.LayerNorm instead
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise NotPrivate(
                f"module '{name}' is {type(module).__name__}: it mixes the samples of a batch, so no "
                "clip bound holds, frozen or not; use nn.GroupNorm or nn.LayerNorm instead"
            )


def refuse_distributed(model: nn.Module) -> None:
    """Refuse models that are wrapped or sharded for several processes or devices: each would release its own sum.

    >>> refuse_distributed(nn.DataParallel(nn.Linear(2, 2)))
    Traceback (most recent call last):
    gnomon.training.checks.model.NotPrivate: the model is wrapped in DataParallel: each process or device would clip, \
noise and account for its own part alone; hand over the plain module (model.module) and train in one process
    """
    for name, module in model.named_modules():
        kind = next((base.__name__ for base in type(module).__mro__ if base.__name__ in WRAPPERS), None)
        if kind is not None:
            where = f"module '{name}'" if name else "the model"
            raise NotPrivate(
                f"{where} is wrapped in {kind}: each process or device would clip, noise and account for its own part "
                "alone; hand over the plain module (model.module) and train in one process"
            )
    for name, p in model.named_parameters():
        if type(p).__name__ == "DTensor" or type(p.data).__name__ == "DTensor":
            raise NotPrivate(
                f"parameter '{name}' is a DTensor, sharded over processes (FSDP2 or tensor parallelism): a record's "
                "update would be clipped by parts; train a model that one process holds whole"
            )


WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
"""Classes of torch that distribute a model over processes or devices."""


def refuse_device(device: torch.device) -> None:
    """Refuse a device without float64, in which norms, sums and noise are computed.

    >>> refuse_device(torch.device("mps"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: device = 'mps' is invalid; expected cpu or cuda: norms and noise are computed in \
float64, which MPS does not have
    """
    if device.type == "mps":
        raise SettingError(
            "device", str(device), "cpu or cuda: norms and noise are computed in float64, which MPS does not have"
        )


def refuse_max_norm(model: nn.Module) -> None:
    """Refuse embeddings that renormalise the rows they look up, in place and without noise, trainable or frozen.

    >>> refuse_max_norm(nn.Embedding(3, 2, max_norm=1.0).requires_grad_(False))
    Traceback (most recent call last):
    gnomon.training.checks.model.NotPrivate: module '' is Embedding with max_norm: looking a row up changes it, so the \
saved model would show who looked; build it without max_norm
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise NotPrivate(
                f"module '{name}' is {type(module).__name__} with max_norm: looking a row up changes it, so the saved "
                "model would show who looked; build it without max_norm"
            )


def refuse_optimizer(optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
    """Refuse an optimizer or a scheduler that needs more than released gradients.

    >>> refuse_optimizer(torch.optim.LBFGS([nn.Parameter(torch.zeros(1))]), None)
    Traceback (most recent call last):
    gnomon.errors.SettingError: optimizer = 'LBFGS' is invalid; expected an optimizer that takes one gradient per step
    """
    if isinstance(optimizer, LBFGS):
        raise SettingError("optimizer", "LBFGS", "an optimizer that takes one gradient per step")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise SettingError(
            "scheduler",
            "ReduceLROnPlateau",
            "a scheduler that needs no metric: a private loss must not steer the step size",
        )


def refuse_foreign_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that does not hold exactly the trainable parameters of the model."""
    names = {p: name for name, p in model.named_parameters() if p.requires_grad}
    held = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if not names:
        raise SettingError.with_message("the model has no parameter with requires_grad: there is nothing to train")
    missing = [name for p, name in names.items() if p not in held]
    if missing:
        raise SettingError.with_message(
            f"the optimizer does not hold {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}: "
            "pass model.parameters(), or freeze what should not move with requires_grad_(False)"
        )
    if held - set(names):
        raise SettingError.with_message(
            f"the optimizer holds {len(held - set(names))} parameters that are not the model's: "
            "build it from model.parameters() after the model is final"
        )


def refuse_overlap(train: Loader, public: Loader) -> None:
    """Refuse public records that also occur, by content, among the private ones."""
    sparse = train.sparse or public.sparse
    refuse_shared(train.marks(sparse=sparse), public.marks(sparse=sparse))
