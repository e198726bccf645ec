"""Whatever a client sends, the round goes on, and the model moves no further than honest clients could move it."""

from __future__ import annotations

import math

import pytest
import torch

from gnomon.data import load
from gnomon.federated import Message, fedavg, fedfdp, fedlrs, fedpcdp, scaffold
from gnomon.federated.refusal import REASONS
from gnomon.federated.rounds import RoundFailed
from gnomon.federated.simulation.setup import build_client, build_server
from gnomon.federated.state import PersistentState
from gnomon.federated.validation import check_arrays
from gnomon.methods import pcdp
from gnomon.runs.federate_config import FederateConfig
from tests.federated.small import PUBLIC, federation, flat, run


def answers(strategy, rounds: int = 1):
    """A round that has begun, and everybody's honest answer."""
    server, clients = federation(strategy, rounds=3)
    run(server, clients, rounds - 1)
    messages = server.begin()
    return server, {name: clients[name].train(message) for name, message in messages.items()}


def spoil(message: Message, how) -> Message:
    return Message(
        message.round,
        {"change": {name: how(value.clone()) for name, value in message.arrays["change"].items()}}
        | {group: arrays for group, arrays in message.arrays.items() if group != "change"},
        dict(message.numbers),
    )


def first_entry(value: torch.Tensor, number: float) -> torch.Tensor:
    value.view(-1)[0] = number
    return value


SPOILED = {
    "nan": (lambda p: spoil(p, lambda v: first_entry(v, math.nan)), "finite"),
    "infinity": (lambda p: spoil(p, lambda v: first_entry(v, math.inf)), "finite"),
    "huge": (lambda p: spoil(p, lambda v: v * 1e6), "norm"),
    "overflowing": (lambda p: spoil(p, lambda v: torch.full_like(v, 3e38)), "norm"),
    "another shape": (lambda p: spoil(p, lambda v: v.reshape(-1)[:1]), "shape"),
    "another format": (lambda p: spoil(p, lambda v: v.to(torch.bfloat16)), "dtype"),
    "whole numbers": (lambda p: spoil(p, lambda v: v.to(torch.int32)), "dtype"),
    "too many bytes": (lambda p: spoil(p, lambda v: v.repeat(1000, *[1] * v.dim())), "bytes"),
    "a wider format": (lambda p: spoil(p, lambda v: v.double()), "bytes"),
    "nothing": (lambda p: Message(p.round, {}, dict(p.numbers)), "contents"),
    "other names": (lambda p: Message(p.round, {"change": {"x": torch.zeros(1)}}, dict(p.numbers)), "contents"),
    "other numbers": (lambda p: Message(p.round, p.arrays, {"ticket": p.numbers["ticket"], "weight": 9e9}), "bytes"),
    "another ticket": (lambda p: Message(p.round, p.arrays, {"ticket": 1.0}), "round"),
    "an old round": (lambda p: Message(p.round - 1, p.arrays, dict(p.numbers)), "round"),
}


@pytest.mark.parametrize("fault", SPOILED)
@pytest.mark.parametrize("make", [fedavg, lambda: fedpcdp(PUBLIC, 5)], ids=["fedavg", "fedpcdp"])
def test_a_spoiled_answer_is_refused_by_name_and_the_others_count(make, fault):
    how, reason = SPOILED[fault]
    server, sent = answers(make())
    before = flat(server.weights)
    for name, message in sent.items():
        server.accept(name, how(message) if name == "c1" else message)
    ended = server.end()
    assert ended.accepted == ["c0", "c2"]
    assert ended.refused["c1"].startswith(REASONS[reason])
    honest, others = answers(make())
    for name in ("c0", "c2"):
        honest.accept(name, others[name])
    honest.end()
    torch.testing.assert_close(flat(server.weights), flat(honest.weights))
    assert not torch.equal(flat(server.weights), before)


def test_an_answer_from_an_earlier_round_is_refused_when_it_is_sent_again():
    server, clients = federation(fedavg(), rounds=2)
    old = {name: clients[name].train(message) for name, message in server.begin().items()}
    for name, message in old.items():
        server.accept(name, message)
    server.end()
    server.begin()
    server.accept("c0", old["c0"])
    server.accept("c0", Message(2, old["c0"].arrays, dict(old["c0"].numbers)))  # dressed up as the new round's
    assert server.end().refused["c0"].startswith(REASONS["round"])


def test_a_second_answer_a_stranger_s_and_a_missing_one():
    server, sent = answers(fedavg())
    server.accept("c0", sent["c0"])
    server.accept("c0", sent["c0"])
    server.accept("mallory", sent["c1"])
    ended = server.end()
    assert ended.accepted == ["c0"]
    assert set(ended.refused) == {"c0, again", "mallory", "c1", "c2"}
    assert ended.refused["c2"] == REASONS["absent"]


