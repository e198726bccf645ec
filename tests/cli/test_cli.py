"""The command line, as a person would use and misuse it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import gnomon
from gnomon import models
from gnomon.accounting import Account
from gnomon.cli.main import main
from gnomon.data import load
from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.runs.builders import build_trainer, records
from gnomon.runs.builders.method import METHOD_SETTINGS, methods_with
from gnomon.runs.config import TrainConfig, read_yaml
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.folder import claimed
from gnomon.runs.setting_names import FORMER_NAMES

SHORT = ["train", "--epochs", "2", "--quiet"]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_account_prints_the_tight_epsilon(capsys):
    settings = ["--noise-multiplier", "10", "--sample-rate", "0.025", "--steps", "3200", "--delta", "1e-5"]
    assert main(["account", *settings]) == 0
    assert "0.500" in capsys.readouterr().out


def test_account_finds_the_noise_of_a_budget(capsys):
    assert main(["account", "--target-epsilon", "0.5", "--sample-rate", "0.025", "--epochs", "80"]) == 0
    assert "noise multiplier = 10.0" in capsys.readouterr().out


def test_account_counts_the_steps_of_epochs_as_training_does_and_says_how_many(capsys):
    plan = build_trainer(TrainConfig(epochs=20.0, batch_size=400), load("digits"), load("digits").train[:0]).mechanism
    rate = repr(400 / 1437)
    flags = ["--noise-multiplier", "5", "--sample-rate", rate, "--epochs", "20"]
    assert main(["account", *flags]) == 0
    assert f"steps = {plan.steps}\n" in capsys.readouterr().out
    assert main(["account", *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == plan.steps


def test_account_compares_accountants_and_marks_the_one_that_is_no_guarantee(capsys):
    main(
        [
            "account",
            "--noise-multiplier",
            "10",
            "--sample-rate",
            "0.025",
            "--steps",
            "3200",
            "--accountant",
            "all",
        ]
    )
    out = capsys.readouterr().out
    assert "RDP classic" in out
    assert out.count("not a guarantee") == 1


def test_account_speaks_json(capsys):
    main(["account", "--noise-multiplier", "0", "--sample-rate", "0.1", "--steps", "10", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] is None
    assert found["adjacency"] == "add-remove"


def test_methods_are_listed_with_their_papers(capsys):
    assert main(["methods"]) == 0
    assert "Abadi" in capsys.readouterr().out


def test_a_run_leaves_everything_behind(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*SHORT, "--target-epsilon", "1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "test accuracy" in said
    assert "epsilon = 1.000" in said or "epsilon = 0.99" in said
    assert str(out / "statement.txt") in said
    assert "not finite" not in said
    expected = {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "model.safetensors",
        "model.json",
        "statement.txt",
        "statement.json",
        "curve.png",
    }
    assert files(out) == expected
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    statement = json.loads((out / "statement.json").read_text())
    assert statement["guarantee"] is True
    assert statement["epsilon"] <= 1.0
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_statement_has_what_an_auditor_needs(tmp_path, own_ledger):
    out = tmp_path / "run"
    assert main([*SHORT, "--noise-multiplier", "5", "--data-id", "scans", "--out", str(out)]) == 0
    statement = json.loads((out / "statement.json").read_text())
    text = (out / "statement.txt").read_text()
    ledger = Ledger(own_ledger)
    (run,) = ledger.state().runs.values()
    ledger.close()
    assert statement["sample_rate"] == run.settings["sampler"]["sample_rate"]
    assert statement["account"] == run.settings | {"steps": statement["steps"]}
    assert float(Account.from_dict(statement["account"]).epsilon(statement["delta"])) == statement["epsilon"]
    assert statement["gnomon"] == gnomon.__version__
    assert datetime.fromisoformat(statement["written"]).utcoffset() == timedelta(0)
    assert (statement["ledger"]["run"], statement["ledger"]["dataset"]) == (run.id, run.dataset)
    assert f"run {run.id}, data set {run.dataset}, head" in text
    for name in ("model.safetensors", "config.yaml"):
        assert statement["files"][name] == hashlib.sha256((out / name).read_bytes()).hexdigest()
        assert f"{name:<20}  sha256 {statement['files'][name]}" in text


def test_the_saved_model_loads_into_the_same_architecture(tmp_path):
    main([*SHORT, "--out", str(tmp_path / "run"), "--model", "mlp"])
    model = models.build("mlp", (1, 8, 8), 10)
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_the_written_config_repeats_the_run(tmp_path):
    seeded = ["--insecure-noise-seed", "3", "--noise-multiplier", "4"]
    main([*SHORT, *seeded, "--out", str(tmp_path / "a")])
    assert main(["train", "--quiet", "--config", str(tmp_path / "a/config.yaml"), "--out", str(tmp_path / "b")]) == 0
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_flags_win_over_the_config_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("epochs: 1\ntarget-delta: 1e-6\nlr: 0.5\n")
    main(["train", "--quiet", "--config", str(file), "--lr", "2", "--out", str(tmp_path / "run")])
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["epochs"], config["target-delta"], config["lr"]) == (1.0, 1e-6, 2.0)


def test_every_setting_survives_the_way_through_yaml():
    config = TrainConfig(data="mnist", private_records=5, ema_decay=0.5, noise_multiplier=2.0)
    assert TrainConfig.from_dict(yaml.safe_load(config.to_yaml())) == config


def test_seeded_noise_is_called_no_guarantee(tmp_path, capsys):
    main([*SHORT, "--insecure-noise-seed", "1", "--out", str(tmp_path / "run")])
    assert "NO GUARANTEE" in capsys.readouterr().out
    assert "seeded noise" in (tmp_path / "run/statement.txt").read_text()


@pytest.mark.parametrize(
    "flags",
    [
        ["--sampler", "truncated"],
        ["--sampler", "shuffled", "--target-epsilon", "8"],
        ["--sampler", "full", "--target-epsilon", "8"],
        ["--clip", "psac"],
        ["--clip", "per-layer", "--optimizer", "adam", "--lr", "0.05"],
        ["--lr-schedule", "cosine", "--ema-decay", "0.9"],
        ["--max-physical-batch-size", "50", "--private-records", "600"],
        ["--adjacency", "replace-one"],
    ],
    ids=" ".join,
)
def test_settings_combine(flags, tmp_path):
    assert main([*SHORT, *flags, "--out", str(tmp_path / "run")]) == 0


WRONG = [
    (["--data", "mnits"], "mnits"),
    (["--data", "mnist", "--data-dir", "/nowhere"], "/nowhere"),
    (["--data", "npz:missing.npz", "--dataset-size", "9"], "missing.npz"),
    (["--model", "transformer"], "transformer"),
    (["--model", "no.such:Class"], "no.such"),
    (["--method", "magic"], "magic"),
    (["--target-epsilon", "nan"], "--target-epsilon = nan"),
    (["--target-epsilon", "-1"], "--target-epsilon = -1.0"),
    (["--noise-multiplier", "-2"], "--noise-multiplier = -2.0"),
    (["--target-delta", "0"], "--target-delta = 0.0"),
    (["--max-grad-norm", "0"], "--max-grad-norm = 0.0"),
    (["--batch-size", "0"], "--batch-size = 0"),
    (["--batch-size", "99999"], "--batch-size = 99999"),
    (["--epochs", "0"], "--epochs = 0.0"),
    (["--lr", "nan"], "--lr = nan"),
    (["--device", "abacus"], "abacus"),
    (["--device", "mps"], "MPS does not have"),
    (["--momentum", "0.9", "--optimizer", "adam"], "momentum"),
    (["--config", "missing.yaml"], "missing.yaml"),
    (["--private-records", "99999"], "99999"),
    (["--method", "pcdp", "--rank", "2.5"], "rank = 2.5"),
    (["--method", "pcdp", "--rank", "nan"], "rank = nan"),
    (["--method", "pcdp", "--rank", "inf"], "rank = inf"),
    (["--method", "pcdp", "--rank", "0"], "rank = 0"),
    (["--method", "pcdp", "--public-records", "0"], "--public-records = 0"),
    (["--method", "pcdp", "--public-records", "5000"], "--public-records = 5000"),
    (["--warm-start", "public", "--public-records", "0"], "--public-records = 0"),
    (["--subspace-scope", "per-tensor"], "--subspace-scope applies to pdp, pcdp, rpdp, rpcdp only, not to dp-sgd"),
    (
        ["--method", "gep", "--project-from-epoch", "3"],
        "--project-from-epoch applies to pdp, pcdp, rpdp, rpcdp only, not to gep",
    ),
    (["--method", "pcdp", "--refresh-basis-every", "0"], "--refresh-basis-every = 0"),
]


@pytest.mark.parametrize(("flags", "named"), WRONG, ids=[" ".join(flags) for flags, _ in WRONG])
def test_a_wrong_setting_is_named_and_nothing_is_written(flags, named, tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*SHORT, *flags, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "gnomon: error:" in said
    assert named in said
    assert "Traceback" not in said
    assert not out.exists() or not files(out)


def test_a_misspelt_key_in_the_config_is_named_with_the_right_one(tmp_path, capsys):
    file = tmp_path / "c.yaml"
    file.write_text("target-epsilom: 1\n")
    assert main([*SHORT, "--config", str(file)]) == 2
    assert "'target-epsilon'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["train", "--target-epsilom", "1"],
            "no flag --target-epsilom: did you mean --target-epsilon? (see gnomon train",
        ),
        (["train", "--target-epsilom=1"], "did you mean --target-epsilon?"),
        (["account", "--noise-multiplyer", "10"], "did you mean --noise-multiplier? (see gnomon account --help)"),
        (["ledger", "budget", "x", "--epsilom", "1"], "did you mean --epsilon? (see gnomon ledger budget --help)"),
        (["train", "--qwxyz"], "there is no flag --qwxyz (see gnomon train --help)"),
        (["train", "digits"], "'digits' is one argument too many (see gnomon train --help)"),
        (["train", "--epochs", "many"], "argument --epochs: invalid float value: 'many' (see gnomon train --help)"),
        (["trian"], "'trian'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_flag_is_named_with_the_nearest_one_and_where_help_is(argv, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_one_seed_is_not_short_for_several(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--seed", "5"])
    assert "there is no flag --seed: did you mean --seeds?" in capsys.readouterr().err


def test_a_shortened_flag_is_refused_with_the_full_name(capsys):
    for words, suggestion in (
        (["account", "--noise", "10", "--sample-rate=0.025", "--steps", "10"], "--noise: did you mean --noise-mult"),
        (["train", "--target", "1"], "--target: did you mean --target-epsilon or --target-delta?"),
        (["--deb", "methods"], "--deb: did you mean --debug? (see gnomon --help)"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
        assert f"there is no flag {suggestion}" in capsys.readouterr().err


def test_negative_numbers_are_values(capsys):
    assert main(["account", "--noise-multiplier", "-1", "--sample-rate", "0.1", "--steps", "10"]) == 2
    assert "--noise-multiplier = -1.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "former", "current"),
    [
        ("train", "--every", "--refresh-basis-every"),
        ("train", "--private", "--private-records"),
        ("audit", "--scope", "--subspace-scope"),
        ("compare", "--sketch", "--sketch-dimension"),
        ("federate", "--q", "--fairness-exponent"),
        ("federate", "--fair-most", "--fairness-limit"),
    ],
)
def test_a_former_flag_is_refused_with_its_current_name(command, former, current, capsys):
    with pytest.raises(SystemExit):
        main([command, former, "1"])
    assert f"there is no flag {former}: it is now called {current} (see gnomon {command}" in capsys.readouterr().err


def test_every_former_name_is_that_of_a_setting():
    names = {field.name for config in (TrainConfig, FederateConfig) for field in dataclasses.fields(config)}
    assert set(FORMER_NAMES.values()) <= names
    assert not set(FORMER_NAMES) & names


def test_a_config_of_an_earlier_version_is_read_by_the_former_names(tmp_path):
    (tmp_path / "c.yaml").write_text("method: pcdp\nevery: 5\nscope: per-tensor\nprivate: 900\n")
    config = TrainConfig.from_dict(read_yaml(tmp_path / "c.yaml"))
    assert (config.refresh_basis_every, config.subspace_scope, config.private_records) == (5, "per-tensor", 900)
    (tmp_path / "twice.yaml").write_text("every: 5\nrefresh-basis-every: 6\n")
    with pytest.raises(SettingError, match="the key 'refresh-basis-every' occurs twice"):
        read_yaml(tmp_path / "twice.yaml")


def test_a_wrong_value_in_a_config_file_is_named_as_the_file_names_it(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("max-grad-norm: -1\n")
    assert main([*SHORT, "--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run")]) == 2
    assert "error: max-grad-norm = -1.0 is invalid" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "federate", "compare", "audit"])
def test_help_lists_the_everyday_settings_first(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = capsys.readouterr().out
    first = said.partition("everyday settings:")[2].partition("\n\n")[0]
    for flag in ("--data ", "--model ", "--target-delta ", "--batch-size ", "--lr ", "--max-grad-norm "):
        assert f"\n  {flag}" in first
    assert first.count("\n  --") <= 13
    assert said.index("noise and sampling:") < said.index("optimisation:") < said.index("run and output:")


def test_help_lists_settings_of_a_method_under_its_name(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "projection onto a subspace (settings of pdp, pcdp, rpdp, rpcdp, gep): --rank" in said
    assert "random mask (settings of rsdp): --mask-rate" in said
    assert "as a multiple of C (default: 0.4) [gep]" in said


def test_the_methods_that_help_names_are_those_whose_functions_have_the_parameter():
    fields = {field.name: field for field in dataclasses.fields(TrainConfig)}
    for name in METHOD_SETTINGS:
        assert sorted(fields[name].metadata["methods"]) == sorted(methods_with(name)), name


def test_a_new_ledger_is_announced_when_the_run_starts_and_not_before_an_error(tmp_path, capsys):
    ledger = ["--ledger", str(tmp_path / "new.sqlite"), "--out", str(tmp_path / "run")]
    assert main([*SHORT, *ledger, "--max-grad-norm", "0"]) == 2
    assert "new ledger" not in capsys.readouterr().err
    assert main([*SHORT, *ledger]) == 0
    assert "new ledger" in capsys.readouterr().err
    assert main([*SHORT, *ledger, "--overwrite"]) == 0
    assert "new ledger" not in capsys.readouterr().err


def test_the_fair_rule_is_said_to_live_in_federations(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("clip: fair\n")
    ways = [["train", "--clip", "fair"], ["train", "--method", "fair"], ["train", "--config", str(tmp_path / "c.yaml")]]
    ways += [["compare", "--clip", "fair"], ["compare", "--methods", "dp-sgd,fair"]]
    ways += [["compare", "--methods", "dp-sgd:clip=fair"], ["methods"]]
    for way in ways:
        with contextlib.suppress(SystemExit):
            main(way)
        said = "".join(capsys.readouterr())
        assert "needs a mean loss that was released with noise: use gnomon federate --method fedfdp" in said, way


def test_folders_that_are_no_training_run_are_named(tmp_path, capsys):
    for run, file in (("a", "comparison.csv"), ("b", "metrics.jsonl"), ("f", "bytes.md")):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / file).touch()
    (tmp_path / "runs" / "other").mkdir()
    inside = ", ".join(str(tmp_path / "runs" / run) for run in "abf")
    for words, told in (
        (["diagnose", "runs/a"], "expected the folder of a training run, not of a comparison"),
        (["diagnose", "runs/f"], "expected the folder of a training run, not of a federation"),
        (["diagnose", "runs/other"], "expected the folder of a training run"),
        (["diagnose", "runs"], f"expected the folder of a training run, such as {inside}"),
        (["report", "runs"], f"expected the folder of a run, such as {inside}"),
        (["report", "runs/other"], "that gnomon train, compare or reproduce has written"),
    ):
        assert main([words[0], str(tmp_path / words[1])]) == 2
        assert told in capsys.readouterr().err


def test_an_earlier_run_is_not_overwritten_unasked(tmp_path, capsys):
    out = tmp_path / "run"
    main([*SHORT, "--out", str(out)])
    before = (out / "model.safetensors").read_bytes()
    assert main([*SHORT, "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (out / "model.safetensors").read_bytes() == before
    assert main([*SHORT, "--out", str(out), "--overwrite"]) == 0


def test_nothing_of_an_earlier_run_survives_an_overwrite_but_files_of_others_do(tmp_path):
    out = tmp_path / "run"
    assert main([*SHORT, "--method", "pcdp", "--public-records", "40", "--rank", "5", "--out", str(out)]) == 0
    assert main(["report", str(out)]) == 0
    left = [out / "tensorboard/events.out.tfevents.1.host", *(out / f"audit.{end}" for end in ("txt", "json", "png"))]
    old = [out / "public-only.json", *left, *out.glob("report-figures/*")]
    own = [out / "thoughts.txt", out / "tensorboard/mine.txt"]
    (out / "tensorboard").mkdir()
    for path in (*left, *own):
        path.write_text("x")
    assert len(old) > 5
    assert main([*SHORT, "--out", str(out), "--overwrite"]) == 0
    assert not [path for path in old if path.exists()]
    assert not (out / "report-figures").exists()
    assert all(path.exists() for path in own)
    assert main(["report", str(out)]) == 0
    assert "public records alone" not in (out / "report.html").read_text().lower()


def test_a_refused_run_does_not_touch_the_one_before(tmp_path, capsys):
    out = tmp_path / "run"
    main([*SHORT, "--out", str(out)])
    before = {name: (out / name).read_bytes() for name in files(out)}
    x, y = np.zeros((30, 2), dtype=np.float32), np.zeros(30, dtype=int)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)
    settings = ["--data", str(tmp_path / "own.npz"), "--dataset-size", "30", "--batch-size", "5"]
    assert main([*SHORT, *settings, "--method", "pcdp", "--out", str(out), "--overwrite"]) == 2
    assert "pcdp needs public records" in capsys.readouterr().err
    for flag in ("evaluate-every", "checkpoint-every", "diagnose"):
        assert main([*SHORT, f"--{flag}", "0", "--out", str(out), "--overwrite"]) == 2
        assert f"--{flag} = 0 is invalid" in capsys.readouterr().err
    assert {name: (out / name).read_bytes() for name in files(out)} == before


@pytest.mark.parametrize(
    ("settings", "reader"),
    [
        (["--warm-start", "public"], "warm-start = public"),
        (["--warm-start", "public", "--public-records", "30"], "warm-start = public"),
        (["--method", "pcdp", "--public-records", "30"], "pcdp"),
        (["--method", "gep"], "gep"),
        (["--public-records", "30"], "--public-records"),
    ],
)
def test_no_record_of_an_own_file_becomes_public_undeclared(settings, reader, tmp_path, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 6)).astype(np.float32), rng.integers(0, 2, 300)
    np.savez(tmp_path / "own.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    data = ["--data", f"npz:{tmp_path / 'own.npz'}", "--batch-size", "50", "--dataset-size", "170"]
    assert main([*SHORT, *data, *settings, "--out", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert f"{reader} needs public records" in said
    assert "x_public and y_public" in said
    assert not (tmp_path / "a").exists()


def test_declared_public_records_are_used_as_they_are_and_the_statement_says_so(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(340, 6)).astype(np.float32), rng.integers(0, 2, 340)
    file = tmp_path / "own.npz"
    np.savez(file, x_train=x[:200], y_train=y[:200], x_test=x[200:300], y_test=y[200:300],
             x_public=x[300:], y_public=y[300:])  # fmt: skip
    data = ["--data", f"npz:{file}", "--batch-size", "50", "--dataset-size", "200"]
    for number, settings in enumerate((["--warm-start", "public"], ["--method", "pcdp", "--rank", "5"])):
        out = tmp_path / str(number)
        assert main([*SHORT, *data, *settings, "--out", str(out)]) == 0
        statement = (out / "statement.txt").read_text()
        assert "The 40 public records are declared in the file (x_public)." in statement
        assert "were drawn from" not in statement
    assert main([*SHORT, *data, "--warm-start", "public", "--public-records", "30", "--out", str(tmp_path / "b")]) == 0
    statement = (tmp_path / "b/statement.txt").read_text()
    assert "The 30 public records are declared in the file (x_public), as the first of 40." in statement
    assert "without noise on the public records" in statement
    assert main([*SHORT, *data, "--method", "pcdp", "--public-records", "41", "--out", str(tmp_path / "c")]) == 2
    assert "--public-records = 41 is invalid; expected at most 40" in capsys.readouterr().err


def test_the_split_of_an_own_file_depends_on_nothing_but_its_arrays(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)).astype(np.float32), rng.integers(0, 2, 50)
    np.savez(tmp_path / "own.npz", inputs=x[:40], targets=y[:40], x_public=x[40:], y_public=y[40:], classes=2)
    source = load(str(tmp_path / "own.npz"))
    for seed in range(3):
        config = TrainConfig(data=str(tmp_path / "own.npz"), method="pcdp", split_seed=seed, public_records=7)
        split = records(config, source)
        assert split.private is source.train
        assert torch.equal(split.public.inputs, source.public.inputs[:7])


def test_own_arrays_need_a_declared_size(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 6)).astype(np.float32), rng.integers(0, 2, 300)
    file = tmp_path / "own.npz"
    np.savez(file, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    data = ["--data", f"npz:{file}", "--batch-size", "50"]
    assert main([*SHORT, *data, "--out", str(tmp_path / "a")]) == 2
    assert "dataset-size" in capsys.readouterr().err
    assert main([*SHORT, *data, "--dataset-size", "200", "--out", str(tmp_path / "b")]) == 0


def test_a_nan_in_the_data_does_not_reach_the_model_and_is_told_as_unprotected(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 6)).astype(np.float32), rng.integers(0, 2, 300)
    x[3, 2], x[7, 1] = np.nan, np.inf
    file = tmp_path / "own.npz"
    np.savez(file, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    settings = ["--data", f"npz:{file}", "--batch-size", "50", "--dataset-size", "200"]
    assert main([*SHORT, *settings, "--epochs", "9", "--out", str(tmp_path / "run")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "not finite" in line]
    assert line.startswith("unprotected ")
    weights = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())


def test_help_teaches_without_waiting_for_torch():
    started = time.monotonic()
    said = subprocess.run(
        [sys.executable, "-m", "gnomon.cli", "train", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "examples:" in said
    assert "--target-epsilon" in said
    code = "import sys; from gnomon.cli.main import _parser; _parser(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.monotonic() - started < 60


def test_ctrl_c_writes_everything_and_exits_with_130(tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "gnomon.cli", "train", "--epochs", "100000", "--noise-multiplier", "5",
         "--out", str(out), "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "stopped by Ctrl-C" in said
    statement = json.loads((out / "statement.json").read_text())
    assert statement["steps"] >= 1
    assert {"model.safetensors", "curve.png", "statement.txt", "config.yaml"} <= files(out)


def test_a_sampler_that_does_not_fit_the_records_leaves_the_earlier_run_alone(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*SHORT, "--out", str(out)]) == 0
    before = (out / "model.safetensors").read_bytes()
    wrong = ["--sampler", "truncated", "--dataset-size", "1000", "--out", str(out), "--overwrite"]
    assert main([*SHORT, *wrong]) == 2
    assert "--dataset-size = 1000" in capsys.readouterr().err
    assert (out / "model.safetensors").read_bytes() == before


def test_an_error_that_nobody_foresaw_is_no_refuted_claim(monkeypatch, capsys):
    def broken(*_, **__):
        raise KeyError("head")

    monkeypatch.setattr("gnomon.accounting.epsilon", broken)
    words = ["account", "--noise-multiplier", "10", "--sample-rate", "0.025", "--steps", "3200"]
    assert main(words) == 2
    assert "gnomon: error: KeyError: 'head' (gnomon --debug shows where)" in capsys.readouterr().err
    with pytest.raises(KeyError):
        main(["--debug", *words])


def test_all_accountants_are_those_that_can_answer(capsys):
    words = ["account", "--noise-multiplier", "10", "--sample-rate", "0.025", "--steps", "100", "--accountant", "all"]
    assert main([*words, "--adjacency", "replace-one"]) == 0
    some = capsys.readouterr().out.splitlines()
    assert main(words) == 0
    assert 0 < len(some) < len(capsys.readouterr().out.splitlines())
    assert main([*words[:-1], "rdp", "--adjacency", "replace-one"]) == 2


def test_runs_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with claimed("digits") as one, claimed("digits") as other:
        assert one != other
    assert main(["train", "--epochs", "0", "--quiet"]) == 2
    assert sorted(tmp_path.glob("runs/*")) == sorted(tmp_path / path for path in (one, other)), "an error leaves none"
