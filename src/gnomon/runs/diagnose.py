"""Diagnostics of a finished run, computed at its saved model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from gnomon import validate
from gnomon.data import Loader
from gnomon.diagnose.observer import Diagnostics
from gnomon.errors import DataError
from gnomon.files import write_atomic
from gnomon.release import SecureNoise
from gnomon.runs.builders import build_trainer, prepare
from gnomon.runs.config import TrainConfig, read_yaml
from gnomon.runs.train import public_beside
from gnomon.sampling.draws import shuffle


def diagnose(folder: Path, *, public_only: bool = False, rank: int = 20, records: int = 100) -> dict[str, Any]:
    """Compute the diagnostics of a training run at its final weights and write them to `diagnosis.json` in its folder.

    No privacy is charged, because nothing is released with noise. Values computed on private records carry the prefix
    `unprotected/`.

    Args:
        folder: the folder of the run.
        public_only: whether to read no private record.
        rank: the dimension of the public subspace.
        records: the number of gradients to examine.

    >>> import tempfile
    >>> from gnomon.runs.train import train
    >>> with tempfile.TemporaryDirectory() as place:
    ...     config = TrainConfig(method="pcdp", rank=10, epochs=1.0, insecure_noise_seed=0)
    ...     run = train(config, Path(place) / "run", progress=False)
    ...     found = diagnose(run.folder, public_only=True)
    >>> any(name.startswith("unprotected/") for name in found)
    False
    """
    sample_size = validate.whole("records", records, least=2)
    config = TrainConfig.from_dict(read_yaml(folder / "config.yaml"))
    prepared = prepare(config, progress=False, stored=folder)
    source, split = prepared.source, prepared.split
    trainer = build_trainer(config, source, split.public, progress=False)
    _restore(trainer.model, folder / "model.safetensors")
    loader = Loader(split.private)
    size = 0 if public_only else max(sample_size, config.batch_size)
    view = trainer.engine.preview(*loader.take(shuffle(len(loader), SecureNoise())[:size]))
    observer = Diagnostics(
        lambda record: None,
        public=public_beside(trainer, split.public),
        rank=rank,
        records=records,
        public_only=public_only,
    )
    record = observer.record(view)
    steps = _steps(folder)
    record |= {"step": steps, "epoch": steps / trainer.mechanism.steps_per_epoch}
    write_atomic(folder / "diagnosis.json", json.dumps(record).encode())
    return record


def _restore(model: torch.nn.Module, path: Path) -> None:
    """Load saved weights into the model that config.yaml describes."""
    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise DataError(path, "is missing", "diagnose a training run that has finished") from None
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        problem = f"does not hold the model that config.yaml describes ({reason})"
        raise DataError(path, problem, "restore the files of the run") from None


def _steps(folder: Path) -> int:
    """Return the number of steps that the statement of a run reports, or 0 without a statement."""
    statement = folder / "statement.json"
    return int(json.loads(statement.read_text())["steps"]) if statement.exists() else 0


def summary(record: dict[str, Any]) -> str:
    """Return the single numbers of a diagnostic record as a table; of lists the median or the largest value.

    >>> print(summary({"unprotected/clipped": 0.5, "public/norms": [1.0, 2.0, 3.0, 4.0, 5.0]}))
    unprotected/clipped                   0.5
    public/norms (median)                 3
    """
    lines = []
    for name, value in record.items():
        if isinstance(value, float | int):
            lines.append(f"{name:<36}  {value:.4g}")
        elif name.endswith(("norms", "norms_projected", "energy")) and value:
            lines.append(f"{name + ' (median)':<36}  {value[len(value) // 2]:.4g}")
        elif name.endswith(("angles", "drift")) and value:
            lines.append(f"{name + ' (largest, degrees)':<36}  {value[-1]:.4g}")
    return "\n".join(lines)
