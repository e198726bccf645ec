"""Checkpoints: whole or not at all, and no step forgotten when a run goes on."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import sqlite3

import pytest
import torch
from torch import nn

import gnomon
from gnomon.accounting import Shuffled
from gnomon.constraints import L2Ball
from gnomon.ledger import Ledger
from gnomon.methods import Method
from gnomon.methods.steps import ConstrainedDescent
from gnomon.release import SeededNoise
from gnomon.training import CheckpointError, NotPrivate, read_checkpoint, restore_checkpoint, save_checkpoint

DELTA = 1e-5


def data(n: int = 40, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


class Tied(nn.Module):
    """Two names for one parameter."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


def trainer(path, block: int = 16, seed: int = 0, **settings) -> gnomon.Trainer:
    torch.manual_seed(seed)
    model = settings.pop("model", None) or Tied()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    defaults = {
        "loss": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40),
        "scheduler_every": "step",
        "ema_decay": 0.8,
        "sample_rate": 1.0,
        "expected_batch_size": 40,
        "noise_multiplier": 30.0,
        "target_delta": DELTA,
        "steps": 40,
        "progress": False,
        "ledger": Ledger(path / "ledger.sqlite", block=block),
    }
    return gnomon.Trainer(model, **(defaults | settings))


def take(t: gnomon.Trainer, steps: int) -> None:
    batches = t.batches(data())
    for _ in range(steps):
        t.step(*next(batches))


def everything(t: gnomon.Trainer) -> list[torch.Tensor]:
    found = [*t.model.state_dict().values(), *t.average.state_dict().values()]
    for state in t.optimizer.state_dict()["state"].values():
        found += list(state.values())
    return [value.clone() for value in found]


