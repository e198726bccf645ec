"""A run that was stopped or killed goes on, on the command line."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from gnomon.cli.main import main
from gnomon.ledger import Ledger
from gnomon.runs.folder import RunFolder
from gnomon.runs.resume import resume

RUN = ["train", "--epochs", "6", "--quiet", "--sampler", "full", "--noise-multiplier", "30", "--momentum", "0.9"]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def stopped(tmp_path, monkeypatch, capsys):
    """A run of 6 steps in which somebody pressed Ctrl-C after the second."""
    out, real = tmp_path / "run", RunFolder.append

    def append(self, name, line):
        real(self, name, line)
        if json.loads(line)["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "append", append)
    assert main([*RUN, "--out", str(out), "--ledger", str(tmp_path / "ledger.sqlite")]) == 130
    monkeypatch.setattr(RunFolder, "append", real)
    assert f"gnomon resume {out}" in capsys.readouterr().out
    return out


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path, monkeypatch, capsys, own_ledger):
    """Blocks of two steps, so that something is left to go on with."""
    monkeypatch.setattr("gnomon.ledger.ledger.BLOCK", 2)
    monkeypatch.setattr(Ledger.__init__, "__kwdefaults__", {"block": 2})
    out, real = tmp_path / "run", RunFolder.append

    def append(self, name, line):
        real(self, name, line)
        if json.loads(line)["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "append", append)
    assert main([*RUN, "--out", str(out)]) == 130
    monkeypatch.setattr(RunFolder, "append", real)
    assert json.loads((out / "statement.json").read_text())["steps"] == 3
    before = load_file(out / "model.safetensors")
    capsys.readouterr()
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "epo')  # a kill in the middle of a line
    assert main(["resume", "--quiet", str(out)]) == 0
    assert "Resumed at step 3: 1 more steps" in capsys.readouterr().out
    assert [row["step"] for row in lines(out)] == [1, 2, 3, 5, 6]
    statement = json.loads((out / "statement.json").read_text())
    (run,) = Ledger(own_ledger).state().runs.values()
    assert (statement["steps"], run.reserved, statement["ledger"]["run"]) == (6, 6, run.id)
    after = load_file(out / "model.safetensors")
    assert any((before[name] != after[name]).any() for name in before)
    assert not list(out.glob("checkpoint*"))
    assert main(["resume", str(out)]) == 2
    assert "has ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--epochs", "6", "--sampler", "full"], ["--epochs", "6", "--sampler", "full", "--target-epsilon", "2"],
     ["--recipe", "best", "--features", "scaled", "--target-epsilon", "2"]],
    ids=["default", "target", "recipe"],
)  # fmt: skip
def test_a_run_whose_noise_was_calibrated_goes_on(flags, tmp_path, monkeypatch):
    monkeypatch.setattr("gnomon.ledger.ledger.BLOCK", 2)
    monkeypatch.setattr(Ledger.__init__, "__kwdefaults__", {"block": 2})
    out, real = tmp_path / "run", RunFolder.append

    def append(self, name, line):
        real(self, name, line)
        if json.loads(line)["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "append", append)
    assert main(["train", *flags, "--quiet", "--out", str(out), "--ledger", str(tmp_path / "ledger.sqlite")]) == 130
    monkeypatch.setattr(RunFolder, "append", real)
    assert main(["resume", "--quiet", str(out)]) == 0
    statement = json.loads((out / "statement.json").read_text())
    target = 2.0 if "2" in flags else 1.0
    assert 0.99 * target < statement["epsilon"] <= target
    assert statement["steps"] == lines(out)[-1]["step"] > 4


def test_noise_for_a_target_is_taken_from_the_run_and_not_searched_again(stopped, monkeypatch):
    """Another machine's search may end in another last digit, and the run would be lost."""
    facts = json.loads((stopped / "checkpoint.json").read_text())
    facts["notes"]["config"] |= {"noise-multiplier": None, "target-epsilon": 2.0}
    (stopped / "checkpoint.json").write_text(json.dumps(facts))
    config = yaml.safe_load((stopped / "config.yaml").read_text())
    (stopped / "config.yaml").write_text(yaml.safe_dump(config | {"noise-multiplier": None, "target-epsilon": 2.0}))
    monkeypatch.setattr("gnomon.training.mechanism.noise_multiplier", None)  # not called
    done = resume(stopped, progress=False)
    assert done.trainer.account.noise_multiplier == 30.0
    assert yaml.safe_load((stopped / "config.yaml").read_text())["target-epsilon"] == 2.0


