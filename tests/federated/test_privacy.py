"""Each client's account, the largest of them, and nothing for luck in being picked."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from gnomon.accounting import Account, epsilon
from gnomon.errors import SettingError
from gnomon.federated import Client, fedavg, fedfdp, fedpcdp, pfa
from gnomon.federated.rounds import InProcess, run_round
from gnomon.federated.simulation.setup import build, participations
from gnomon.federated.simulation.statement import federated_statement
from gnomon.ledger import Ledger
from gnomon.release import SecureNoise
from gnomon.runs.federate_config import FederateConfig
from tests.federated.small import PUBLIC, data, federation, flat, run

SMALL = FederateConfig(method="fedavg", clients=4, rounds=6, steps_per_round=2, noise_multiplier=3.0, batch_size=32)


def quietly(number, names):
    """Nobody needs to know."""


def test_a_client_pays_for_the_rounds_it_was_asked_in_and_for_nothing_less():
    config = dataclasses.replace(SMALL, participation=0.5, insecure_noise_seed=0)
    federation = build(config)
    asked = dict.fromkeys(federation.clients, 0)
    for _ in range(6):
        for name in federation.server.chosen(federation.server.round + 1):
            asked[name] += 1
        run_round(federation.server, InProcess(federation.clients), quietly)
    assert asked == participations(config, federation.clients)
    assert len(set(asked.values())) > 1, "somebody was asked more often"
    for name, client in federation.clients.items():
        account = federation.server.members[name].account
        assert account.steps == client.trainer.account.steps == 2 * asked[name]
        assert account.to_dict() == client.trainer.account.to_dict()


def test_the_statement_is_the_largest_epsilon_without_amplification_by_client_sampling():
    config = dataclasses.replace(SMALL, participation=0.5, partition="dirichlet:0.3")
    federation = build(config)
    for _ in range(6):
        run_round(federation.server, InProcess(federation.clients), quietly)
    statement = federated_statement(config, federation.server, True, 0)
    spent = {}
    for name, client in federation.clients.items():
        rate = 32 / len(client.data)
        steps = client.trainer.account.steps
        spent[name] = float(epsilon(noise_multiplier=3.0, sample_rate=rate, steps=steps, delta=1e-5))
    assert statement.epsilon == pytest.approx(max(spent.values()))
    assert statement.guarantee
    assert statement.unit == "one record of one client"
    assert max(spent, key=spent.get) in statement.text()
    assert "client sampling is not counted" in statement.text()


def test_a_client_whose_answer_was_lost_has_paid_all_the_same():
    server, clients = federation(fedavg(), rounds=2)
    for name, message in server.begin().items():
        clients[name].train(message)  # and nothing arrives
    server.end()
    assert {member.account.steps for member in server.members.values()} == {2}
    assert {client.trainer.account.steps for client in clients.values()} == {2}


def test_a_target_is_met_by_every_client_whatever_its_size():
    config = dataclasses.replace(
        SMALL,
        noise_multiplier=None,
        target_epsilon=2.0,
        partition="dirichlet:0.5",
        rounds=2,
        clients=2,
        accountant="rdp",
    )
    federation = build(config)
    sigmas = {member.account.noise_multiplier for member in federation.server.members.values()}
    assert len(sigmas) == 2, "smaller clients need more noise"
    for _ in range(2):
        run_round(federation.server, InProcess(federation.clients), quietly)
    for client in federation.clients.values():
        assert 1.9 < float(client.trainer.account.epsilon(1e-5)) <= 2.0


def test_a_client_does_not_go_beyond_its_plan():
    server, clients = federation(fedavg(), rounds=2)
    run(server, clients)
    server.rounds = 3
    for name, message in server.begin().items():
        with pytest.raises(ValueError, match="budget"):
            clients[name].train(message)
    assert {client.trainer.account.steps for client in clients.values()} == {4}


def test_a_round_is_paid_for_as_a_whole_before_any_noise_is_drawn(tmp_path):
    config = FederateConfig(method="fedavg", clients=1, rounds=2, steps_per_round=3, noise_multiplier=2.0)
    ledger = Ledger(tmp_path / "ledger.sqlite", block=3)
    federation = build(config, ledger=ledger)
    client = federation.clients["client-0"]
    seen = []
    plain = client.trainer.noise.normal
    client.trainer.noise.normal = lambda count: (seen.append(client.ledger_session.total(1e-5).steps), plain(count))[1]
    for _ in range(2):
        run_round(federation.server, InProcess(federation.clients), quietly)
    draws = len(seen) // 2
    assert seen == [3] * draws + [6] * draws
    ledger.shut()


def test_what_is_uploaded_is_made_of_what_the_door_released():
    """Records that differ in one: with the noise off, uploads differ by at most lr * C / B a step."""
    strategy = fedpcdp(PUBLIC, 5)
    sent = []
    for leave_out in (False, True):
        server, clients = federation(strategy, clients=1, rounds=1, steps=1, sigma=0.0, rate=1.0, bound=0.1, lr=1.0)
        x, y = data(0)
        if leave_out:
            clients["c0"].data = (x[:-1], y[:-1])
        sent.append(flat(clients["c0"].train(server.begin()["c0"]).arrays["change"]))
    apart = float((sent[0] - sent[1]).norm())
    assert 0 < apart <= 0.1 / 30 * 1.001


def test_fedfdp_is_charged_once_a_step_with_the_joint_multiplier():
    server, clients = federation(fedfdp(), rounds=1, sigma=1.7, bound=0.5)
    trainer = clients["c0"].trainer
    assert trainer.mechanism.max_grad_norm == pytest.approx(0.5 * (1 + 2.5**-2) ** 0.5)
    run(server, clients)
    assert trainer.account.steps == 2
    update = trainer.account.noise_multiplier * trainer.mechanism.max_grad_norm / 0.5
    assert (update**-2 + (2.5 * update) ** -2) ** -0.5 == pytest.approx(trainer.account.noise_multiplier)


def test_a_trainer_with_the_wrong_bound_or_shuffled_epochs_is_refused():
    _, clients = federation(fedavg(), clients=1)
    trainer = clients["c0"].trainer
    with pytest.raises(SettingError, match=r"strategy\.bound"):
        Client("c", trainer, data(0), fedfdp(), steps=1, max_grad_norm=0.5)
    from gnomon.accounting import Shuffled

    object.__setattr__(trainer.plan, "sampler", Shuffled(2))
    with pytest.raises(SettingError, match="Poisson"):
        Client("c", trainer, data(0), fedavg(), steps=1)


def test_public_records_that_a_client_holds_are_refused():
    server, clients = federation(fedpcdp(PUBLIC, 5), clients=1, rounds=1)
    x, y = data(0)
    clients["c0"].data = (torch.cat([x, PUBLIC[0][:1]]), torch.cat([y, PUBLIC[1][:1]]))
    with pytest.raises(ValueError, match="public records occur"):
        clients["c0"].train(server.begin()["c0"])
    assert clients["c0"].trainer.account.steps == 0


def test_public_records_that_a_client_holds_are_refused_also_where_they_only_serve_uploads():
    strategy = pfa(PUBLIC, rank=4)
    server, clients = federation(strategy)
    own = clients["c0"]
    x, y = data(0)
    own.data = (torch.cat([x, PUBLIC[0][:1]]), torch.cat([y, PUBLIC[1][:1]]))
    ended = run(server, clients, 1)[0]
    assert list(ended.refused) == ["c0"]
    assert own.trainer.account.steps == 0, "nothing was spent"


def test_seeded_and_missing_noise_give_no_guarantee():
    config = dataclasses.replace(SMALL, rounds=1)
    federation = build(config)
    assert all(isinstance(client.trainer.noise, SecureNoise) for client in federation.clients.values())
    run_round(federation.server, InProcess(federation.clients), quietly)
    assert not federated_statement(config, federation.server, False, 0).guarantee
    for member in federation.server.members.values():
        member.account = Account(member.account.sampler, 0.0)
        member.account.charge(2)
    silent = federated_statement(config, federation.server, True, 0)
    assert silent.epsilon == math.inf
    assert not silent.guarantee
