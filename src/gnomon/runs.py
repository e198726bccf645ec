"""A training run from its config, and the folder it leaves behind."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from gnomon import clipping, models
from gnomon.accounting import FixedSize, FullBatch, Poisson, Sampling, Shuffled, TruncatedPoisson
from gnomon.config import TrainConfig, recipe
from gnomon.data import Records, Source, Split, load, public_private
from gnomon.diagnose.observer import Diagnostics
from gnomon.environment import environment
from gnomon.forms import FORMS
from gnomon.ledger import Ledger
from gnomon.ledger.ledger import BLOCK
from gnomon.losses import LOSSES
from gnomon.methods import METHODS, LocalSteps, Method
from gnomon.release import SecureNoise, SeededNoise
from gnomon.report import training_curve
from gnomon.report.events import EventFiles
from gnomon.run_folder import RunFolder
from gnomon.training import Result, Trainer, evaluate, save_checkpoint, train_on_public
from gnomon.training.checkpoint import remove_checkpoint
from gnomon.training.packing import untied
from gnomon.validate import SettingError, positive, whole


@dataclass(frozen=True)
class Run:
    """What a run gave, and where its files are."""

    result: Result
    trainer: Trainer
    folder: Path


def train(
    config: TrainConfig,
    out: Path,
    *,
    overwrite: bool = False,
    progress: bool = True,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    checkpoint_every: int | None = None,
    tensorboard: bool = False,
    diagnose_every: int | None = None,
) -> Run:
    """Train as the config says; leave config, metrics, model, statement and picture in `out`.

    With a ledger the run counts together with all others on the same records, or on the `dataset` of that name, and
    leaves a checkpoint every so many steps (by default an epoch, at least 16), from which `gnomon.resume` goes on.
    `tensorboard` writes event files into its folder `tensorboard` as well; `diagnose_every` writes diagnostics of every
    so many steps into `diagnostics.jsonl`.

    >>> import tempfile
    >>> config = TrainConfig(epochs=1.0, insecure_noise_seed=0)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = train(config, Path(place) / "run", progress=False)
    ...     sorted(p.name for p in run.folder.iterdir())  # doctest: +NORMALIZE_WHITESPACE
    ['config.yaml', 'curve.png', 'environment.json', 'metrics.jsonl', 'model.safetensors',
     'statement.json', 'statement.txt']
    """
    if config.threads is not None:
        torch.set_num_threads(whole("threads", config.threads))
    if tensorboard:
        EventFiles(out / "tensorboard")  # a missing package shows now
    source = load(config.data, config.data_dir)
    split = records(config, source)
    trainer = build_trainer(config, source, split.public, progress=progress, ledger=ledger, dataset=dataset)
    trainer.check(split.private)  # before anything of an earlier run is touched
    folder = RunFolder(out, overwrite)
    folder.write("config.yaml", config.to_yaml().encode())
    folder.write("environment.json", json.dumps(environment(), indent=2).encode())
    every = max(trainer.plan.steps_per_epoch, BLOCK)
    if checkpoint_every is not None:
        every = whole("checkpoint-every", checkpoint_every)
    notes = {
        "config": dataclasses.asdict(config),
        "every": every,
        "dataset": dataset,
        "tensorboard": tensorboard,
        "diagnose_every": diagnose_every,
    }
    return complete(config, trainer, source, split, folder, notes)


def complete(
    config: TrainConfig, trainer: Trainer, source: Source, split: Split, folder: RunFolder, notes: dict[str, Any]
) -> Run:
    """Train to the end, from wherever the trainer stands, and write what a run leaves behind."""
    began, history = trainer.account.steps, folder.history()
    resumable = trainer.spending.ledger is not None
    events = EventFiles(folder.path / "tensorboard") if notes["tensorboard"] else None
    if notes["diagnose_every"] is not None:
        trainer.observers += (
            Diagnostics(
                lambda record: folder.append("diagnostics.jsonl", json.dumps(record)), every=notes["diagnose_every"]
            ),
        )

    def keep(step: int) -> None:
        if resumable and (step % notes["every"] == 0 or step == began + 1):
            save_checkpoint(trainer, folder.path, **notes)

    def tell(record: dict[str, Any]) -> None:
        folder.append("metrics.jsonl", json.dumps(plain(record)))
        if events is not None:
            events(record)

    if len(split.public) and began == 0:
        alone = {"public records": len(split.public), **plain(public_only(config, source, split.public))}
        folder.write("public-only.json", json.dumps(alone, indent=2).encode())
    result = trainer.fit(split.private, source.test, on_epoch=tell, on_step=keep, evaluate_every=config.evaluate_every)
    if result.stopped == "interrupted" and resumable:
        save_checkpoint(trainer, folder.path, **notes)
    result.history[:0] = history
    final = trainer.model if trainer.average is None else trainer.average.module
    folder.write("model.safetensors", safetensors_bytes(untied(final.state_dict()), {"format": "pt"}))
    statement = trainer.statement()
    folder.write("statement.txt", statement.text().encode())
    folder.write("statement.json", statement.json().encode())
    if result.history:
        training_curve(result.history, f"{config.method} on {config.data}", folder.path / "curve.png")
    if result.stopped != "interrupted":
        remove_checkpoint(folder.path)
    return Run(result, trainer, folder.path)


def records(config: TrainConfig, source: Source) -> Split:
    """The records to protect, and public ones if the settings use any.

    >>> split = records(TrainConfig(method="pcdp", public=37), load("digits"))
    >>> len(split.private), len(split.public)
    (1400, 37)
    """
    public = public_count(config) if uses_public(config) else 0
    if config.private is None and public == 0:
        return Split(source.train, source.train[:0])
    if public >= len(source.train):
        raise SettingError("public", public, f"fewer than the {len(source.train)} records of the data set")
    private = config.private if config.private is not None else len(source.train) - public
    return public_private(source.train, private=private, public=public, seed=config.split_seed)


def public_count(config: TrainConfig) -> int:
    """How many records count as public. Nobody's own data become public unasked."""
    if config.public is None and is_own(config.data):
        raise SettingError("public", None, "how many of your records are public; they will NOT be protected")
    return whole("public", 100 if config.public is None else config.public)


