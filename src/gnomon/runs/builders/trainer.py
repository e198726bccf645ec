"""Builds the model and the Trainer that the settings of a run describe."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from gnomon import models
from gnomon.accounting import Sampling
from gnomon.data import Records, Source
from gnomon.errors import SettingError
from gnomon.features import FeatureMap
from gnomon.ledger import Ledger
from gnomon.losses import LOSSES
from gnomon.methods import softmax_head
from gnomon.release import SecureNoise, SeededNoise
from gnomon.runs.builders.method import build_method
from gnomon.runs.builders.records import declared_size, is_own
from gnomon.runs.config import TrainConfig
from gnomon.sampling import FLAGS
from gnomon.training import Trainer, evaluate, train_on_public
from gnomon.training.checks.model import refuse_device
from gnomon.validate import positive, whole

CLASSES_COUNTED = "The number of classes was read off the labels: the largest label is NOT protected."
"""Note of the statement if the number of classes was not declared."""

WARM_START = "The model started from one trained without noise on the public records: NOT protected."
"""Note of the statement if training started from the public records."""


def build_model(config: TrainConfig, source: Source, public: Records) -> nn.Module:
    """Return the initial model: with freshly drawn weights, or trained on the public records.

    >>> from gnomon.data import load
    >>> source = load("digits")
    >>> build_model(TrainConfig(), source, source.train[:0])(source.test.inputs[:1]).shape
    torch.Size([1, 10])
    """
    name = config.model or ("linear" if config.constraint else models.default_model(source))
    model = models.build(name, source.input_shape, source.classes, seed=config.seed).to(_device(config.device))
    if config.warm_start == "public":
        train_on_public(model, LOSSES[config.loss], public, weight_decay=config.public_weight_decay)
    return model


def public_only(config: TrainConfig, source: Source, public: Records) -> dict[str, float]:
    """Return the test scores of a model trained on the public records alone, which costs no privacy (epsilon 0).

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
    feature_map: FeatureMap | None = None,
) -> Trainer:
    """Return the Trainer that a config describes.

    Args:
        config: the settings of the run.
        source: the data set.
        public: the public records, empty if the settings use none.
        progress: whether to show a progress bar.
        ledger: the ledger to which the run is charged.
        dataset: the data set of the ledger to which the run is charged, by its name.
        feature_map: the map that computed the inputs of the model, for the statement.

    >>> from gnomon.data import load
    >>> source = load("digits")
    >>> build_trainer(TrainConfig(epochs=1.0), source, source.train[:0], progress=False).mechanism.steps
    6
    """
    if config.augmentation != "none" and len(source.input_shape) != 3:
        shape = "x".join(map(str, source.input_shape))
        expected = f"none for {source.name}, whose records have the shape {shape}: only images can be augmented"
        raise SettingError("augmentation", config.augmentation, expected)
    model = build_model(config, source, public)
    optimizer = _optimizer(config, model)
    size = declared_size(config, source)
    sampler, divisor = _sampling(config, size)
    method = build_method(config, public)
    if config.known_space == "softmax-head":
        method = method.within(softmax_head(model, LOSSES[config.loss]))
    target = config.target_epsilon
    if target is None and config.noise_multiplier is None and method.private:
        target = 1.0
    seed = config.insecure_noise_seed
    scheduler, scheduler_every = SCHEDULES[config.lr_schedule](optimizer, config.epochs)
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
        scheduler=scheduler,
        scheduler_every=scheduler_every,
        ema_decay=config.ema_decay,
        ema_schedule=config.ema_schedule,
        noise=SecureNoise() if seed is None else SeededNoise(seed),
        notes=_notes(config, source, public, feature_map),
        ledger=ledger,
        dataset=dataset,
        label=config.data_name,
        progress=progress,
    )


def _notes(config: TrainConfig, source: Source, public: Records, feature_map: FeatureMap | None) -> list[str]:
    """Return what the statement says about features, the number of classes and the draw of the records."""
    notes = [] if feature_map is None else [feature_map.description]
    if source.counted:
        notes.append(CLASSES_COUNTED)
    if is_own(config.data) and (source.cut or config.private_records is not None):
        notes.append(
            "Who is among the training records was drawn here from all records of the file: neighbours are sets of "
            "training records, after that draw."
        )
    if len(public):
        count = len(public) // config.public_copies
        notes.append(public_origin(config.data, config.split_seed, source, count))
    if len(public) and config.warm_start == "public":
        notes.append(WARM_START)
    return notes


def public_origin(data: str, split_seed: int, source: Source, count: int) -> str:
    """Return where the public records of a run came from, for its statement.

    >>> from gnomon.data import load
    >>> public_origin("digits", 3, load("digits"), 40)[:65]
    'The 40 public records were drawn from digits with split seed 3. A'
    """
    if source.public is not None:
        rest = "" if count == len(source.public) else f", as the first of {len(source.public)}"
        return f"The {count} public records are declared in the file (x_public){rest}."
    return (
        f"The {count} public records were drawn from {data} with split seed {split_seed}. A total over several runs "
        "holds only for records that none of the runs used as public."
    )


def _sampling(config: TrainConfig, size: int) -> tuple[Sampling, float]:
    """Return the sampling scheme, and the divisor of every noisy sum."""
    batch = whole("batch-size", config.batch_size)
    if batch > size:
        raise SettingError("batch-size", batch, f"at most {size}, the declared number of records")
    return FLAGS[config.sampler].for_batches(batch, size)


def _sgd(config: TrainConfig, model: nn.Module, lr: float) -> Optimizer:
    return SGD(model.parameters(), lr, momentum=config.momentum, weight_decay=config.weight_decay)


def _adam(config: TrainConfig, model: nn.Module, lr: float) -> Optimizer:
    return Adam(model.parameters(), lr, weight_decay=config.weight_decay)


def _adamw(config: TrainConfig, model: nn.Module, lr: float) -> Optimizer:
    return AdamW(model.parameters(), lr, weight_decay=config.weight_decay)


OPTIMIZERS: dict[str, Callable[[TrainConfig, nn.Module, float], Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
}
"""Optimizers by the name of the setting."""


def _optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    lr = positive("lr", config.lr)
    if config.momentum and config.optimizer != "sgd":
        raise SettingError("momentum", config.momentum, f"0 with {config.optimizer}, or the optimizer sgd")
    return OPTIMIZERS[config.optimizer](config, model, lr)


Schedule = Callable[[Optimizer, float], tuple[LRScheduler | None, Literal["step", "epoch"]]]
"""Makes a scheduler for a number of epochs, and says how often it advances."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda optimizer, epochs: (None, "epoch"),
    "cosine": lambda optimizer, epochs: (CosineAnnealingLR(optimizer, T_max=max(1, math.ceil(epochs))), "epoch"),
    "inverse-sqrt": lambda optimizer, epochs: (LambdaLR(optimizer, lambda step: (step + 1) ** -0.5), "step"),
}
"""Learning rate schedules by the name of the setting."""


def _device(name: str) -> torch.device:
    """Return a device after allocating on it, so that a missing device is named before anything else happens."""
    try:
        device = torch.device(name)
        refuse_device(device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError("device", name, f"a device of this machine ({str(error).splitlines()[0]})") from None
    return device
