"""Resumes a training run that was stopped or killed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.runs.builders import build_trainer, prepare
from gnomon.runs.config import TrainConfig, read_yaml
from gnomon.runs.folder import RunFolder
from gnomon.runs.setting_names import dashed
from gnomon.runs.train import TrainingRun, complete
from gnomon.training.checkpoint import NAME, CheckpointError, read_checkpoint, restore_checkpoint


def resume(out: Path, *, ledger: Ledger | None = None, progress: bool = True) -> TrainingRun:
    """Resume the run in a folder from its last checkpoint, with fresh noise.

    Steps that are reserved in the ledger count as taken, whether or not the run took them before it ended.

    Args:
        out: the folder of the run.
        ledger: the ledger of the run, if it was moved.
        progress: whether to show a progress bar.

    Raises:
        SettingError: the folder holds no checkpoint, or the ledger is missing.
        CheckpointError: the config or the data changed, or the ledger was edited or is older than the checkpoint.

    >>> resume(Path("nowhere"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: run = 'nowhere' is invalid; expected the folder of a run that was stopped or killed
    """
    if not (out / NAME).exists():
        ended = "; this run has ended" if (out / "statement.txt").exists() else ""
        raise SettingError("run", str(out), f"the folder of a run that was stopped or killed{ended}")
    checkpoint = read_checkpoint(out)
    notes = checkpoint.facts["notes"]
    config = _config(out, notes["config"])
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    prepared = prepare(config, progress=progress, stored=out)
    source, split = prepared.source, prepared.split
    trainer = build_trainer(
        _with_noise(config, checkpoint.facts["settings"]),
        source,
        split.public,
        progress=progress,
        ledger=ledger or _ledger(Path(checkpoint.facts["ledger"])),
        dataset=notes["dataset"],
        feature_map=prepared.feature_map,
    )
    restore_checkpoint(trainer, checkpoint, split.private)
    return complete(config, trainer, source, split, RunFolder(out, again=True), notes)


def _config(out: Path, settings_at_start: dict[str, object]) -> TrainConfig:
    """Return the config with which the run started; raise CheckpointError if config.yaml differs from it."""
    config = TrainConfig.from_dict(settings_at_start)
    present = TrainConfig.from_dict(read_yaml(out / "config.yaml"))
    for field in dataclasses.fields(TrainConfig):
        before, after = getattr(config, field.name), getattr(present, field.name)
        if before != after:
            raise CheckpointError(
                f"{dashed(field.name)} = {after!r} in {out / 'config.yaml'} was {before!r} when the run started: "
                "restore it, or start a new run with --config"
            )
    return config


def _with_noise(config: TrainConfig, settings: dict[str, Any]) -> TrainConfig:
    """Return the config with the noise and the target of the run, instead of calibrating the noise again.

    Calibration on another machine may end in another last digit.

    Args:
        config: the settings of the run.
        settings: the settings of its mechanism, as the checkpoint has them.
    """
    if config.noise_multiplier is not None:
        return config
    noise, target = settings["noise_multiplier"], settings["target_epsilon"]
    return dataclasses.replace(config, noise_multiplier=noise, target_epsilon=target)


def _ledger(path: Path) -> Ledger:
    """Return the ledger to which the run was charged so far."""
    if not path.exists():
        raise SettingError("ledger", str(path), "the existing ledger of this run; give its path if it was moved")
    return Ledger(path)