def is_own(data: str) -> bool:
    """Whether the data are the user's, not a benchmark whose size everybody knows.

    >>> is_own("npz:patients.npz"), is_own("mnist")
    (True, False)
    """
    return data.startswith("npz:") or data.endswith(".npz")


def uses_public(config: TrainConfig) -> bool:
    """Whether the settings need public records.

    >>> uses_public(TrainConfig()), uses_public(TrainConfig(method="pdp"))
    (False, True)
    """
    maker = METHODS.get(config.method)
    asks = maker is not None and "public" in inspect.signature(maker).parameters
    return asks or config.warm_start == "public"


def build_model(config: TrainConfig, source: Source, public: Records) -> nn.Module:
    """The model at its start: freshly drawn, or taught by the public records.

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

    >>> source = load("digits")
    >>> sorted(public_only(TrainConfig(), source, source.train[:50]))
    ['accuracy', 'loss']
    """
    model = build_model(dataclasses.replace(config, warm_start="public"), source, public)
    return evaluate(model, LOSSES[config.loss], source.test)


METHOD_SETTINGS = {
    "rank": "rank",
    "scope": "per_tensor",
    "every": "every",
    "start": "start",
    "public_batch": "batch",
    "public_blocks": "blocks",
    "mask_rate": "rate",
    "residual": "residual",
    "pre_noise": "pre_noise",
    "constraint": "constraint",
    "sketch": "sketch",
    "form": "form",
    "iterate": "last",
}
"""Settings that only some methods have, and what the methods call them."""


