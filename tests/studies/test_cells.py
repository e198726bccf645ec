"""Runs of a study: several processes in one folder, and runs that fail."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import pytest

from gnomon.cli.main import main
from gnomon.runs.config import TrainConfig
from gnomon.studies import compare
from gnomon.studies.cells import CellsFailed, run_cells, settings_key, stored_cells
from gnomon.studies.reproduce import read_experiment, reproduce
from gnomon.studies.store import ResultStore
from tests.studies.toy import toy


@dataclass(frozen=True)
class Settings:
    seed: int = 0


@dataclass(frozen=True)
class Cell:
    config: Settings

    @property
    def label(self):
        return "toy"

    @property
    def key(self):
        return f"cell{self.config.seed}"


CELLS = [Cell(Settings(seed)) for seed in range(4)]


def fine(cell):
    return {"accuracy": cell.config.seed / 10}


def failing(cell):
    if cell.config.seed == 1:
        raise ZeroDivisionError("a number that is too small")
    return fine(cell)


def killed(cell):
    if cell.config.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return fine(cell)


@pytest.mark.parametrize("workers", [1, 2])
def test_one_run_that_fails_does_not_stop_the_others(tmp_path, workers):
    with pytest.raises(CellsFailed, match=r"1 of 4 runs failed.*toy, seed 1: ZeroDivisionError: a number"):
        run_cells(CELLS, tmp_path, failing, workers=workers, progress=False)
    assert [cell.config.seed for cell, _ in stored_cells(CELLS, tmp_path)] == [0, 2, 3]
    assert len(run_cells(CELLS, tmp_path, fine, progress=False)) == 4


def test_a_killed_worker_is_an_error_in_words(tmp_path):
    with pytest.raises(CellsFailed, match="a worker process was killed, most likely because memory ran out"):
        run_cells(CELLS, tmp_path, killed, workers=2, progress=False)
    assert len(run_cells(CELLS, tmp_path, fine, progress=False)) == 4


def test_what_another_process_finished_meanwhile_is_not_run_again(tmp_path):
    ran = []

    def job(cell):
        ran.append(cell.key)
        ResultStore(tmp_path).write("cell2", {"accuracy": 0.75})
        return fine(cell)

    found = run_cells(CELLS, tmp_path, job, progress=False)
    assert ran == ["cell0", "cell1", "cell3"]
    assert [one["accuracy"] for one in found] == [0.0, 0.1, 0.75, 0.3]


def test_several_writers_of_one_cell_do_not_meet(tmp_path):
    errors = []

    def write():
        try:
            for _ in range(30):
                ResultStore(tmp_path).write("same", {"accuracy": 0.5})
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []
    assert [path.name for path in (tmp_path / "cells").iterdir()] == ["same.json"]


def test_commands_write_what_there_is_and_end_with_an_error(tmp_path, monkeypatch, capsys):
    real = compare.run_cell

    def broken(cell):
        if cell.label.startswith("pcdp"):
            raise ArithmeticError("no basis")
        return real(cell)

    monkeypatch.setattr(compare, "run_cell", broken)
    with pytest.raises(CellsFailed, match="no basis"):
        reproduce(toy(tmp_path), tmp_path / "out", seeds=1, progress=False, say=lambda text: None)
    assert "4 of 6 cells finished" in (tmp_path / "out/toy/result.md").read_text()
    assert read_experiment(str(tmp_path / "toy.yaml")).seeds == 2
    flags = [
        "--epochs",
        "1",
        "--public-records",
        "40",
        "--seeds",
        "1",
        "--noise-multipliers",
        "4",
        "--workers",
        "1",
        "--quiet",
    ]
    assert main(["compare", *flags, "--methods", "dp-sgd,pcdp:rank=5", "--out", str(tmp_path / "c")]) == 2
    assert "1 of 3 runs failed" in capsys.readouterr().err
    assert "dp-sgd" in (tmp_path / "c/comparison.md").read_text()


def test_noise_that_was_worked_out_on_another_machine_finds_its_cell():
    ours, theirs = (
        settings_key(TrainConfig(noise_multiplier=noise)) for noise in (1.0729280745366538, 1.072928074500707)
    )
    assert ours == theirs != settings_key(TrainConfig(noise_multiplier=1.07293))