def test_a_run_that_goes_on_is_the_run_that_was_never_stopped(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = trainer(tmp_path / "whole", block=1, noise_multiplier=0.0)
    whole.fit(data())
    first = trainer(tmp_path, block=1, noise_multiplier=0.0)
    take(first, 17)
    save_checkpoint(first, tmp_path)
    second = trainer(tmp_path, block=1, noise_multiplier=0.0, seed=9)
    assert restore_checkpoint(second, read_checkpoint(tmp_path), data()) == 17
    assert all(torch.equal(a, b) for a, b in zip(everything(first), everything(second), strict=True))
    assert second.scheduler.get_last_lr() == first.scheduler.get_last_lr()
    result = second.fit(data())
    assert (result.steps, result.stopped) == (40, "finished")
    for a, b in zip(everything(whole), everything(second), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # rows are in another secret order, so sums round anew


def test_an_average_by_step_sizes_goes_on_where_it_was(tmp_path):
    def held(path):
        model = nn.Linear(4, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) ** -0.5)
        return trainer(
            path, block=1, model=model, optimizer=optimizer, scheduler=schedule, ema_decay=None, noise_multiplier=0.0,
            method=Method("own", step=ConstrainedDescent(L2Ball(5.0)), average=True),
        )  # fmt: skip

    (tmp_path / "whole").mkdir()
    whole, first = held(tmp_path / "whole"), held(tmp_path)
    first.model.load_state_dict(whole.model.state_dict())
    whole.fit(data())
    take(first, 17)
    save_checkpoint(first, tmp_path)
    second = held(tmp_path)
    restore_checkpoint(second, read_checkpoint(tmp_path), data())
    second.fit(data())
    for name, value in whole.average.state_dict().items():
        torch.testing.assert_close(second.average.state_dict()[name], value)


def test_reserved_steps_count_as_taken_and_the_statement_says_so(tmp_path):
    first = trainer(tmp_path)
    take(first, 5)
    save_checkpoint(first, tmp_path)
    take(first, 12)  # into the second block; then the process dies
    second = trainer(tmp_path)
    restore_checkpoint(second, read_checkpoint(tmp_path), data())
    assert second.account.steps == 32
    assert second.fit(data()).steps == 40
    total = second.ledger_session.total(DELTA)
    assert (total.steps, total.runs) == (40, 1)
    assert total.epsilon == second.epsilon()
    assert "Resumed at step 5: 27 more steps" in second.statement().text()


def test_two_resumes_of_one_checkpoint_are_both_paid_for(tmp_path):
    first = trainer(tmp_path)
    take(first, 1)
    save_checkpoint(first, tmp_path)
    taken = 1
    for _ in range(2):
        again = trainer(tmp_path)
        restore_checkpoint(again, read_checkpoint(tmp_path), data())
        take(again, 8)
        taken += 8
    assert again.ledger_session.total(DELTA).steps >= taken
    late = trainer(tmp_path)
    restore_checkpoint(late, read_checkpoint(tmp_path), data())
    result = late.fit(data())
    assert late.account.steps == 40
    assert result.history == []  # all 40 declared steps are reserved


def test_noise_after_a_resume_is_new(tmp_path):
    first = trainer(tmp_path)
    take(first, 1)
    save_checkpoint(first, tmp_path)
    ends = []
    for _ in range(2):
        again = trainer(tmp_path)
        restore_checkpoint(again, read_checkpoint(tmp_path), data())
        take(again, 1)
        ends.append(everything(again)[0])
    assert not torch.equal(*ends)
    text = (tmp_path / "checkpoint.json").read_text()
    assert "noise" not in json.loads(text)["state"]


def test_the_rest_of_a_shuffled_epoch_counts_as_taken(tmp_path):
    settings = {"sampler": Shuffled(25), "sample_rate": None, "steps": 100}
    first = trainer(tmp_path, **settings)
    take(first, 2)
    save_checkpoint(first, tmp_path)
    second = trainer(tmp_path, **settings)
    assert restore_checkpoint(second, read_checkpoint(tmp_path), data()) == 25


def test_seeded_runs_and_runs_without_a_ledger_have_no_checkpoint(tmp_path):
    for settings in ({"noise": SeededNoise(0)}, {"ledger": None}):
        t = trainer(tmp_path, **settings)
        take(t, 1)
        with pytest.raises(CheckpointError, match="ledger"):
            save_checkpoint(t, tmp_path)


# -- what is refused -----------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path):
    t = trainer(tmp_path)
    take(t, 20)
    save_checkpoint(t, tmp_path)
    return tmp_path


def refused(path, match: str, train=None, **settings) -> None:
    t = trainer(path, **settings)
    reserved = Ledger(path / "ledger.sqlite").total(next(iter(t.ledger_session.ledger.state().datasets)), DELTA).steps
    with pytest.raises(CheckpointError, match=match):
        restore_checkpoint(t, read_checkpoint(path), train or data())
    assert t.account.steps == 0
    assert t.ledger_session.ledger.state().runs
    assert sum(run.reserved for run in t.ledger_session.ledger.state().runs.values()) == reserved


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"noise_multiplier": 10.0}, "noise_multiplier"),
        ({"max_grad_norm": 2.0}, "max_grad_norm"),
        ({"steps": 80}, "steps"),
        ({"sample_rate": 0.5}, "sampler"),
        ({"expected_batch_size": 30}, "expected_batch_size"),
        ({"ema_decay": None}, "ema"),
        ({"model": nn.Linear(4, 2)}, "parameters"),
    ],
)
def test_changed_settings_are_refused_by_name(stopped, settings, named):
    refused(stopped, f"{named} = ", **settings)


def test_a_checkpoint_ahead_of_its_ledger_is_refused(tmp_path):
    t = trainer(tmp_path)
    take(t, 1)
    t.ledger_session.ledger.shut()
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "older.sqlite")
    take(t, 30)
    save_checkpoint(t, tmp_path)
    t.ledger_session.ledger.shut()
    os.replace(tmp_path / "older.sqlite", tmp_path / "ledger.sqlite")
    refused(tmp_path, "ahead")


def test_another_ledger_is_refused(stopped):
    shutil.move(stopped / "ledger.sqlite", stopped / "away.sqlite")
    for rest in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        (stopped / rest).unlink(missing_ok=True)
    t = trainer(stopped)
    take(t, 1)  # a ledger of another run
    refused(stopped, "does not match")


def test_an_edited_ledger_is_refused(stopped):
    with sqlite3.connect(stopped / "ledger.sqlite") as connection:
        connection.execute("DROP TRIGGER no_update")
        connection.execute("UPDATE entries SET content = replace(content, '16', '1') WHERE kind = 'steps'")
    with pytest.raises(ValueError, match="was changed"):
        trainer(stopped)


