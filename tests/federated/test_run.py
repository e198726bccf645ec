"""`gnomon federate`: its run folder, its ledger entries, and resuming after a kill."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gnomon.accounting import digits, epsilon
from gnomon.cli.main import main
from gnomon.data import DataError, load
from gnomon.errors import SettingError
from gnomon.federated.builders import build_federation
from gnomon.federated.simulation.run import federate, resume
from gnomon.federated.state import load_tree
from gnomon.ledger import Budget, Ledger
from gnomon.runs.config import TrainConfig
from gnomon.runs.federate_config import METHODS, TRAINING_ONLY, FederateConfig, federated_defaults
from tests.federated.small import QUICK


def test_the_command_leaves_everything_and_says_what_was_spent(tmp_path, capsys):
    out = tmp_path / "run"
    code = main(
        ["federate", "--simulate", "--data", "digits", "--clients", "3", "--rounds", "2", "--method", "fedpcdp",
         "--noise-multiplier", "3", "--holdout", "0.2", "--partition", "dirichlet:0.5", "--out", str(out), "--quiet"]
    )  # fmt: skip
    said = capsys.readouterr().out
    assert code == 0
    assert "one record of one client" in said
    names = {path.name for path in out.iterdir()}
    assert names >= {
        "config.yaml", "metrics.jsonl", "model.safetensors", "statement.txt", "statement.json", "curve.png", "bytes.md",
        "report.html",
    }  # fmt: skip
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2]
    assert rows[1]["bytes/up"] < rows[1]["bytes/down"]
    assert rows[1]["validation/unfairness"] >= 0
    assert 0 <= rows[1]["validation/worst accuracy"] <= 1
    assert all(name.split("/")[0] in ("unprotected", "validation", "bytes") for name in rows[0] if "/" in name)
    assert load_file(out / "model.safetensors")["1.weight"].shape == (10, 64)
    assert "NOT protected" in (out / "statement.txt").read_text()


def test_ten_rounds_on_digits_with_all_defaults_show_their_progress_and_leave_a_page(tmp_path, capsys):
    flags = ["--data", "digits", "--clients", "5", "--method", "fedpcdp", "--rounds", "10"]
    assert main(["federate", "--simulate", *flags, "--out", str(tmp_path / "run"), "--ledger", "none"]) == 0
    shown = capsys.readouterr()
    assert "10/10" in shown.err, "the progress bar"
    assert "epsilon = 1.000" in shown.out
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


def test_each_client_s_rounds_are_in_the_ledger_and_the_statement_has_the_client_that_paid_the_most(
    tmp_path, own_ledger, capsys
):
    flags = ["--noise-multiplier", "3", "--clients", "3", "--rounds", "2", "--participation", "0.67", "--quiet"]
    for number in (1, 2):
        main(["federate", "--simulate", "--method", "fedavg", *flags, "--out", str(tmp_path / str(number))])
    ledger = Ledger(own_ledger)
    entered = ledger.state().runs.values()
    asked = [name for line in (tmp_path / "1" / "asked.jsonl").open() for name in json.loads(line)["clients"]]
    assert {run.label.split(" (")[0] for run in entered} == {f"fedavg, {name}" for name in asked}
    for run in entered:
        assert run.reserved == 5 * asked.count(run.label.split(" (")[0].removeprefix("fedavg, "))
        assert not run.open
    statement = json.loads((tmp_path / "2" / "statement.json").read_text())
    most = 5 * max(map(asked.count, asked))
    assert statement["steps"] == most
    assert set(statement["ledger"]) == {"run", "head"}, "parts are known by content: the totals are the holder's"
    both = epsilon(noise_multiplier=3.0, sample_rate=64 / 479, steps=2 * most, delta=1e-5)
    told = f"epsilon = {digits(both)}, 2 runs together, for the client that was charged the most"
    assert told in capsys.readouterr().out
    ledger.close()


def test_all_clients_of_a_simulation_count_for_a_data_set_that_has_a_name(tmp_path, own_ledger, capsys):
    flags = ["--method", "fedavg", "--noise-multiplier", "3", "--clients", "3", "--rounds", "1", "--quiet"]
    named = ["federate", "--simulate", *flags, "--data-id", "patients", "--out", str(tmp_path / "run")]
    assert main(named) == 0
    assert "3 runs together, for all clients" in capsys.readouterr().out
    (tmp_path / "run" / "config.yaml").write_text(
        (tmp_path / "run" / "config.yaml").read_text().replace("rounds: 1", "rounds: 2")
    )
    assert main(["federate", "--resume", str(tmp_path / "run"), "--quiet", "--data-id", "others"]) == 2
    assert "a run keeps the data set with which it began" in capsys.readouterr().err
    assert main(["federate", "--resume", str(tmp_path / "run"), "--quiet"]) == 0
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert (statement["ledger"]["dataset"], statement["ledger"]["runs"]) == ("name:patients", 6)
    ledger = Ledger(own_ledger)
    assert list(ledger.state().datasets) == ["name:patients"]
    ledger.close()


@pytest.mark.data
def test_a_table_is_split_by_a_column_that_has_a_name(tmp_path):
    try:
        source = load("adult")
    except DataError as error:
        pytest.skip(f"needs Adult in the folder that GNOMON_DATA names ({error})")
    config = FederateConfig(
        data="adult", method="fedavg", clients=4, noise_multiplier=3.0, partition="column:workclass"
    )
    clients = build_federation(config).clients.values()
    held = [set(source.columns["workclass"].keys(client.data.inputs)) for client in clients]
    assert sum(map(len, held)) == len(set.union(*held)), "every value is with one client"
    assert {"Private"} in held
    assert sum(len(client.data) for client in clients) == len(source.train)
    named = dataclasses.replace(config, partition="column:nowhere")
    with pytest.raises(SettingError, match="native-country"):
        build_federation(named)


def test_speakers_are_clients_and_stay_whole(tmp_path):
    voices = {"ROMEO": 30, "JULIET": 28, "Nurse": 20, "MERCUTIO": 12}
    speech = "but soft what light through yonder window breaks"
    play = "\n\n".join(f"{name}:\n{number} {speech}" for name, count in voices.items()
                        for number in map(_in_letters, range(count)))  # fmt: skip
    (tmp_path / "tinyshakespeare.txt").write_text(play)
    config = dataclasses.replace(
        federated_defaults("shakespeare"), data_dir=str(tmp_path), clients=3, partition="group", method="fedavg",
        batch_size=16, rounds=2, noise_multiplier=3.0, insecure_noise_seed=0,
    )  # fmt: skip
    assert config.model == "text"
    run = federate(config, tmp_path / "run", progress=False)
    held = [set(client.data.groups) for client in run.federation.clients.values()]
    assert held == [{"ROMEO"}, {"JULIET"}, {"Nurse", "MERCUTIO"}]
    assert run.history[-1]["accepted"] == 3


def _in_letters(number):
    return chr(ord("a") + number // 10) + chr(ord("a") + number % 10)


@pytest.mark.parametrize("flags", [["--insecure-noise-seed", "1"], ["--ledger", "none"]])
def test_a_study_and_a_run_that_counts_alone_write_no_ledger(flags, tmp_path, own_ledger):
    main(["federate", "--simulate", "--noise-multiplier", "3", "--rounds", "1", "--quiet",
          "--out", str(tmp_path / "run"), *flags])  # fmt: skip
    assert not own_ledger.exists()
    assert json.loads((tmp_path / "run" / "statement.json").read_text())["ledger"] is None


def test_a_budget_that_cannot_pay_for_all_rounds_is_refused_before_anything_is_written(tmp_path, own_ledger, capsys):
    flags = ["federate", "--simulate", "--noise-multiplier", "3", "--clients", "1", "--quiet", "--out"]
    assert main([*flags, str(tmp_path / "a"), "--rounds", "1"]) == 0
    ledger = Ledger(own_ledger)
    ledger.set_budget(next(iter(ledger.state().datasets)), Budget(0.5, 1e-5))
    ledger.close()
    assert main([*flags, str(tmp_path / "b"), "--rounds", "50"]) == 2
    assert "budget" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_name_on_the_command_line(method, tmp_path):
    config = FederateConfig(method=method, data="digits", model="mlp" if method == "moon" else None, **QUICK)
    run = federate(config, tmp_path / "run", progress=False)
    assert run.history[-1]["accepted"] == 3
    assert run.federation.server.strategy.name == method


def test_learning_shows_on_digits(tmp_path):
    config = FederateConfig(method="fedpcdp", insecure_noise_seed=1, lr=2.0, noise_multiplier=3.0, accountant="rdp")
    run = federate(config, tmp_path / "run", progress=False)
    assert run.history[0]["validation/accuracy"] < run.history[-1]["validation/accuracy"]
    assert run.history[-1]["validation/accuracy"] > 0.6
    assert not run.statement.guarantee, "the noise was seeded"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--partition", "nowhere"], "partition"),
        (["--partition", "shards:x"], "partition"),
        (["--partition", "column:colour"], "column:N, or an index below 64"),
        (["--partition", "column:64"], "an index below 64"),
        (["--partition", "column:0"], "clients = 5"),
        (["--partition", "group"], "the records of digits have no groups"),
        (["--clients", "0"], "clients"),
        (["--rounds", "0"], "rounds"),
        (["--steps-per-round", "0"], "steps-per-round = 0"),
        (["--holdout", "1"], "holdout"),
        (["--participation", "0"], "participation"),
        (["--rank", "-1"], "rank"),
        (["--method", "fedprox", "--proximal-mu", "-1"], "--proximal-mu = -1"),
        (["--method", "fedprox", "--proximal-mu", "100"], "--proximal-mu = 100"),
        (["--method", "fedlrs", "--update-limit", "0"], "update-limit = 0"),
        (["--method", "fedfair", "--fairness-lambda", "-1"], "--fairness-lambda = -1"),
        (["--method", "fedfdp", "--fairness-limit", "0"], "--fairness-limit = 0"),
        (["--method", "scaffold", "--momentum", "0.9"], "momentum = 0.9"),
        (["--method", "moon"], "a hidden layer"),
        (["--classes", "9"], "classes = 9"),
        (["--unit", "client", "--client-weights", "size"], "client-weights = 'size'"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_written(flags, named, tmp_path, capsys):
    out = tmp_path / "run"
    base = ["federate", "--simulate", "--noise-multiplier", "2", "--quiet", "--out", str(out)]
    code = main([*base, *flags])
    assert code == 2
    assert named in capsys.readouterr().err
    assert not out.exists()


def test_a_setting_that_rounds_have_no_use_for_is_not_ignored(tmp_path, capsys):
    (tmp_path / "own.yaml").write_text("optimizer: adam\n")
    assert main(["federate", "--simulate", "--config", str(tmp_path / "own.yaml"), "--out", str(tmp_path / "r")]) == 2
    assert "optimizer = 'adam'" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_without_simulate_it_says_where_to_read_on(capsys):
    assert main(["federate"]) == 2
    assert "docs/federated.md" in capsys.readouterr().err


def test_a_resumed_run_ends_where_an_undisturbed_one_does_and_pays_for_the_round_it_lost(tmp_path):
    settings = QUICK | {"rounds": 4, "method": "scaffold"}
    config = FederateConfig(**settings)
    run = federate(config, tmp_path / "run", progress=False)
    assert run.federation.server.round == 4
    folder = tmp_path / "run"
    # as if the process had been killed in the middle of a fifth round, with a line cut short
    raised = (folder / "config.yaml").read_text().replace("rounds: 4", "rounds: 6")
    (folder / "config.yaml").write_text(raised)
    with (folder / "asked.jsonl").open("a") as file:
        last = json.loads((folder / "asked.jsonl").read_text().splitlines()[-1])
        file.write(json.dumps(last | {"round": 5}) + "\n" + '{"round"')
    again = resume(folder, progress=False)
    assert [row["round"] for row in again.history] == [1, 2, 3, 4, 5, 6]
    assert again.statement.steps == 7, "six rounds and the lost one"
    kept = load_tree((folder / "state.safetensors").read_bytes())
    assert kept["server"]["round"] == 6
    assert resume(folder, progress=False).statement.steps == 7, "the line that was cut short is in nobody's way"


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ({}, ("noise-multiplier: 3.0", "noise-multiplier: 9.0"), r"round 1 cost client-0: .*noise 3.0; under"),
        ({"unit": "client"}, ("noise-multiplier: 3.0", "noise-multiplier: 9.0"), "whole clients noise 3.0"),
        ({"noise_multiplier": None, "target_epsilon": 2.0}, ("rounds: 2", "rounds: 4"), "round 1 cost client-0"),
    ],
)
def test_settings_under_which_past_rounds_would_have_cost_something_else_are_refused(before, after, named, tmp_path):
    folder = tmp_path / "run"
    federate(FederateConfig(**QUICK | {"method": "fedavg"} | before), folder, progress=False)
    text = (folder / "config.yaml").read_text()
    assert after[0] in text
    (folder / "config.yaml").write_text(text.replace(*after))
    with pytest.raises(SettingError, match=named):
        resume(folder, progress=False)
    (folder / "config.yaml").write_text(text)
    assert resume(folder, progress=False).history[-1]["round"] == 2


def test_a_target_beside_the_noise_ends_the_run(tmp_path):
    config = FederateConfig(**QUICK | {"method": "fedavg", "rounds": 50, "target_epsilon": 0.6})
    run = federate(config, tmp_path / "run", progress=False)
    assert run.stopped == "budget"
    assert 1 < run.history[-1]["round"] < 50
    assert run.statement.epsilon <= 0.6
    with pytest.raises(SettingError, match="one round already costs more"):
        federate(dataclasses.replace(config, target_epsilon=0.01), tmp_path / "none", progress=False)
    with pytest.raises(SettingError, match="either target-epsilon or noise-multiplier"):
        federate(dataclasses.replace(config, unit="client"), tmp_path / "none", progress=False)


def test_noise_for_a_target_is_worked_out_for_the_adjacency_that_is_reported(tmp_path):
    settings = QUICK | {
        "noise_multiplier": None,
        "target_epsilon": 2.0,
        "adjacency": "replace-one",
        "accountant": "pld",
    }
    settings["method"] = "fedavg"
    run = federate(FederateConfig(**settings), tmp_path / "run", progress=False)
    assert 1.9 < run.statement.epsilon <= 2.0
    with pytest.raises(SettingError, match="adjacency"):
        federate(FederateConfig(**settings | {"unit": "client"}), tmp_path / "none", progress=False)


def test_own_data_in_a_simulation_get_a_caveat(tmp_path):
    source = load("digits")
    np.savez(tmp_path / "own.npz", inputs=source.train.inputs, targets=source.train.targets)
    config = FederateConfig(**QUICK | {"method": "fedavg", "data": f"npz:{tmp_path / 'own.npz'}"})
    run = federate(config, tmp_path / "run", progress=False)
    assert any("takes both as public" in caveat for caveat in run.statement.caveats)
    assert any("the largest label is NOT protected" in caveat for caveat in run.statement.caveats)
    said = federate(dataclasses.replace(config, classes=10), tmp_path / "said", progress=False)
    assert not any("largest label" in caveat for caveat in said.statement.caveats), "the number was declared"


@pytest.mark.parametrize("settings", [{"method": "fedpcdp", "rank": 5}, {"method": "fedavg", "warm_start": "public"}])
def test_a_simulation_on_own_data_takes_the_public_records_that_the_file_declares(settings, tmp_path):
    train = load("digits").train
    arrays = {"inputs": train.inputs[100:], "targets": train.targets[100:], "classes": 10}
    np.savez(tmp_path / "own.npz", **arrays)
    config = FederateConfig(**QUICK | settings | {"data": f"npz:{tmp_path / 'own.npz'}", "public_records": 30})
    with pytest.raises(SettingError, match=r"needs public records, and npz:.* declares none"):
        federate(config, tmp_path / "none", progress=False)
    np.savez(tmp_path / "own.npz", **arrays, x_public=train.inputs[:40], y_public=train.targets[:40])
    run = federate(config, tmp_path / "run", progress=False)
    assert "The 30 public records are declared in the file (x_public), as the first of 40." in run.statement.caveats
    assert sum(len(client.data) for client in run.federation.clients.values()) == 1070  # four fifths of all others


def test_resume_restores_weights_and_control_variates(tmp_path):
    federate(FederateConfig(**QUICK | {"method": "scaffold"}), tmp_path / "run", progress=False)
    before = load_tree((tmp_path / "run" / "state.safetensors").read_bytes())
    again = resume(tmp_path / "run", progress=False)  # no round is left
    assert again.history[-1]["round"] == 2
    assert torch.equal(dict(again.federation.server.model.named_parameters())["1.bias"], before["weights"]["1.bias"])
    own = again.federation.clients["client-1"].state.arrays["control"]["1.bias"]
    assert torch.equal(own, before["clients"]["client-1"]["arrays"]["control"]["1.bias"])
    kept = again.federation.server.state.client_arrays["control"]["client-1"]["1.bias"]
    torch.testing.assert_close(kept, own, rtol=1e-4, atol=1e-6)


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(SettingError, match="config"):
        resume(tmp_path / "nothing")


@pytest.mark.slow
def test_a_killed_run_goes_on_and_forgets_no_round(tmp_path, own_ledger):
    out = tmp_path / "run"
    command = [
        sys.executable, "-m", "gnomon.cli", "federate", "--simulate", "--method", "fedavg", "--rounds", "400",
        "--noise-multiplier", "3", "--clients", "3", "--steps-per-round", "1", "--quiet", "--out", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if (out / "asked.jsonl").exists() and len((out / "asked.jsonl").read_text().splitlines()) >= 3:
                break
            time.sleep(0.1)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    asked = len((out / "asked.jsonl").read_text().splitlines())
    assert asked >= 3
    ended = load_tree((out / "state.safetensors").read_bytes())["server"]["round"]
    (out / "config.yaml").write_text((out / "config.yaml").read_text().replace("rounds: 400", f"rounds: {ended + 1}"))
    ledger = Ledger(own_ledger)
    before = {run.id: run.reserved for run in ledger.state().runs.values()}
    assert len(before) == 3
    assert all(ended <= steps <= asked for steps in before.values()), "every round that ended was paid for"
    again = resume(out, progress=False)
    assert again.history[-1]["round"] == ended + 1
    assert again.statement.steps == asked + 1
    after = ledger.state().runs
    assert {run: after[run].reserved for run in before} == before, "what was paid stays paid"
    assert sorted(run.reserved for run in after.values() if run.id not in before) == [1, 1, 1]
    assert not any(run.open for run in after.values()), "the killed run holds no steps any more"
    assert again.total.steps == max(before.values()) + 1
    ledger.close()


def test_files_that_list_settings_of_training_at_their_defaults_can_be_read():
    """Run folders and kept results of earlier runs list them."""
    every = {key.replace("_", "-"): value for key, value in dataclasses.asdict(TrainConfig()).items()}
    listed = {key: every[key] for key in every if key.replace("-", "_") in TRAINING_ONLY}
    assert {"epochs", "optimizer"} <= set(listed)
    assert FederateConfig.from_dict(listed | {"rounds": 7}) == FederateConfig(rounds=7)
    assert federated_defaults("mnist").with_settings(listed).lr == federated_defaults("mnist").lr
    with pytest.raises(SettingError, match=r"epochs = 3.0 has no effect in a federated run"):
        FederateConfig.from_dict(listed | {"epochs": 3.0})


def test_kept_results_of_federated_studies_can_be_read():
    for path in sorted((Path(__file__).parents[2] / "experiments/results/federated/cells").glob("*.json"))[:20]:
        settings = json.loads(path.read_text())["settings"]
        assert FederateConfig.from_dict(settings).rounds == settings["rounds"]
