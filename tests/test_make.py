"""Targets of the Makefile: `make experiments` continues from finished cells, and `make quick` leaves out slow tests."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gnomon.studies.reproduce import available
from gnomon.studies.reproduce.experiment_files import ELSEWHERE
from tests.helpers import ROOT


@pytest.fixture
def experiments(tmp_path):
    """Runs the target with commands that only write down how they were called; some names fail."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    (tmp_path / "stamp").touch()
    for name in ("gnomon", "python"):
        script = tmp_path / name
        lines = (
            f'echo {name} "$@" >> {tmp_path}/calls\ncase "$*" in *pcdp-table3*) exit 2;; *pcdp-table4*) exit 130;; esac'
        )
        script.write_text(f"#!/bin/sh\n{lines}\n")
        script.chmod(0o755)

    def run(*settings):
        (tmp_path / "calls").write_text("")
        words = [
            "make",
            "-s",
            "-C",
            str(ROOT),
            "experiments",
            f"BIN={tmp_path}",
            f"STAMP={tmp_path / 'stamp'}",
            "CIFAR=",
        ]
        found = subprocess.run([*words, *settings], capture_output=True, text=True, check=False)
        return found, (tmp_path / "calls").read_text().splitlines()

    return run


def test_everything_that_is_listed_runs_and_goes_on_from_the_kept_cells(experiments):
    found, calls = experiments("EXPERIMENTS=pcdp-table2 federated local-steps compressed")
    assert found.returncode == 0
    assert calls == [
        "gnomon reproduce pcdp-table2 --out experiments/results",
        "python experiments/federated.py --out experiments/results/federated",
        "python experiments/local_steps.py --out experiments/results/local-steps",
        "python experiments/compressed.py",
    ]
    text = subprocess.run(
        ["make", "-n", "-C", str(ROOT), "experiments"], capture_output=True, text=True, check=True
    ).stdout
    assert all(f" {name} " in text.replace(";", " ") for name in [*available(), *ELSEWHERE])


def test_packed_pictures_are_unpacked_first_and_read_from_there(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("needs make")
    (tmp_path / "unpack.py").touch()
    words = ["make", "-n", "-C", str(ROOT), "experiments", "EXPERIMENTS=pcdp-table4"]
    text = subprocess.run([*words, "-B", f"GNOMON_DATA={tmp_path}"], capture_output=True, text=True, check=True).stdout
    assert f"python {tmp_path / 'unpack.py'} data" in text
    plain = subprocess.run([*words, f"GNOMON_DATA={tmp_path / 'none'}"], capture_output=True, text=True, check=True)
    assert "unpack.py" not in plain.stdout


def test_short_runs_stay_apart(experiments):
    _, calls = experiments("EXPERIMENTS=pcdp-table2 federated local-steps", "FAST=--fast")
    assert len(calls) == 3
    assert all("--out runs/reproduce" in call for call in calls)


def test_one_that_fails_does_not_stop_the_others_but_ctrl_c_does(experiments):
    found, calls = experiments("EXPERIMENTS=pcdp-table3 pcdp-table2")
    assert len(calls) == 2
    assert found.returncode != 0
    assert "failed: pcdp-table3" in found.stderr
    found, calls = experiments("EXPERIMENTS=pcdp-table4 pcdp-table2")
    assert len(calls) == 1
    assert found.returncode != 0


def test_quick_runs_lint_and_leaves_out_existing_tests_only():
    if shutil.which("make") is None:
        pytest.skip("needs make")
    text = subprocess.run(["make", "-n", "-C", str(ROOT), "quick"], capture_output=True, text=True, check=True).stdout
    assert "ruff check" in text
    assert '-m "not slow"' in text
    lines = (ROOT / "tests" / "slow.txt").read_text().splitlines()
    for line in (line for line in lines if line and not line.startswith("#")):
        path, _, name = line.partition("::")
        source = (ROOT / "tests" / path).read_text()
        assert f"def {name}(" in source or not name, f"tests/slow.txt: {line} does not exist"