def test_the_longest_accepted_change_moves_the_model_by_at_most_an_honest_client_s_share():
    server, sent = answers(fedavg())
    most = server.members["c1"].reach.change(server.dims)
    change = sent["c1"].arrays["change"]
    size = sum(v.numel() for v in change.values())
    pushed = {name: torch.full_like(v, 0.999 * most / size**0.5) for name, v in change.items()}
    before = flat(server.weights)
    server.accept("c1", Message(1, {"change": pushed}, sent["c1"].numbers))
    for name in ("c0", "c2"):
        server.accept(name, sent[name])
    ended = server.end()
    assert ended.accepted == ["c0", "c1", "c2"]
    honest = sum(float(flat(sent[name].arrays["change"]).norm()) for name in ("c0", "c2"))
    assert float((flat(server.weights) - before).norm()) <= (most + honest) / 3 * 1.001


@pytest.mark.parametrize("make", [fedavg, fedlrs, scaffold, fedfdp, lambda: fedpcdp(PUBLIC, 5)])
def test_no_honest_answer_is_refused(make):
    """Noise included: fifteen rounds of three clients, with noise that is large against the bound."""
    server, clients = federation(make(), rounds=15, sigma=4.0, steps=1)
    assert all(len(ended.accepted) == 3 for ended in run(server, clients))


def test_one_client_shifts_the_others_steps_by_at_most_its_share_of_an_honest_step():
    """It sends the same vector round after round; also across a save and a restart of the server."""
    server, clients = federation(scaffold(), clients=5, rounds=12, steps=1)
    step, pushed = server.members["c1"].reach.step(server.dims), []
    for number in range(12):
        for name, message in server.begin().items():
            reply = clients[name].train(message)
            if name == "c1":
                size = sum(v.numel() for v in reply.arrays["control"].values())
                push = step / size**0.5
                reply.arrays["control"] = {n: torch.full_like(v, push) for n, v in reply.arrays["control"].items()}
            server.accept(name, reply)
        assert "c1" in server.end().accepted
        if number == 5:
            server.persistent = PersistentState.from_bytes(server.persistent.to_bytes())
        honest = [clients[name].persistent.arrays["control"] for name in clients if name != "c1"]
        sent = server.persistent.arrays["control"]
        pushed.append(float(flat({n: sent[n] - sum(own[n] for own in honest) / 5 for n in sent}).norm()))
    assert max(pushed) <= step / 5 * 1.001
    assert pushed[-1] == pytest.approx(step / 5, rel=1e-3), "it had pushed as far as it may"


def test_scaffold_hears_clients_whose_steps_differ_in_length():
    """A client with few records has much noise in its step, and so in the mean that everybody gets."""
    source = load("digits")
    config = FederateConfig(
        method="scaffold", data="digits", clients=2, rounds=4, noise_multiplier=6.0, sample_rate=0.1,
        insecure_noise_seed=0,
    )  # fmt: skip
    parts = {"small": source.train[:40], "big": source.train[40:]}
    server = build_server(config, source, source.train[:0], {name: len(part) for name, part in parts.items()})
    reach = {name: member.reach.step(server.dims) for name, member in server.members.items()}
    assert reach["small"] > 10 * reach["big"]
    made = {
        name: build_client(config, name, part, server.members[name], server.strategy, source)
        for name, part in parts.items()
    }
    assert all(ended.accepted == ["big", "small"] for ended in run(server, made))


def test_an_answer_that_was_lost_does_not_part_a_client_s_control_variate_from_the_server_s():
    server, clients = federation(scaffold(), rounds=4)
    for number in range(4):
        for name, message in server.begin().items():
            reply = clients[name].train(message)
            if (number, name) != (1, "c0"):
                server.accept(name, reply)
        server.end()
    kept = server.persistent.arrays["controls"]
    for name, client in clients.items():
        for parameter, value in client.persistent.arrays["control"].items():
            assert torch.equal(value, kept[f"{name}/{parameter}"])


def test_a_large_seed_travels_whole():
    local = pcdp(PUBLIC, rank=3, batch=6)  # which six is drawn with the round's public coin
    server, clients = federation(fedpcdp(PUBLIC, 3, local=local), rounds=1, seed=10**12 + 1)
    assert len(run(server, clients)[0].accepted) == 3


