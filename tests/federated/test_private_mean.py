"""Privacy for whole clients: the server clips, adds noise, and divides by a declared number."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from gnomon.accounting import Account, FullBatch, epsilon
from gnomon.errors import SettingError
from gnomon.federated import LossRelease, PrivateMean, fedavg, fedfdp, scaffold
from gnomon.federated.refusal import Refused
from gnomon.federated.rounds import InProcess, RoundFailed
from gnomon.federated.simulation.run import federate, resume
from gnomon.federated.state import load_tree
from gnomon.release import SeededNoise
from gnomon.runs.federate_config import FederateConfig
from gnomon.training import BudgetExhausted
from tests.federated.small import federation, flat, run


def mean(sigma: float, clients: float = 3, bound: float = 0.5) -> PrivateMean:
    return PrivateMean(bound, Account(FullBatch(), sigma, "zero-out"), clients, noise=SeededNoise(0))


def test_one_client_s_data_move_the_model_by_at_most_its_bound():
    moved = []
    for scale in (1.0, 1e6):
        server, clients = federation(dataclasses.replace(fedavg(), aggregator=mean(0.0)), sigma=0.0, rounds=1, lr=5.0)
        x, y = clients["c1"].data
        clients["c1"].data = (x * scale, y)
        run(server, clients)
        moved.append(flat(server.weights))
    assert 0 < float((moved[0] - moved[1]).norm()) <= 2 * 0.5 / 3 * 1.001
    server, clients = federation(dataclasses.replace(fedavg(), aggregator=mean(0.0)), sigma=0.0, rounds=1, lr=5.0)
    clients["c1"].train = lambda message: (_ for _ in ()).throw(OSError())
    run(server, clients)
    assert float((moved[0] - flat(server.weights)).norm()) <= 0.5 / 3 * 1.001, "a client that left counts as nothing"


def test_noise_has_the_declared_size_and_is_added_also_when_nobody_answers():
    start = None
    drawn = []
    for seed in range(40):
        aggregate = dataclasses.replace(mean(2.0), noise=SeededNoise(seed))
        server, clients = federation(dataclasses.replace(fedavg(), aggregator=aggregate), rounds=1)
        start = flat(server.weights)
        for client in clients.values():
            client.train = lambda message: (_ for _ in ()).throw(OSError())
        with pytest.raises(RoundFailed):
            run(server, clients)
        drawn.append(flat(server.weights) - start)
        assert aggregate.account.steps == 1
    assert float(torch.cat(drawn).std()) == pytest.approx(2.0 * 0.5 / 3, rel=0.1)


def test_epsilon_is_that_of_the_rounds_without_amplification(tmp_path):
    config = FederateConfig(
        method="fedavg", unit="client", noise_multiplier=6.0, rounds=3, clients=4, participation=0.5, client_clip=0.3
    )
    found = federate(config, tmp_path / "run", progress=False).statement
    spent = epsilon(noise_multiplier=6.0, steps=3, delta=1e-5, sampler=FullBatch(), adjacency="zero-out")
    assert found.epsilon == pytest.approx(float(spent))
    assert found.guarantee
    assert found.unit == "one client with all its records"
    assert "must be trusted" in found.text()
    kept = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert kept["expected_batch_size"] == 2
    assert resume(tmp_path / "run", progress=False).statement.epsilon == found.epsilon, "the account survives"


WHOLE = FederateConfig(
    method="fedavg", unit="client", target_epsilon=5.0, rounds=4, clients=3, steps_per_round=1, accountant="rdp"
)


def test_a_lost_round_is_one_of_those_that_the_target_pays_for(tmp_path, monkeypatch):
    plain = InProcess.__call__

    def killed(self, messages):
        if next(iter(messages.values())).round == 3:
            raise KeyboardInterrupt
        yield from plain(self, messages)

    monkeypatch.setattr(InProcess, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        federate(WHOLE, tmp_path / "run", progress=False)
    monkeypatch.setattr(InProcess, "__call__", plain)
    run = resume(tmp_path / "run", progress=False)
    assert (run.stopped, run.history[-1]["round"]) == ("budget", 3)
    assert run.statement.steps == 4
    assert run.statement.epsilon <= 5.0
    assert run.history[-1]["accepted"] == 3, "the round before was a full one"
    with pytest.raises(BudgetExhausted, match="round 4"):
        run.federation.server.begin()


def test_a_failed_round_leaves_no_noise_in_the_saved_model(tmp_path, monkeypatch):
    plain = InProcess.__call__

    def failing(self, messages):
        for name, answer in plain(self, messages):
            yield name, Refused("error") if messages[name].round == 3 else answer

    monkeypatch.setattr(InProcess, "__call__", failing)
    with pytest.raises(RoundFailed, match="round 3"):
        federate(WHOLE, tmp_path / "run", progress=False)
    state = load_tree((tmp_path / "run" / "state.safetensors").read_bytes())
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert state["server"]["round"] == 2
    assert all(torch.equal(value, saved[name]) for name, value in state["weights"].items())
    assert json.loads((tmp_path / "run" / "statement.json").read_text())["steps"] == 3, "its noise was paid for"


@pytest.mark.parametrize("strategy", [scaffold(), fedfdp()])
def test_strategies_that_upload_more_than_a_change_are_refused(strategy):
    with pytest.raises(SettingError, match="leave out components"):
        dataclasses.replace(strategy, aggregator=mean(1.0))
    assert LossRelease().upload_numbers == ("loss",)