def test_other_data_are_refused_and_leave_no_trace(stopped):
    t = trainer(stopped, seed=1)
    weights, entered = everything(t), len(t.ledger_session.ledger.state().runs)
    with pytest.raises(ValueError, match="other data"):
        restore_checkpoint(t, read_checkpoint(stopped), data(seed=3))
    assert all(torch.equal(one, other) for one, other in zip(everything(t), weights, strict=True))
    t.fit(data(seed=3))  # a run of its own, on its own data
    state = t.ledger_session.ledger.state()
    assert (len(state.runs), len(state.datasets)) == (entered + 1, 2)
    assert t.ledger_session.total(DELTA).steps == 40


def test_a_model_that_is_refused_leaves_the_run_closed(stopped):
    def mixing(outputs, targets):
        return nn.functional.cross_entropy(outputs - outputs.mean(0), targets, reduction="none")

    t = trainer(stopped, loss=mixing)
    with pytest.raises(NotPrivate):
        restore_checkpoint(t, read_checkpoint(stopped), data())
    (run,) = t.ledger_session.ledger.state().runs.values()
    assert run.committed == run.reserved


def damaged(path) -> list[str]:
    """Ways to spoil a checkpoint, each followed by what the error says."""
    tensors = next(path.glob("checkpoint-*.safetensors"))
    whole = tensors.read_bytes()
    facts = (path / "checkpoint.json").read_bytes()
    said = []
    for file, content in [
        (tensors, whole[:-7]),
        (tensors, whole[:-1] + bytes([whole[-1] ^ 1])),
        (tensors, b""),
        (path / "checkpoint.json", facts[: len(facts) // 2]),
        (path / "checkpoint.json", b""),
        (path / "checkpoint.json", b"[]"),
        (path / "checkpoint.json", facts.replace(b'"format": 2', b'"format": 9')),
    ]:
        before = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(CheckpointError) as error:
            read_checkpoint(path)
        said.append(str(error.value))
        file.write_bytes(before)
    return said


def test_a_truncated_or_changed_checkpoint_is_named_and_refused(stopped):
    for text in damaged(stopped):
        assert str(stopped) in text
    restore_checkpoint(trainer(stopped), read_checkpoint(stopped), data())
    next(stopped.glob("checkpoint-*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="missing"):
        read_checkpoint(stopped)


# -- writes that fail ----------------------------------------------------------------------------------


def goes_on_at(path, step: int) -> None:
    found = read_checkpoint(path)
    assert found.step == step
    assert restore_checkpoint(trainer(path), found, data()) >= step


def test_a_full_disk_leaves_the_old_checkpoint_and_says_so(stopped, monkeypatch):
    t = trainer(stopped)
    restore_checkpoint(t, read_checkpoint(stopped), data())
    take(t, 1)
    real = os.fsync

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gnomon.files.os.fsync", full)
    with pytest.raises(OSError, match=r"No space left.*intact"):
        save_checkpoint(t, stopped)
    monkeypatch.setattr("gnomon.files.os.fsync", real)
    assert not list(stopped.glob("*.partial"))
    goes_on_at(stopped, 20)


def in_child(work) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except OSError as error:
            code = error.errno
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def test_a_file_size_limit_of_the_system_leaves_the_old_checkpoint(stopped):
    t = trainer(stopped)
    restore_checkpoint(t, read_checkpoint(stopped), data())
    take(t, 1)

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        t.ledger_session.head = lambda: read_checkpoint(stopped).head  # the ledger is not what fails here
        save_checkpoint(t, stopped)

    assert os.waitstatus_to_exitcode(in_child(limited)) == errno.EFBIG
    goes_on_at(stopped, 20)


@pytest.mark.parametrize("context", range(8))
def test_a_kill_in_the_middle_of_a_write_leaves_a_whole_checkpoint(stopped, context):
    """The child dies at the n-th call that touches the disk: before, between and after both files."""
    t = trainer(stopped)
    restore_checkpoint(t, read_checkpoint(stopped), data())
    take(t, 1)

    def killed():
        calls = 0

        def dying(real):
            def call(*args, **more):
                nonlocal calls
                if calls == context:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls += 1
                return real(*args, **more)

            return call

        from pathlib import Path

        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "open")):
            setattr(owner, name, dying(getattr(owner, name)))
        save_checkpoint(t, stopped)

    status = in_child(killed)
    assert os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL or context > 6
    goes_on_at(stopped, read_checkpoint(stopped).step)
    assert read_checkpoint(stopped).step in (20, t.account.steps)