@pytest.mark.parametrize("positions", [[0, 0, 1], [2, 1, 0], [-1, 0, 1], [0, 1, 10**6]])
def test_sparse_positions_must_rise_and_lie_inside(positions):
    server, sent = answers(fedlrs())
    where = sent["c1"].arrays["change"]["positions"]
    where[: len(positions)] = torch.tensor(positions, dtype=torch.int32)
    if positions[-1] == 10**6:
        where.copy_(torch.arange(len(where), dtype=torch.int32) + 10**6)
    server.accept("c1", sent["c1"])
    assert server.end().refused["c1"].startswith(REASONS["positions"])


def test_a_noisy_loss_that_is_out_of_all_proportion_is_cut():
    server, sent = answers(fedfdp())
    sent["c1"].numbers["loss"] = 1e30
    for name, message in sent.items():
        server.accept(name, message)
    server.end()
    assert server.persistent.numbers["loss"] <= 10.0


def test_a_client_that_breaks_is_named_and_what_it_said_stays_with_it():
    server, clients = federation(fedavg(), rounds=1)

    def broken(message):
        raise KeyError("record of Mr Smith")

    clients["c2"].train = broken
    ended = run(server, clients)[0]
    assert ended.accepted == ["c0", "c1"]
    assert ended.refused == {"c2": REASONS["error"]}


def test_a_round_without_any_answer_says_why_and_leaves_the_model_alone():
    server, clients = federation(fedavg(), rounds=1)
    before = flat(server.weights)
    for client in clients.values():
        client.train = lambda message: (_ for _ in ()).throw(MemoryError())
    with pytest.raises(RoundFailed, match="nobody") as raised:
        run(server, clients)
    assert isinstance(raised.value.__cause__, MemoryError)
    assert torch.equal(flat(server.weights), before)


def test_a_client_refuses_weights_that_do_not_fit_without_spending():
    server, clients = federation(fedavg(), rounds=1)
    client = clients["c0"]
    good = server.begin()["c0"]
    for spoilt, match in [
        ({"x": torch.zeros(1)}, "other arrays"),
        ({name: value[:1] for name, value in good.arrays["weights"].items()}, "shape"),
        ({name: value * math.nan for name, value in good.arrays["weights"].items()}, "finite"),
    ]:
        with pytest.raises(ValueError, match=match):
            client.train(Message(1, {"weights": spoilt}, good.numbers))
    assert client.trainer.account.steps == 0
    client.train(good)
    with pytest.raises(ValueError, match="another round"):
        client.train(good)


@pytest.mark.parametrize("place", ["the ledger", "the records"])
def test_a_client_that_could_not_begin_a_round_takes_part_in_the_next(place, monkeypatch):
    server, clients = federation(fedavg(), clients=1, rounds=3)
    client = clients["c0"]

    def locked(*given):
        raise OSError("database is locked")

    with monkeypatch.context() as broken:
        if place == "the ledger":
            broken.setattr(client.trainer.ledger_session, "start", locked)
        else:
            broken.setattr("gnomon.data.Loader.take", locked)
            client.trainer.admission.check = lambda *given, **named: None
        with pytest.raises(OSError, match="locked"):
            client.train(server.begin()["c0"])
        server.end()
    for _ in range(2):
        server.accept("c0", client.train(server.begin()["c0"]))
        assert server.end().accepted == ["c0"]
    assert client.trainer.account.steps == 4


def test_a_client_whose_batches_have_ended_says_that_its_budget_is_spent():
    server, clients = federation(fedavg(), clients=1, rounds=1)
    clients["c0"].trainer.sampling.pending = 1  # drawn, and never given back
    with pytest.raises(ValueError, match=REASONS["budget"]):
        clients["c0"].train(server.begin()["c0"])


def test_arrays_that_came_over_a_network_go_where_the_model_is(monkeypatch):
    """They come on the CPU. No graphics card is needed to see that they are moved."""
    meta = torch.device("meta")
    like = {"w": torch.zeros(2, device=meta)}
    assert check_arrays("change", {"w": torch.ones(2)}, like)["w"].device == meta
    with pytest.raises(ValueError, match="finite"):
        check_arrays("change", {"w": torch.full((2,), math.nan)}, like)
    assert fedlrs().upload.like(like, None)["positions"].device == meta
    asked = []
    monkeypatch.setattr(PersistentState, "move", lambda self, device: asked.append(device))
    monkeypatch.setattr(Message, "to", lambda self, device: asked.append(device) or Message(9))
    server, clients = federation(scaffold(), clients=1, rounds=1)
    server.model.to(meta)
    message = server.begin()["c0"]
    assert asked == [meta]
    clients["c0"].trainer.model.to(meta)
    with pytest.raises(ValueError, match=REASONS["contents"]):  # it looked at the message that was moved
        clients["c0"].train(message)
    assert asked == [meta] * 3
