"""The model and the Trainer that settings stand for."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from gnomon import models
from gnomon.accounting import Sampling
from gnomon.data import Records, Source
from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.losses import LOSSES
from gnomon.release import SecureNoise, SeededNoise
from gnomon.runs.builders.method import build_method
from gnomon.runs.builders.records import is_own, public_count, uses_public
from gnomon.runs.config import TrainConfig
from gnomon.sampling import FLAGS
from gnomon.training import Trainer, evaluate, train_on_public
from gnomon.training.checks.model import refuse_device
from gnomon.validate import positive, whole

CLASSES_COUNTED = "The number of classes was read off the labels: the largest label is NOT protected."
"""What a statement says if nobody declared it."""


def build_model(config: TrainConfig, source: Source, public: Records) -> nn.Module:
    """The model at its start: freshly drawn, or taught by the public records.

    >>> from gnomon.data import load
    >>> source = load("digits")
    >>> build_model(TrainConfig(), source, source.train[:0])(source.test.inputs[:1]).shape
    torch.Size([1, 10])
    """
    name = config.model or ("linear" if config.constraint else models.default_model(source))
    model = models.build(name, source.input_shape, source.classes, seed=config.seed).to(_device(config.device))
    if config.warm_start == "public":
        train_on_public(model, LOSSES[config.loss], public)
    return model


def public_only(config: TrainConfig, source: Source, public: Records) -> dict[str, float]:
    """What the public records give alone, without any private one: scores on the test records at epsilon 0.

    >>> from gnomon.data import load
    >>> source = load("digits")
    >>> sorted(public_only(TrainConfig(), source, source.train[:50]))
    ['accuracy', 'loss']
    """
    model = build_model(dataclasses.replace(config, warm_start="public"), source, public)
    return evaluate(model, LOSSES[config.loss], source.test)


def build_trainer(
    config: TrainConfig,
    source: Source,
    public: Records,
    *,
    progress: bool = True,
    ledger: Ledger | None = None,
    dataset: str | None = None,
) -> Trainer:
    """The Trainer that a config stands for, on a source.

    >>> from gnomon.data import load
    >>> source = load("digits")
    >>> build_trainer(TrainConfig(epochs=1.0), source, source.train[:0], progress=False).mechanism.steps
    6
    """
    model = build_model(config, source, public)
    optimizer = _optimizer(config, model)
    size = _declared_size(config, source)
    sampler, divisor = _sampling(config, size)
    method = build_method(config, public)
    target = config.target_epsilon
    if target is None and config.noise_multiplier is None and method.private:
        target = 1.0
    seed = config.insecure_noise_seed
    return Trainer(
        model,
        LOSSES[config.loss],
        optimizer,
        method=method,
        max_grad_norm=config.max_grad_norm,
        sampler=sampler,
        expected_batch_size=divisor,
        target_epsilon=target,
        noise_multiplier=config.noise_multiplier,
        target_delta=config.target_delta,
        epochs=config.epochs,
        accountant=config.accountant,  # type: ignore[arg-type]  # checked by the config
        adjacency=config.adjacency,
        max_physical_batch_size=config.max_physical_batch_size,
        scheduler=_scheduler(config, optimizer),
        scheduler_every="step" if config.schedule == "inverse-sqrt" else "epoch",
        ema_decay=config.ema_decay,
        noise=SecureNoise() if seed is None else SeededNoise(seed),
        notes=_notes(config, source, public),
        ledger=ledger,
        dataset=dataset,
        label=Path(config.data.removeprefix("npz:")).stem,
        progress=progress,
    )


def _notes(config: TrainConfig, source: Source, public: Records) -> list[str]:
    notes = []
    if source.counted:
        notes.append(CLASSES_COUNTED)
    if is_own(config.data) and (source.cut or config.private is not None or len(public)):
        notes.append(
            "Who is among the training records was drawn here from all records of the file: neighbours are sets of "
            "training records, after that draw."
        )
    if len(public):
        notes.append(
            f"The {len(public)} public records were drawn from {config.data} with split seed {config.split_seed}."
        )
    if len(public) and config.warm_start == "public":
        notes.append("The model started from one trained without noise on the public records: NOT protected.")
    return notes


def _declared_size(config: TrainConfig, source: Source) -> int:
    if config.dataset_size is not None:
        return whole("dataset-size", config.dataset_size)
    if is_own(config.data):
        raise SettingError(
            "dataset-size",
            None,
            "the number of records you are ready to declare in public; it sets the sample rate",
        )
    return config.private or len(source.train) - (public_count(config) if uses_public(config) else 0)


def _sampling(config: TrainConfig, size: int) -> tuple[Sampling, float]:
    """The declared sampling and the divisor of each step."""
    batch = whole("batch-size", config.batch_size)
    if batch > size:
        raise SettingError("batch-size", batch, f"at most the declared {size} records")
    return FLAGS[config.sampler].for_batches(batch, size)


def _optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    lr = positive("lr", config.lr)
    if config.optimizer == "sgd":
        return SGD(model.parameters(), lr, momentum=config.momentum, weight_decay=config.weight_decay)
    if config.momentum:
        raise SettingError("momentum", config.momentum, f"0 with {config.optimizer}, or --optimizer sgd")
    kind = Adam if config.optimizer == "adam" else AdamW
    return kind(model.parameters(), lr, weight_decay=config.weight_decay)


def _scheduler(config: TrainConfig, optimizer: Optimizer) -> LRScheduler | None:
    if config.schedule == "constant":
        return None
    if config.schedule == "inverse-sqrt":
        return LambdaLR(optimizer, lambda step: (step + 1) ** -0.5)
    return CosineAnnealingLR(optimizer, T_max=max(1, math.ceil(config.epochs)))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        refuse_device(device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError("device", name, f"a device of this machine ({str(error).splitlines()[0]})") from None
    return device
