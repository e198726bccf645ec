"""Checkpoints: everything a run needs to continue, except randomness.

A checkpoint is `checkpoint.json` and the tensor file that it names. The JSON file is replaced last and in one piece, so
there is always one complete checkpoint. The noise source is never stored: the same noise on another batch would reveal
records. Steps are counted by the ledger, not by the checkpoint: steps reserved after it was written are spent.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor

from gnomon.errors import GnomonError
from gnomon.files import write_atomic
from gnomon.ledger import Head, LedgerError
from gnomon.training.packing import pack, unpack, untied
from gnomon.training.trainer import Trainer

NAME = "checkpoint.json"
FORMAT = 2
RESUMED = "Resumed at step"


class CheckpointError(GnomonError, ValueError):
    """A checkpoint that is missing, damaged, or does not belong to this run.

    >>> raise CheckpointError("run/checkpoint.json is missing")
    Traceback (most recent call last):
    gnomon.training.checkpoint.CheckpointError: run/checkpoint.json is missing
    """


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read from disk: plain values, and tensors."""

    path: Path
    facts: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def step(self) -> int:
        return int(self.facts["step"])

    @property
    def head(self) -> Head:
        return Head.read(self.facts["head"])


def save_checkpoint(trainer: Trainer, folder: Path, **notes: Any) -> None:
    """Write a checkpoint. The previous one stays complete until this one is.

    Args:
        trainer: the Trainer; it needs a ledger.
        folder: the folder of the run.
        **notes: plain values to store with the checkpoint.

    Raises:
        CheckpointError: the Trainer has no ledger.

    >>> import tempfile, torch
    >>> from gnomon.ledger import Ledger
    >>> model = torch.nn.Linear(2, 2)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     trainer = Trainer(
    ...         model, torch.nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5),
    ...         sample_rate=1.0, expected_batch_size=10, noise_multiplier=9.0, target_delta=1e-5, steps=2,
    ...         ledger=Ledger(Path(place) / "ledger.sqlite"), progress=False)
    ...     result = trainer.fit((torch.randn(10, 2), torch.zeros(10).long()))
    ...     save_checkpoint(trainer, Path(place))
    ...     read_checkpoint(Path(place)).step
    2
    """
    if trainer.ledger_session.ledger is None or not trainer.ledger_session.run:
        raise CheckpointError(
            "only a run with a ledger can be resumed: without it the number of released steps is unknown. Pass a "
            "ledger to the Trainer; a run with seeded noise is repeated instead"
        )
    trainer.engine.verify_contents()
    tensors: dict[str, Tensor] = {}
    state = pack(_state(trainer), "state", tensors)
    content = bytes_of(untied(tensors))
    facts = {
        "format": FORMAT,
        "step": trainer.account.steps,
        "run": trainer.ledger_session.run,
        "ledger": str(trainer.ledger_session.ledger.path.absolute()),
        "head": str(trainer.ledger_session.head()),
        "sampler_position": "not stored: batches are drawn again; the rest of a shuffled epoch counts as taken",
        "settings": _settings(trainer),
        "tensors": f"checkpoint-{trainer.account.steps}-{os.urandom(4).hex()}.safetensors",
        "sha256": hashlib.sha256(content).hexdigest(),
        "state": state,
        "resumed": [note for note in trainer.notes if note.startswith(RESUMED)],
        "notes": notes,
    }
    write_atomic(folder / facts["tensors"], content)
    write_atomic(folder / NAME, json.dumps(facts, indent=1).encode())
    remove_checkpoint(folder, but=facts["tensors"])


