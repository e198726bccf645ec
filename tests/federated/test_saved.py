"""A resumed run has the same records and the same model, and keeps every round and every charge."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from gnomon.cli.main import main
from gnomon.data import load
from gnomon.errors import DataError, SettingError
from gnomon.federated.simulation.run import federate, resume
from gnomon.ledger import Ledger
from gnomon.runs.federate_config import FederateConfig
from tests.federated.small import QUICK

PLAIN = FederateConfig(**QUICK | {"method": "fedavg"})


def edit(folder, before, after):
    text = (folder / "config.yaml").read_text()
    assert before in text
    (folder / "config.yaml").write_text(text.replace(before, after))


def test_the_total_counts_clients_that_took_no_step_since_the_run_was_resumed_or_in_this_run_at_all(tmp_path):
    ledger, folder = Ledger(tmp_path / "ledger.sqlite"), tmp_path / "run"
    config = dataclasses.replace(PLAIN, participation=0.34, rounds=6)
    first = federate(config, folder, progress=False, ledger=ledger).total
    assert first.steps == 4, "client-0 was asked four times, client-2 twice"
    again = resume(folder, progress=False)
    assert (again.total.steps, again.total.epsilon) == (4, first.epsilon)
    assert f"  ledger                head {again.statement.ledger['head']}" in again.statement.text()
    edit(folder, "rounds: 6", "rounds: 7")
    assert resume(folder, progress=False).total.steps == 4, "client-2 took one step more, its third"
    other = dataclasses.replace(config, rounds=1)
    assert federate(other, tmp_path / "other", progress=False, ledger=ledger).total.steps == 4
    ledger.close()


def test_the_run_that_began_a_ledger_says_so_also_when_it_was_resumed(tmp_path):
    ledger, begun = Ledger(tmp_path / "l.sqlite"), "new ledger l.sqlite: earlier runs are not recorded in it."
    config = dataclasses.replace(PLAIN, rounds=1)
    first = federate(config, tmp_path / "run", progress=False, ledger=ledger).statement
    again = resume(tmp_path / "run", progress=False).statement
    other = federate(config, tmp_path / "other", progress=False, ledger=ledger).statement
    assert [begun in one.caveats for one in (first, again, other)] == [True, True, False]
    ledger.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("split-seed: 0", "split-seed: 4"),
        ("partition: iid", "partition: shards:2"),
        ("private-records: 900", "private-records: 901"),
        ("holdout: 0.1", "holdout: 0.11"),
        ("clients: 3", "clients: 4"),
    ],
)
def test_settings_that_move_records_between_clients_are_refused(before, after, tmp_path):
    """With a fixed sample rate a round costs the same, but a record that moved is in more rounds than any client."""
    folder = tmp_path / "run"
    federate(dataclasses.replace(PLAIN, sample_rate=0.1, private_records=900, holdout=0.1), folder, progress=False)
    edit(folder, before, after)
    edit(folder, "rounds: 2", "rounds: 3")
    with pytest.raises(SettingError, match=r"the records of client-. have changed .*split-seed"):
        resume(folder, progress=False)
    edit(folder, after, before)
    assert resume(folder, progress=False).history[-1]["round"] == 3


def test_data_may_move_but_not_change(tmp_path):
    source = load("digits")
    inputs, targets = source.train.inputs.numpy(), source.train.targets.numpy()
    np.savez(tmp_path / "a.npz", inputs=inputs, targets=targets, classes=10)
    folder = tmp_path / "run"
    federate(dataclasses.replace(PLAIN, data=f"npz:{tmp_path / 'a.npz'}"), folder, progress=False)
    (tmp_path / "a.npz").rename(tmp_path / "b.npz")
    edit(folder, "a.npz", "b.npz")
    assert resume(folder, progress=False).history[-1]["round"] == 2
    inputs[:, 0] += 1
    np.savez(tmp_path / "b.npz", inputs=inputs, targets=targets, classes=10)
    with pytest.raises(SettingError, match="the records of client-0"):
        resume(folder, progress=False)


def test_another_model_is_named(tmp_path):
    federate(PLAIN, tmp_path / "run", progress=False)
    edit(tmp_path / "run", "model: null", "model: mlp")
    with pytest.raises(SettingError, match="model = 'mlp'"):
        resume(tmp_path / "run", progress=False)


@pytest.mark.parametrize(("file", "content"), [("asked.jsonl", '{"round": 1, "clients": ["client-0"]}\n'), (None, "")])
def test_files_of_an_earlier_form_are_named_with_the_remedy(file, content, tmp_path):
    federate(PLAIN, tmp_path / "run", progress=False)
    if file is None:
        file = "unprotected-records.json"
        (tmp_path / "run" / file).unlink()
    else:
        (tmp_path / "run" / file).write_text(content)
    with pytest.raises(DataError, match=f"{file} .*begin in another folder"):
        resume(tmp_path / "run", progress=False)


def test_a_kill_between_metrics_and_state_leaves_no_gap(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr("gnomon.federated.simulation.run.serialise_state", lambda federation: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        federate(PLAIN, folder, progress=False)
    monkeypatch.undo()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1, "the line came first"
    assert [row["round"] for row in resume(folder, progress=False).history] == [1, 2]
    rows = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").open()]
    assert rows == [1, 2]


def test_a_finished_run_without_its_metrics_can_still_be_asked_for_its_statement(tmp_path, capsys):
    federate(PLAIN, tmp_path / "run", progress=False)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert main(["federate", "--resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert "epsilon = " in capsys.readouterr().out
