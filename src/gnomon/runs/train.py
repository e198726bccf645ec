"""Trains a model from its settings, and writes the run folder."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes

from gnomon.data import Source, Split
from gnomon.diagnose.observer import EVERY, Diagnostics
from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.ledger.ledger import BLOCK
from gnomon.recipes import Plan
from gnomon.runs.builders import build_trainer, prepare, public_only
from gnomon.runs.builders.map_files import PUBLIC, STATE, map_bytes, public_bytes
from gnomon.runs.config import TrainConfig
from gnomon.runs.environment import environment
from gnomon.runs.folder import RunFolder
from gnomon.runs.predictor import FACTS, model_facts
from gnomon.runs.tensorboard import EventFiles
from gnomon.statement.consistency import file_hashes
from gnomon.training import Trainer, TrainingResult, save_checkpoint
from gnomon.training.checkpoint import remove_checkpoint
from gnomon.training.packing import untied
from gnomon.validate import whole


@dataclass(frozen=True)
class TrainingRun:
    """The result of a run, its Trainer, and the folder of its files."""

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
    on_start: Callable[[], None] | None = None,
    on_plan: Callable[[Plan], None] | None = None,
) -> TrainingRun:
    """Train a model and write config, metrics, model, privacy statement and training curve to `out`.

    Args:
        config: the settings of the run.
        out: the run folder.
        overwrite: whether to replace an earlier run in the folder.
        progress: whether to show a progress bar.
        ledger: the ledger to which the run is charged, together with all other runs on the same records. A run with a
            ledger writes checkpoints, from which `gnomon.runs.resume` continues.
        dataset: the data set of the ledger to charge, by its name instead of by its records.
        checkpoint_every: steps between two checkpoints (default: an epoch, at least 16).
        tensorboard: whether to write TensorBoard event files to the folder `tensorboard` of the run.
        diagnose_every: steps between two records of `diagnostics.jsonl` (default: no diagnostics).
        diagnose_public_only: whether diagnostics read no private record.
        on_start: called once all settings are checked and the run folder exists, before the first step.
        on_plan: called with the settings that a recipe chose.

    Raises:
        SettingError: a setting has a value that cannot be used. An earlier run in the folder is then untouched.

    >>> import tempfile
    >>> config = TrainConfig(epochs=1.0, insecure_noise_seed=0)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = train(config, Path(place) / "run", progress=False)
    ...     sorted(p.name for p in run.folder.iterdir())  # doctest: +NORMALIZE_WHITESPACE
    ['config.yaml', 'curve.png', 'environment.json', 'metrics.jsonl', 'model.json', 'model.safetensors',
     'statement.json', 'statement.txt']
    """
    if config.threads is not None:
        torch.set_num_threads(whole("threads", config.threads))
    whole("evaluate-every", config.evaluate_every)  # checked before the files of an earlier run are removed
    for name, every in (("checkpoint-every", checkpoint_every), ("diagnose", diagnose_every)):
        if every is not None:
            whole(name, every)
    if tensorboard:
        EventFiles(out / "tensorboard")  # raises now if the package is missing
    prepared = prepare(config, progress=progress)
    if prepared.plan is not None and on_plan is not None:
        on_plan(prepared.plan)
    config, source, split = prepared.config, prepared.source, prepared.split
    if diagnose_public_only and not len(split.public):
        raise SettingError.with_message(
            "diagnose-public-only needs a run with public records: use diagnose alone",
            name="diagnose-public-only",
            value=True,
        )
    trainer = build_trainer(
        config,
        source,
        split.public,
        progress=progress,
        ledger=ledger,
        dataset=dataset,
        feature_map=prepared.feature_map,
    )
    trainer.check(split.private)  # checked before the files of an earlier run are removed
    folder = RunFolder(out, overwrite)
    folder.write("config.yaml", config.to_yaml().encode())
    folder.write("environment.json", json.dumps(environment(), indent=2).encode())
    if prepared.feature_map is not None:
        folder.write(STATE, map_bytes(prepared.feature_map))
        if split.public.raw is not None:
            folder.write(PUBLIC, public_bytes(split.public.raw[: len(split.public) // config.public_copies]))
    notes = {
        "config": dataclasses.asdict(config),
        "every": checkpoint_every or max(trainer.mechanism.steps_per_epoch, BLOCK),
        "dataset": dataset,
        "tensorboard": tensorboard,
        "diagnose_every": EVERY if diagnose_public_only and diagnose_every is None else diagnose_every,
        "diagnose_public_only": diagnose_public_only,
    }
    if on_start is not None:
        on_start()
    return complete(config, trainer, source, split, folder, notes)


def complete(
    config: TrainConfig, trainer: Trainer, source: Source, split: Split, folder: RunFolder, notes: dict[str, Any]
) -> TrainingRun:
    """Train from the Trainer's present step to the end, and write the files of the run.

    Args:
        config: the settings of the run.
        trainer: a new Trainer, or one that was restored from a checkpoint.
        source: the data set.
        split: its private and public records.
        folder: the run folder.
        notes: options of `train`, which checkpoints carry for `gnomon.runs.resume`.
    """
    first_step, history = trainer.account.steps, folder.history()
    resumable = trainer.ledger_session.ledger is not None
    events = EventFiles(folder.path / "tensorboard") if notes["tensorboard"] else None
    if notes["diagnose_every"] is not None:
        trainer.observers += (
            Diagnostics(
                lambda record: folder.append("diagnostics.jsonl", json.dumps(record)),
                every=notes["diagnose_every"],
                public=public_beside(trainer, split.public),
                public_only=notes["diagnose_public_only"],
            ),
        )

    def write_checkpoint(step: int) -> None:
        if resumable and (step % notes["every"] == 0 or step == first_step + 1):
            save_checkpoint(trainer, folder.path, **notes)

    def write_metrics(record: dict[str, Any]) -> None:
        folder.append("metrics.jsonl", json.dumps(plain(record)))
        if events is not None:
            events(record)

    if len(split.public) and first_step == 0:
        count = len(split.public) // config.public_copies
        scores = {"public records": count, **plain(public_only(config, source, split.public))}
        folder.write("public-only.json", json.dumps(scores, indent=2).encode())
    result = trainer.fit(
        split.private,
        source.test,
        on_epoch=write_metrics,
        on_step=write_checkpoint,
        evaluate_every=config.evaluate_every,
    )
    if resumable:  # also after the last step: writing the files may fail, and the steps are already charged
        save_checkpoint(trainer, folder.path, **notes)
    if first_step and not result.history:  # all steps were reserved: the last metrics are of a lost model
        result.history.append(trainer.record(source.test))
        write_metrics(result.history[-1])
    result.history[:0] = history
    raw = split.private if split.private.raw is None else split.private.raw
    folder.write(FACTS, model_facts(source, raw).encode())
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
    """Return public records that the method itself does not use, such as those of a warm start, or None."""
    return public if trainer.method.public is None and len(public) else None


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with None in place of NaN and infinity, which JSON does not have."""
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else None for key, value in record.items()
    }