def test_a_changed_config_is_refused_by_the_name_of_the_setting(stopped, capsys):
    path = stopped / "config.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(config | {"max-grad-norm": 9.0}))
    assert main(["resume", str(stopped)]) == 2
    assert "max-grad-norm = 9.0" in capsys.readouterr().err
    path.write_text(yaml.safe_dump(config))
    assert main(["resume", "--quiet", str(stopped)]) == 0


def test_an_edited_or_missing_ledger_is_refused(stopped, capsys, tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    checkpoint = (stopped / "checkpoint.json").read_bytes()
    with sqlite3.connect(ledger) as connection:
        connection.execute("DROP TRIGGER no_update")
        connection.execute("UPDATE entries SET content = replace(content, '\"steps\":6', '\"steps\":2')")
    assert main(["resume", str(stopped)]) == 2
    assert "edited entry" in capsys.readouterr().err
    ledger.unlink()
    assert main(["resume", str(stopped)]) == 2
    assert "ledger.sqlite" in capsys.readouterr().err
    assert not ledger.exists()
    assert (stopped / "checkpoint.json").read_bytes() == checkpoint


def test_a_ledger_that_was_moved_is_found_by_flag(stopped, tmp_path, capsys):
    for ending in ("", "-wal", "-shm"):  # all that SQLite keeps while it is open
        os.replace(tmp_path / f"ledger.sqlite{ending}", tmp_path / f"moved.sqlite{ending}")
    assert main(["resume", "--quiet", str(stopped), "--ledger", str(tmp_path / "moved.sqlite")]) == 0


def test_a_folder_without_a_run_is_named(tmp_path, capsys):
    assert main(["resume", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named_before_a_step_is_paid(capsys, own_ledger):
    assert main([*RUN, "--out", "/proc/gnomon"]) == 2
    assert "/proc/gnomon" in capsys.readouterr().err
    assert Ledger(own_ledger).state().runs == {}


def test_a_killed_run_goes_on_and_nothing_is_forgotten(tmp_path, own_ledger):
    out = tmp_path / "run"
    child = os.fork()
    if child == 0:
        try:
            main(["train", "--epochs", "100000", "--quiet", "--sampler", "full", "--noise-multiplier", "900",
                  "--out", str(out), "--checkpoint-every", "2"])  # fmt: skip
        finally:
            os._exit(1)
    while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_text().splitlines()) < 5:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    released = lines(out)[-1]["step"]
    (run,) = Ledger(own_ledger).state().runs.values()
    assert released <= run.reserved < released + 16 + 2
    assert run.open
    real, count = RunFolder.append, 0

    def append(self, name, line):
        nonlocal count
        real(self, name, line)
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGINT)

    RunFolder.append = append
    try:
        again = resume(out, progress=False)
    finally:
        RunFolder.append = real
    assert again.result.steps == run.reserved + 3
    assert [row["step"] for row in lines(out)][-3:] == [run.reserved + k for k in (1, 2, 3)]


def test_a_model_that_could_not_be_written_at_the_end_is_not_lost(tmp_path, monkeypatch, capsys):
    out, real = tmp_path / "run", RunFolder.write

    def write(self, name, content):
        if name == "model.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, name, content)

    monkeypatch.setattr(RunFolder, "write", write)
    ledger = ["--ledger", str(tmp_path / "ledger.sqlite")]
    assert main([*RUN, "--out", str(out), *ledger, "--checkpoint-every", "4"]) == 2
    monkeypatch.setattr(RunFolder, "write", real)
    rows = lines(out)
    capsys.readouterr()
    assert main(["resume", str(out), *ledger, "--quiet"]) == 0
    statement = json.loads((out / "statement.json").read_text())
    assert statement["steps"] == 6
    assert any("Resumed at step 6: 0 more" in caveat for caveat in statement["caveats"]), "all steps are in the model"
    again = lines(out)
    assert again[: len(rows)] == rows
    assert again[-1]["step"] == 6
    assert again[-1]["validation/accuracy"] == rows[-1]["validation/accuracy"]


def test_a_resumed_run_with_no_step_left_scores_the_model_that_it_has(stopped, tmp_path, capsys):
    """Its six steps were one block: all are paid for, two were taken."""
    before = lines(stopped)
    assert main(["resume", str(stopped), "--ledger", str(tmp_path / "ledger.sqlite"), "--quiet"]) == 0
    after = lines(stopped)
    assert len(after) == len(before) + 1
    assert after[-1]["step"] == 6
    assert after[-1]["validation/accuracy"] == before[-1]["validation/accuracy"], "the model of the second step"
    assert f"test accuracy  {100 * after[-1]['validation/accuracy']:.1f} %" in capsys.readouterr().out