def remove_checkpoint(folder: Path, but: str = "") -> None:
    """Remove checkpoints; with `but`, only the tensor files with other names."""
    if not but:
        (folder / NAME).unlink(missing_ok=True)
    for old in folder.glob("checkpoint-*.safetensors"):
        if old.name != but:
            old.unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint of a folder, checked against its hash.

    Raises:
        CheckpointError: it is missing, damaged, or has another format.

    >>> read_checkpoint(Path("nowhere"))
    Traceback (most recent call last):
    gnomon.training.checkpoint.CheckpointError: nowhere/checkpoint.json is missing: nowhere holds no run to resume
    """
    path = folder / NAME
    try:
        facts = json.loads(path.read_text())
        tensors = (folder / facts["tensors"]).read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename} is missing: {folder} holds no run to resume") from None
    except (OSError, json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error!r}): restore it from a copy") from None
    if facts.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {facts.get('format')}, this version reads {FORMAT}")
    if hashlib.sha256(tensors).hexdigest() != facts["sha256"]:
        raise CheckpointError(f"{folder / facts['tensors']} is cut off or was changed: restore it from a copy")
    try:
        return Checkpoint(path, facts, tensors_from(tensors))
    except SafetensorError as error:
        raise CheckpointError(f"{folder / facts['tensors']} cannot be read ({error})") from None


def restore_checkpoint(trainer: Trainer, checkpoint: Checkpoint, train: Any) -> int:
    """Restore the state of a run into a Trainer with the same settings, and reopen the run in its ledger.

    Args:
        trainer: a new Trainer with the settings of the run.
        checkpoint: what `read_checkpoint` returned.
        train: the training records of the run.

    Returns:
        The number of steps that count as taken: those of the checkpoint, and those reserved after it.

    Raises:
        CheckpointError: the settings differ, or the ledger was edited or ends before the checkpoint.
        LedgerError: the records differ.

    >>> import tempfile, torch
    >>> from gnomon.ledger import Ledger
    >>> def trainer(place):
    ...     model = torch.nn.Linear(2, 2)
    ...     return Trainer(
    ...         model, torch.nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5),
    ...         sample_rate=1.0, expected_batch_size=10, noise_multiplier=9.0, target_delta=1e-5, steps=40,
    ...         ledger=Ledger(Path(place) / "ledger.sqlite"), progress=False)
    >>> data = torch.randn(10, 2), torch.zeros(10).long()
    >>> with tempfile.TemporaryDirectory() as place:
    ...     first, second = trainer(place), trainer(place)
    ...     first.step(*next(first.batches(data)))["unprotected/batch"]
    ...     save_checkpoint(first, Path(place))
    ...     restore_checkpoint(second, read_checkpoint(Path(place)), data)  # a block of 16 was reserved
    10
    16
    """
    facts = checkpoint.facts
    _refuse_other_settings(facts["settings"], _settings(trainer), checkpoint.path)
    ledger = trainer.ledger_session.ledger
    if ledger is None:
        raise CheckpointError("a run can be resumed only with its ledger and with noise that is not seeded")
    try:
        ledger.verify(checkpoint.head)
    except LedgerError as error:
        raise CheckpointError(f"{checkpoint.path} does not match its ledger, or is ahead of it: {error}") from None
    if ledger.run(facts["run"]).reserved < checkpoint.step:
        raise CheckpointError(f"{checkpoint.path} is at step {checkpoint.step}, ahead of what its ledger has reserved")
    steps = trainer.ledger_session.resume(facts["run"], train)  # refuses other data before any state is restored
    if steps > trainer.account.steps:
        trainer.account.charge(steps - trainer.account.steps)
    trainer.sampling.restart()
    try:
        trainer.check(train)
    except BaseException:
        trainer.ledger_session.stop()
        raise
    state = unpack(facts["state"], checkpoint.tensors)
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    if trainer.scheduler is not None:
        trainer.scheduler.load_state_dict(state["scheduler"])
    if trainer.average is not None:
        trainer.average.load_state_dict(state["average"])
    lost = f"{RESUMED} {checkpoint.step}: {steps - checkpoint.step} more steps had been reserved and count as released."
    trainer.notes = (*trainer.notes, *facts["resumed"], lost)
    return steps


def _state(trainer: Trainer) -> dict[str, Any]:
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": None if trainer.scheduler is None else trainer.scheduler.state_dict(),
        "average": None if trainer.average is None else trainer.average.state_dict(),
    }


def _settings(trainer: Trainer) -> dict[str, Any]:
    """Return the settings that must be the same when a run is resumed."""
    return trainer.mechanism.to_dict() | {
        "optimizer": type(trainer.optimizer).__name__,
        "scheduler": None if trainer.scheduler is None else type(trainer.scheduler).__name__,
        "scheduler_every": trainer.scheduler_every,
        "ema": trainer.average is not None,
        "parameters": {name: list(p.shape) for name, p in trainer.model.named_parameters()},
    }


def _refuse_other_settings(then: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    for name, value in now.items():
        if then.get(name) != value:
            raise CheckpointError(
                f"{name} = {value!r} differs from that of the run of {path}, {then.get(name)!r}: resume it with the "
                "same settings, or start another run"
            )