def build_method(config: TrainConfig, public: Records) -> Method:
    """The method that a config stands for; settings that it does not have are refused.

    >>> build_method(TrainConfig(mask_rate=0.5, method="rsdp"), load("digits").train[:0]).subspace.name
    'random mask, rate 0.5'
    """
    maker = METHODS[_method_name(config)]
    wanted = inspect.signature(maker).parameters
    given: dict[str, Any] = {}
    if "clip" in wanted:
        given["clip"] = clipping.RULES[config.clip]()
    elif config.clip != TrainConfig().clip or config.max_grad_norm != recipe(config.data).max_grad_norm:
        raise SettingError("clip", config.clip, f"another method: {config.method} does not clip")
    if "constraint" in wanted:
        given["constraint"] = config.constraint
    if "public" in wanted:
        given["public"] = public
    for name in _changed(config):
        if METHOD_SETTINGS[name] not in wanted:
            flag = name.replace("_", "-")
            raise SettingError(flag, getattr(config, name), f"another method: {config.method} has no {flag}")
        given[METHOD_SETTINGS[name]] = getattr(config, name)
    if "form" in given:
        given["form"] = FORMS[config.form]
    if "last" in given:
        given["last"] = config.iterate == "last"
    if "per_tensor" in given:
        given["per_tensor"] = config.scope == "per-tensor"
    if config.rank is not None and math.isfinite(config.rank) and config.rank == int(config.rank):
        given["rank"] = int(config.rank)
    return _with_local_steps(config, maker(**given))


def _with_local_steps(config: TrainConfig, method: Method) -> Method:
    """Local steps go with every method; their settings without them are refused."""
    default = TrainConfig()
    if config.local_steps is None and not method.displaces:
        for name in ("local_lr", "local_momentum"):
            if getattr(config, name) != getattr(default, name):
                flag = name.replace("_", "-")
                raise SettingError(flag, getattr(config, name), "local-steps as well, or --method dp-lsgd")
        return method
    steps = LocalSteps().steps if config.local_steps is None else config.local_steps
    return dataclasses.replace(method, update=LocalSteps(steps, config.local_lr, config.local_momentum))


def without_foreign_settings(config: TrainConfig) -> TrainConfig:
    """The config without settings that its method does not have, for comparisons where only some methods have them.

    >>> without_foreign_settings(TrainConfig(rank=20)).rank is None
    True
    """
    wanted = inspect.signature(METHODS[_method_name(config)]).parameters
    foreign = [name for name in _changed(config) if METHOD_SETTINGS[name] not in wanted]
    foreign += [] if config.method == "dp-lsgd" else ["local_steps", "local_lr", "local_momentum"]
    return dataclasses.replace(config, **{name: getattr(TrainConfig(), name) for name in foreign})


def _method_name(config: TrainConfig) -> str:
    if config.method not in METHODS:
        raise SettingError("method", config.method, f"one of {', '.join(METHODS)}")
    return config.method


def _changed(config: TrainConfig) -> list[str]:
    return [name for name in METHOD_SETTINGS if getattr(config, name) != getattr(TrainConfig(), name)]


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

    >>> source = load("digits")
    >>> build_trainer(TrainConfig(epochs=1.0), source, source.train[:0], progress=False).plan.steps
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
        notes=_notes(config, public),
        ledger=ledger,
        dataset=dataset,
        label=Path(config.data.removeprefix("npz:")).stem,
        progress=progress,
    )


def _notes(config: TrainConfig, public: Records) -> list[str]:
    if not len(public):
        return []
    origin = f"The {len(public)} public records were drawn from {config.data} with split seed {config.split_seed}."
    if config.warm_start == "public":
        return [origin, "The model started from one trained without noise on the public records: NOT protected."]
    return [origin]


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
    makers: dict[str, Callable[[], tuple[Sampling, float]]] = {
        "poisson": lambda: (Poisson(batch / size), batch),
        # six standard deviations of room: truncation then costs next to nothing
        "truncated": lambda: (
            TruncatedPoisson(batch / size, min(size, math.ceil(batch + 6 * batch**0.5)), size),
            batch,
        ),
        "shuffled": lambda: (Shuffled(math.ceil(size / batch)), batch),
        "full": lambda: (FullBatch(), size),
        "fixed": lambda: (FixedSize(batch, size), batch),
    }
    return makers[config.sampler]()


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
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError("device", name, f"a device of this machine ({str(error).splitlines()[0]})") from None
    return device


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has neither NaN nor infinity."""
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else None for key, value in record.items()
    }
