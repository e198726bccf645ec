"""Takes up a run that was stopped or killed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from gnomon.data import load
from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.runs.builders import build_trainer, records
from gnomon.runs.config import TrainConfig, read_yaml
from gnomon.runs.folder import RunFolder
from gnomon.runs.train import TrainingRun, complete
from gnomon.training.checkpoint import NAME, CheckpointError, read_checkpoint, restore_checkpoint


def resume(out: Path, *, ledger: Ledger | None = None, progress: bool = True) -> TrainingRun:
    """Go on with the run in a folder, from its last checkpoint, with fresh noise.

    Steps that its ledger has reserved count as taken, whether or not the run came to them before it ended. Refused:
    a config that was changed, other data, a ledger that was edited or does not reach as far as the checkpoint.

    >>> resume(Path("nowhere"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: run = 'nowhere' is invalid; expected the folder of a run that was stopped or killed
    """
    if not (out / NAME).exists():
        over = (out / "statement.txt").exists()
        remedy = (
            "one that was stopped or killed: this run has ended"
            if over
            else "the folder of a run that was stopped or killed"
        )
        raise SettingError("run", str(out), remedy)
    checkpoint = read_checkpoint(out)
    notes = checkpoint.facts["notes"]
    config = _config(out, notes["config"])
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    source = load(config.data, config.data_dir)
    split = records(config, source)
    trainer = build_trainer(
        _with_noise(config, checkpoint.facts["settings"]["noise_multiplier"]),
        source,
        split.public,
        progress=progress,
        ledger=ledger or _ledger(Path(checkpoint.facts["ledger"])),
        dataset=notes["dataset"],
    )
    restore_checkpoint(trainer, checkpoint, split.private)
    return complete(config, trainer, source, split, RunFolder(out, again=True), notes)


def _config(out: Path, then: dict[str, object]) -> TrainConfig:
    """The config that the run started with; an error if the file in its folder says something else now."""
    config = TrainConfig.from_dict(then)
    now = TrainConfig.from_dict(read_yaml(out / "config.yaml"))
    for field in dataclasses.fields(TrainConfig):
        old, new = getattr(config, field.name), getattr(now, field.name)
        if old != new:
            raise CheckpointError(
                f"{field.name.replace('_', '-')} = {new!r} in {out / 'config.yaml'} was {old!r} when the run started: "
                "put it back, or start another run with --config"
            )
    return config


def _with_noise(config: TrainConfig, found: float) -> TrainConfig:
    """The noise that the run's target asked for when it started; another machine's search may end a digit beside it."""
    if config.noise_multiplier is not None:
        return config
    return dataclasses.replace(config, noise_multiplier=found, target_epsilon=None)


def _ledger(path: Path) -> Ledger:
    if not path.exists():
        raise SettingError("ledger", str(path), "the ledger of this run, with --ledger if it was moved")
    return Ledger(path)
