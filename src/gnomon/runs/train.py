"""A training run from its config, and the folder it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes

from gnomon.data import Source, Split, load
from gnomon.diagnose.observer import EVERY, Diagnostics
from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.ledger.ledger import BLOCK
from gnomon.runs.builders import build_trainer, public_only, records
from gnomon.runs.config import TrainConfig
from gnomon.runs.environment import environment
from gnomon.runs.folder import RunFolder
from gnomon.runs.tensorboard import EventFiles
from gnomon.statement.consistency import file_hashes
from gnomon.training import Trainer, TrainingResult, save_checkpoint
from gnomon.training.checkpoint import remove_checkpoint
from gnomon.training.packing import untied
from gnomon.validate import whole


@dataclass(frozen=True)
class TrainingRun:
    """What a run gave, and where its files are."""

    result: TrainingResult
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
    diagnose_public_only: bool = False,
) -> TrainingRun:
    """Train as the config says; leave config, metrics, model, statement and picture in `out`.

    With a ledger the run counts together with all others on the same records, or on the `dataset` of that name, and
    leaves a checkpoint every so many steps (by default an epoch, at least 16), from which `gnomon.runs.resume` goes on.
    `tensorboard` writes event files into its folder `tensorboard` as well; `diagnose_every` writes diagnostics of every
    so many steps into `diagnostics.jsonl`; with `diagnose_public_only` they read no private record.

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
    whole("evaluate-every", config.evaluate_every)  # before anything of an earlier run is touched
    for name, every in (("checkpoint-every", checkpoint_every), ("diagnose", diagnose_every)):
        if every is not None:
            whole(name, every)
    if tensorboard:
        EventFiles(out / "tensorboard")  # a missing package shows now
    source = load(config.data, config.data_dir)
    split = records(config, source)
    if diagnose_public_only and not len(split.public):
        raise SettingError("diagnose-public-only", True, "a run with public records, or --diagnose alone")
    trainer = build_trainer(config, source, split.public, progress=progress, ledger=ledger, dataset=dataset)
    trainer.check(split.private)  # before anything of an earlier run is touched
    folder = RunFolder(out, overwrite)
    folder.write("config.yaml", config.to_yaml().encode())
    folder.write("environment.json", json.dumps(environment(), indent=2).encode())
    notes = {
        "config": dataclasses.asdict(config),
        "every": checkpoint_every or max(trainer.mechanism.steps_per_epoch, BLOCK),
        "dataset": dataset,
        "tensorboard": tensorboard,
        "diagnose_every": EVERY if diagnose_public_only and diagnose_every is None else diagnose_every,
        "diagnose_public_only": diagnose_public_only,
    }
    return complete(config, trainer, source, split, folder, notes)


def complete(
    config: TrainConfig, trainer: Trainer, source: Source, split: Split, folder: RunFolder, notes: dict[str, Any]
) -> TrainingRun:
    """Train to the end, from wherever the trainer stands, and write what a run leaves behind."""
    began, history = trainer.account.steps, folder.history()
    resumable = trainer.ledger_session.ledger is not None
    events = EventFiles(folder.path / "tensorboard") if notes["tensorboard"] else None
    if notes["diagnose_every"] is not None:
        trainer.observers += (
            Diagnostics(
                lambda record: folder.append("diagnostics.jsonl", json.dumps(record)),
                every=notes["diagnose_every"],
                public=public_beside(trainer, split.public),
                public_only=notes.get("diagnose_public_only", False),  # checkpoints of earlier versions do not say
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
    if resumable:  # also when it is finished: what follows may fail, and steps are paid for
        save_checkpoint(trainer, folder.path, **notes)
    if began and not result.history:  # all steps were reserved: the last row is of a model that is lost
        result.history.append(trainer.record(source.test))
        tell(result.history[-1])
    result.history[:0] = history
    folder.write("model.safetensors", safetensors_bytes(untied(trainer.final.state_dict()), {"format": "pt"}))
    statement = dataclasses.replace(trainer.statement(), files=file_hashes(folder.path))
    folder.write("statement.txt", statement.text().encode())
    folder.write("statement.json", statement.json().encode())
    if result.history:
        from gnomon.figures.curve import training_curve  # noqa: PLC0415  # loads matplotlib

        training_curve(result.history, f"{config.method} on {config.data}", folder.path / "curve.png")
    if result.stopped != "interrupted":
        remove_checkpoint(folder.path)
    return TrainingRun(result, trainer, folder.path)


def public_beside(trainer: Trainer, public: Any) -> Any:
    """The public records of a run whose method has none of its own, such as those of a warm start; None without any."""
    return public if trainer.method.public is None and len(public) else None


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has neither NaN nor infinity."""
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else None for key, value in record.items()
    }
