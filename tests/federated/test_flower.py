"""Messages as Flower records, a site's state folder, and delivery through Flower's grid, without a network."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from gnomon.accounting import digits, epsilon
from gnomon.cli.main import main
from gnomon.data import load
from gnomon.errors import SettingError
from gnomon.federated import Message, Refused
from gnomon.federated.builders import build_server
from gnomon.federated.deployment import flower
from gnomon.federated.deployment.site import Site, SiteFolder, read_federation
from gnomon.federated.deployment.site import run_site_round as nameless_answer
from gnomon.federated.deployment.upload_log import UploadLog
from gnomon.federated.refusal import REASONS
from gnomon.federated.rounds import refusal_for
from gnomon.ledger import Budget, Ledger, LedgerError, OverBudget
from gnomon.release import SecureNoise
from gnomon.runs.federate_config import FederateConfig
from tests.federated.small import store

CONFIG = FederateConfig(method="fedpcdp", noise_multiplier=2.0, rounds=2, steps_per_round=2, rank=10.0, clients=2)
SITES = {"north": Site(300), "south": Site(300)}
answer = functools.partial(nameless_answer, dataset="patients")


def reserved(path) -> int:
    """Return the reserved steps of a ledger, as another process sees them."""
    ledger = Ledger(path)
    found = sum(run.reserved for run in ledger.state().runs.values())
    ledger.close()
    return found


@pytest.fixture
def federation(tmp_path):
    source = load("digits")
    data = {
        name: store(tmp_path / f"{name}.npz", source.train[100 + 300 * i : 400 + 300 * i], source.test)
        for i, name in enumerate(SITES)
    }
    return build_server(CONFIG, source, source.train[:60], dict.fromkeys(SITES, 300)), data


def of_another(message: Message) -> Message:
    """Return the same message, as the server of another federation would send it."""
    return replace(message, numbers=message.numbers | {"federation": message.numbers["federation"] + 1})


def test_a_message_survives_the_conversion_bit_for_bit():
    change = {"0.w": torch.randn(3, 2), "b": torch.tensor([1.5]), "t": torch.tensor(2.5), "v": torch.randn(4, 3).T}
    message = Message(7, {"change": change, "x": {"i": torch.arange(3)}}, {"ticket": float(2**47 + 1), "loss": 0.1})
    back = flower.to_message(flower.to_records(message))
    assert (back.round, back.numbers, back.bytes) == (7, message.numbers, message.bytes)
    for group, arrays in message.arrays.items():
        for name, value in arrays.items():
            assert torch.equal(back.arrays[group][name], value)
            assert back.arrays[group][name].shape == value.shape
            assert back.arrays[group][name].dtype == value.dtype


def npy(header: bytes, content: bytes = b"") -> bytes:
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


BAD_ARRAYS = [
    b"PK\x03\x04 and then nothing",
    npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }", bytes(8)),
    npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", bytes(8)),
    npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
    npy(b"{'descr': '<f4', 'shape': (("),
    npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
]


def bad_array(content: bytes) -> RecordDict:
    array = Array("float32", (2,), "numpy.ndarray", content)
    return RecordDict({"numbers": ConfigRecord({"round": 1}), "arrays.change": ArrayRecord({"w": array})})


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (RecordDict(), "contents"),
        (RecordDict({"numbers": ConfigRecord({"loss": 1.0})}), "contents"),
        (RecordDict({"numbers": ConfigRecord({"round": "one"})}), "contents"),
        (RecordDict({"numbers": ConfigRecord({"round": math.nan})}), "contents"),
        (
            RecordDict(
                {
                    "numbers": ConfigRecord({"round": 1}),
                    "arrays.change": ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"not an array")}),
                }
            ),
            "contents",
        ),
        *[(bad_array(content), "contents") for content in BAD_ARRAYS],
    ],
)
def test_records_that_are_no_message_are_refused(records, reason):
    with pytest.raises(Refused) as raised:
        flower.to_message(records)
    assert raised.value.reason == reason


def test_a_message_that_is_too_large_is_not_even_read(monkeypatch):
    monkeypatch.setattr(flower, "MAX_BYTES", 100)
    with pytest.raises(Refused, match="bytes"):
        flower.to_message(flower.to_records(Message(1, {"change": {"w": torch.zeros(1000)}})))


# -- a site's folder -------------------------------------------------------------------------------


def test_a_site_goes_on_where_its_last_process_stopped(federation, tmp_path):
    server, data = federation
    ledgers = {name: tmp_path / f"{name}.sqlite" for name in SITES}
    state = {name: tmp_path / f"{name}-state" for name in SITES}
    for expected in (2, 4):
        for name, message in server.begin().items():
            server.accept(name, answer(CONFIG, SITES, name, data[name], state[name], message, ledger=ledgers[name]))
        ended = server.end()
        assert ended.accepted == ["north", "south"], ended.refused
        assert reserved(ledgers["north"]) == expected
    server.rounds = 3
    with pytest.raises(Refused, match="budget"):
        answer(CONFIG, SITES, "north", data["north"], state["north"], server.begin()["north"], ledger=ledgers["north"])


class Killed(SecureNoise):
    """Noise that kills its process at the given draw, after it wrote down what the ledger had reserved by then."""

    def __init__(self, place, draws: int) -> None:
        super().__init__()
        self.place, self.draws = place, draws

    def normal(self, count):
        self.draws -= 1
        if self.draws < 0:
            (self.place / "known").write_text(str(reserved(self.place / "ledger.sqlite")))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().normal(count)


@pytest.mark.parametrize("draws", [0, 1, 3])
def test_a_round_that_is_killed_was_paid_for_before_its_first_noise_and_stays_paid(
    draws, federation, tmp_path, monkeypatch
):
    server, data = federation
    message = server.begin()["north"]
    place = {"ledger": tmp_path / "ledger.sqlite"}
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr("gnomon.federated.builders.federation.SecureNoise", lambda: Killed(tmp_path, draws))
            answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", message, **place)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / "known").read_text() == "2", "both steps of the round were on disk before the first draw"
    answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", message, **place)
    assert reserved(tmp_path / "ledger.sqlite") == 4, "the killed round and the one that was repeated"
    with pytest.raises(Refused, match="budget"):
        answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", replace(message, round=9), **place)


def test_a_kill_between_the_folder_and_the_ledger_leaves_one_run(federation, tmp_path):
    server, data = federation
    SiteFolder(tmp_path / "state").run_label("fedpcdp, north")  # the process is killed after this
    answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", server.begin()["north"], ledger=tmp_path / "l")
    assert reserved(tmp_path / "l") == 2


def test_a_site_without_a_ledger_gives_no_answer(federation, tmp_path, monkeypatch):
    server, data = federation
    message = server.begin()["north"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GNOMON_LEDGER", "none")
    for place in (None, Path("none")):
        with pytest.raises(SettingError, match="this command needs a ledger"):
            answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", message, ledger=place)
    assert not (tmp_path / "none").exists()


def test_a_second_federation_on_the_same_records_reports_the_sum(federation, tmp_path, own_ledger, capsys):
    server, data = federation
    message = server.begin()["north"]
    for run, asks in (("first", message), ("second", of_another(message))):
        answer(CONFIG, SITES, "north", data["north"], tmp_path / run, asks)
    alone = epsilon(noise_multiplier=2.0, sample_rate=64 / 300, steps=2, delta=1e-5)
    both = epsilon(noise_multiplier=2.0, sample_rate=64 / 300, steps=4, delta=1e-5)
    text = (tmp_path / "second" / "statement.txt").read_text()
    assert f"epsilon = {digits(alone)}, delta = 1e-05\n" in text
    assert f"all runs on the data  epsilon = {digits(both)}" in text
    assert main(["ledger", "show"]) == 0
    shown = capsys.readouterr().out
    assert f"epsilon = {digits(both)}" in shown
    assert shown.count("fedpcdp, north") >= 2


def test_a_site_whose_budget_is_used_up_refuses_with_that_reason(federation, tmp_path, own_ledger):
    server, data = federation
    message = server.begin()["north"]
    answer(CONFIG, SITES, "north", data["north"], tmp_path / "first", message)
    ledger = Ledger(own_ledger)
    (dataset,) = ledger.state().datasets
    ledger.set_budget(dataset, Budget(1.0, 1e-5))
    before = ledger.head()
    with pytest.raises(OverBudget) as raised:
        answer(CONFIG, SITES, "north", data["north"], tmp_path / "second", of_another(message))
    assert refusal_for(raised.value).reason == "budget"
    assert ledger.head() == before, "nothing was spent"
    ledger.close()


def test_a_lost_or_exchanged_ledger_is_refused(federation, tmp_path):
    server, data = federation
    messages = server.begin()
    answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", messages["north"], ledger=tmp_path / "a")
    with pytest.raises(LedgerError):
        answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", messages["north"], ledger=tmp_path / "b")
    assert reserved(tmp_path / "b") == 0


def test_rounds_that_a_restored_backup_has_forgotten_are_paid_for_again(federation, tmp_path):
    server, data = federation
    server.rounds = 3
    config, place = replace(CONFIG, rounds=3), tmp_path / "site"

    def take_part() -> None:
        message = server.begin()["north"]
        server.accept(
            "north", answer(config, SITES, "north", data["north"], place / "state", message, ledger=place / "l")
        )
        assert server.end().accepted == ["north"]

    place.mkdir()
    take_part()
    shutil.copytree(place, tmp_path / "backup")
    take_part()
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    with pytest.raises(LedgerError, match="gnomon ledger pay") as error:
        take_part()
    assert reserved(place / "l") == 2, "on the server's word alone nothing is paid"
    assert main(str(error.value).partition("gnomon ")[2].partition(". If")[0].split()) == 0
    server.end()
    server.round -= 1
    take_part()
    assert reserved(place / "l") == 6, "three rounds of two steps, one of them from what the server knows"
    assert "(1 run, 6 steps reserved" in (place / "state" / "statement.txt").read_text()


def test_a_site_that_lost_its_folder_gets_the_public_records_again(federation, tmp_path):
    server, data = federation
    server.rounds = 3
    config, ledger = replace(CONFIG, rounds=3), tmp_path / "l"
    for state, accepted in (("a", True), ("b", False), ("b", True)):
        message = server.begin()["north"]
        try:
            reply = answer(config, SITES, "north", data["north"], tmp_path / state, message, ledger=ledger)
            server.accept("north", reply)
        except Refused as refused:
            server.refuse("north", refused.reason)
        assert (server.end().accepted == ["north"]) == accepted


def test_a_site_s_own_labels_do_not_decide_the_number_of_classes(federation, tmp_path):
    server, _ = federation
    source = load("digits")
    few = source.train[:400][source.train.targets[:400] < 9]
    np.savez(tmp_path / "few.npz", x_train=few.inputs, y_train=few.targets, x_test=few.inputs, y_test=few.targets)
    message, data = server.begin()["north"], f"npz:{tmp_path / 'few.npz'}"
    message.arrays.pop("public")  # some public records are among the site's
    plain = replace(CONFIG, method="fedavg")
    with pytest.raises(SettingError, match="classes"):
        answer(plain, SITES, "north", data, tmp_path / "state", message, ledger=tmp_path / "l")
    reply = answer(replace(plain, classes=10), SITES, "north", data, tmp_path / "state", message, ledger=tmp_path / "l")
    assert reply.arrays["change"]["1.weight"].shape == (10, 64)
    assert len((tmp_path / "state" / "unprotected.jsonl").read_text().splitlines()) == 2, "for the site's own eyes"


def test_records_that_come_between_two_rounds_are_counted_too(federation, tmp_path, own_ledger):
    server, data = federation
    source = load("digits")
    answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", server.begin()["north"])
    server.end()
    grown = store(tmp_path / "grown.npz", source.train[100:1000], source.test)
    answer(CONFIG, SITES, "north", grown, tmp_path / "state", server.begin()["north"])
    new = store(tmp_path / "new.npz", source.train[700:1000], source.test)
    server.end()
    server.round = 0
    answer(CONFIG, SITES, "north", new, tmp_path / "another", of_another(server.begin()["north"]))
    assert "(2 runs, 6 steps reserved" in (tmp_path / "another" / "statement.txt").read_text()


def test_whole_clients_are_entered_with_what_a_record_pays(federation, tmp_path):
    config = replace(CONFIG, unit="client", noise_multiplier=8.0)
    _, data = federation
    source = load("digits")
    server = build_server(config, source, source.train[:60], dict.fromkeys(SITES, 300))
    for _ in range(2):
        answer(
            config, SITES, "north", data["north"], tmp_path / "state", server.begin()["north"], ledger=tmp_path / "l"
        )
        server.end()
    ledger = Ledger(tmp_path / "l")
    (run,) = ledger.state().runs.values()
    ledger.close()
    assert (run.reserved, run.account().noise_multiplier, run.account().sampler.name) == (2, 4.0, "full batch")
    text = (tmp_path / "state" / "statement.txt").read_text()
    assert "NO GUARANTEE" in text, "at the site nothing protects a record: the server does"
    assert "(1 run, 2 steps reserved" in text


def test_a_folder_of_other_settings_or_one_in_use_is_refused(federation, tmp_path):
    server, data = federation
    message = server.begin()["north"]
    folder = SiteFolder(tmp_path / "state")
    with folder.lock(), pytest.raises(Refused):
        answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", message)
    answer(CONFIG, SITES, "north", data["north"], tmp_path / "state", message)
    other = replace(CONFIG, noise_multiplier=1.0)
    with pytest.raises(LedgerError, match="other settings"):
        answer(other, SITES, "north", data["north"], tmp_path / "state", message)


def test_the_app_answers_with_a_constant_reason_and_notes_the_error_at_the_site(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(flower, "FlowerMessage", lambda content, reply_to: made.append(content))
    node = {"name": "north", "data": "npz:nowhere.npz", "state": str(tmp_path / "state"), "federation": "nowhere.yaml"}
    message = SimpleNamespace(content=flower.to_records(Message(1)))
    flower._train(message, SimpleNamespace(node_config=node))
    assert dict(made[0].config_records["refused"]) == {"reason": "error"}
    assert "nowhere.yaml" not in str(made[0])
    assert "nowhere.yaml" in (tmp_path / "state" / "errors.log").read_text()


# -- delivery --------------------------------------------------------------------------------------


class Reply:
    def __init__(self, node: int, content: RecordDict | None, query: str = "") -> None:
        self.metadata = SimpleNamespace(src_node_id=node, reply_to_message_id=query)
        self._content = content

    def has_error(self) -> bool:
        return self._content is None

    @property
    def content(self) -> RecordDict:
        assert self._content is not None
        return self._content


class Asked:
    """The part of a fake grid that asks nodes for their names. `says` is a node's reply; None is an error."""

    def __init__(self) -> None:
        self.queries: dict[str, int] = {}
        self.count = 0

    def says(self, node: int) -> str | None:
        raise NotImplementedError

    def silent(self, node: int) -> bool:
        return False

    def push_messages(self, messages):
        sent = {str(self.count + number): message["dst_node_id"] for number, message in enumerate(messages)}
        assert all(message["message_type"] == "query" for message in messages)
        self.count += len(sent)
        self.queries |= sent
        return list(sent)

    def pull_messages(self, queries):
        for query in queries:
            if query in self.queries and not self.silent(self.queries[query]):
                node = self.queries.pop(query)
                name = self.says(node)
                yield Reply(node, name and RecordDict({"about": ConfigRecord({"name": name})}), query)


class Grid(Asked):
    """A fake grid of four nodes: one is honest, one fails, one hangs, and one gives the first one's name."""

    def __init__(self) -> None:
        super().__init__()
        self.names = {11: "north", 22: "south", 33: "west", 44: "north"}

    def get_node_ids(self):
        return list(self.names)

    def says(self, node: int) -> str | None:
        return self.names[node]

    def send_and_receive(self, messages, timeout):
        for message in messages:
            node = message["dst_node_id"]
            if node == 11:
                yield Reply(node, message["content"])
            elif node == 22:
                yield Reply(node, None)


def test_a_site_that_hangs_is_absent_one_that_breaks_is_named_and_a_name_cannot_be_taken(monkeypatch):
    monkeypatch.setattr(flower, "FlowerMessage", lambda **fields: fields)
    sites = {name: Site(10) for name in ("north", "south", "west")}
    exchange = flower.FlowerExchange(Grid(), sites, deadline=5.0)
    answers = dict(exchange({name: Message(1, {}, {"ticket": 5.0}) for name in sites}))
    assert answers["north"].numbers == {"ticket": 5.0}
    assert str(answers["south"]) == REASONS["error"]
    assert "west" not in answers
    assert exchange._directory.nodes == {"north": 11, "south": 22, "west": 33}
    pinned = flower.FlowerExchange(Grid(), {"north": Site(10, node=44)}, deadline=5.0)
    list(pinned({"north": Message(1)}))
    assert pinned._directory.nodes == {"north": 44}


def test_a_node_whose_first_answer_failed_is_asked_for_its_name_again(monkeypatch):
    monkeypatch.setattr(flower, "FlowerMessage", lambda **fields: fields)
    monkeypatch.setattr(flower, "POLL_SECONDS", 0.01)
    grid, sites = Grid(), {"north": Site(10)}
    grid.names = {11: "north"}
    exchange = flower.FlowerExchange(grid, sites, deadline=5.0, patience=0.0)
    with monkeypatch.context() as broken:
        broken.setattr(Grid, "says", lambda self, node: None)
        assert dict(exchange({"north": Message(1)})) == {}
    assert list(dict(exchange({"north": Message(2)}))) == ["north"]


def test_a_node_that_fails_often_is_asked_until_the_patience_ends(monkeypatch):
    monkeypatch.setattr(flower, "FlowerMessage", lambda **fields: fields)
    monkeypatch.setattr(flower, "POLL_SECONDS", 0.001)
    grid = Grid()
    grid.names = {11: "north"}
    monkeypatch.setattr(grid, "says", lambda node: "north" if grid.count > 6 else None)
    exchange = flower.FlowerExchange(grid, {"north": Site(10)}, deadline=5.0, patience=60.0)
    assert list(dict(exchange({"north": Message(1)}))) == ["north"]
    assert grid.count == 7


def test_a_node_that_never_says_its_name_is_asked_in_three_rounds_and_holds_up_no_other(monkeypatch):
    monkeypatch.setattr(flower, "FlowerMessage", lambda **fields: fields)
    monkeypatch.setattr(flower, "POLL_SECONDS", 0.01)
    grid = Grid()
    grid.names = {99: "nobody"}
    monkeypatch.setattr(grid, "silent", lambda node: node == 99)
    looks = []

    def there():
        looks.append(1)
        if len(looks) == 5:
            grid.names[11] = "north"  # comes online while the exchange waits for the other node
        return list(grid.names)

    monkeypatch.setattr(grid, "get_node_ids", there)
    sites = {"north": Site(10), "south": Site(10)}
    exchange = flower.FlowerExchange(grid, sites, deadline=5.0, patience=60.0)
    assert list(dict(exchange({"north": Message(1)}))) == ["north"]
    assert len(looks) == 5, "nobody waited any longer"
    assert grid.count == 2, "a node that is slow is not asked again at once"
    exchange._missed.add("south")  # the silent node may be this site
    monkeypatch.setattr(flower, "LATER_PATIENCE", 0.0)
    monkeypatch.setattr(flower, "QUERY_TIMEOUT", 0.0)
    for number in range(2, 7):
        assert list(dict(exchange({"north": Message(number), "south": Message(number)}))) == ["north"]
    assert grid.count == 4, "in two rounds more, and then no more"


def test_only_the_first_round_is_patient(monkeypatch):
    monkeypatch.setattr(flower, "FlowerMessage", lambda **fields: fields)
    monkeypatch.setattr(flower, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(flower, "LATER_PATIENCE", 0.05)
    grid = Grid()
    grid.names = {11: "north"}
    exchange = flower.FlowerExchange(grid, {"north": Site(10)}, deadline=5.0, patience=600.0)
    assert list(dict(exchange({"north": Message(1)}))) == ["north"]
    grid.names = {}
    assert dict(exchange({"north": Message(2)})) == {}, "and this took no ten minutes"


# -- the agreed file -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("method: fedavg", "sites"),
        ("sites: []", "sites"),
        ("sites: {north: -3}", r"sites\.north"),
        ("sites: {north: {records: 3, colour: red}}", r"sites\.north"),
        ("sites: {north: 3}\nnoise-multiplyer: 3", "noise-multiplier"),
        ("sites: {north: 3}\ninsecure-noise-seed: 3", "insecure-noise-seed"),
        ("sites: {north: 3}\ninsecure_noise-seed: 3", "insecure-noise-seed"),
        ("sites: {north: 3}\nholdout: 0.25", "holdout"),
        ("sites: {north: 3}\nprivate-records: 50", "private-records"),
        ("sites: {north: 3}\npublic-records: 50", "public-records"),
        ("sites: {north: 3}\npartition: shards:2", "partition"),
        ("sites: {north: 3}\nclients: 2", "clients"),
    ],
)
def test_a_wrong_federation_file_is_named(text, named, tmp_path):
    path = tmp_path / "federation.yaml"
    path.write_text(text)
    with pytest.raises(SettingError, match=named):
        read_federation(path)


def test_the_example_that_ships_can_be_read():
    from pathlib import Path

    config, sites = read_federation(Path(__file__).parents[2] / "deploy" / "federation.yaml")
    assert config.clients == len(sites) == 3


def test_no_telemetry():
    import os

    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"


class Loopback(Asked):
    """A fake grid that calls the sites' code directly. With `kill`, it interrupts the second round."""

    def __init__(self, nodes: dict[int, dict[str, str]], kill: bool) -> None:
        super().__init__()
        self.nodes, self.kill = nodes, kill

    def get_node_ids(self):
        return list(self.nodes)

    def says(self, node: int) -> str | None:
        return self.nodes[node]["name"]

    def send_and_receive(self, messages, timeout):
        for message in messages:
            node = message["dst_node_id"]
            asked = SimpleNamespace(content=message["content"])
            reply = flower._train(asked, SimpleNamespace(node_config=self.nodes[node]))
            if self.kill and flower.to_message(message["content"]).round == 2:
                raise KeyboardInterrupt
            yield Reply(node, reply["content"])


def test_a_server_that_was_killed_goes_on_at_the_last_round(tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "FlowerMessage", lambda **fields: fields)
    source = load("digits")
    data = store(tmp_path / "north.npz", source.train[100:400], source.test)
    agreed = tmp_path / "federation.yaml"
    own = store(tmp_path / "server.npz", source.train[:60], source.test)
    agreed.write_text(
        f"method: fedpcdp\ndata: {own}\nrounds: 3\nsteps-per-round: 1\nnoise-multiplier: 2\nrank: 10\n"
        "sites: {north: 300}\n"
    )
    node = {"name": "north", "data": data, "state": str(tmp_path / "state"), "federation": str(agreed)}
    node |= {"ledger": str(tmp_path / "ledger.sqlite"), "data-id": "patients"}
    with pytest.raises(KeyboardInterrupt):
        flower.run_server(agreed, tmp_path / "out", Loopback({5: node}, kill=True), 5.0)
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 1
    text = agreed.read_text()
    agreed.write_text(text.replace("noise-multiplier: 2", "noise-multiplier: 8"))
    with pytest.raises(SettingError, match="round 1 cost north"):
        flower.run_server(agreed, tmp_path / "out", Loopback({5: node}, kill=False), 5.0)
    agreed.write_text(text)
    flower.run_server(agreed, tmp_path / "out", Loopback({5: node}, kill=False), 5.0)
    refused = [json.loads(line) for line in (tmp_path / "out" / "refused.jsonl").read_text().splitlines()]
    assert refused == [{"round": 3, "client": "north", "why": REASONS["budget"]}], "it paid for round 2 twice"
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2]
    assert reserved(tmp_path / "ledger.sqlite") == 3
    assert UploadLog(exchange=lambda messages: (), path=tmp_path / "out" / "answered.jsonl").counts() == {"north": 2}
    assert json.loads((tmp_path / "out" / "statement.json").read_text())["steps"] == 4, "asked four times, at most"
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_federation_gets_more_rounds_when_it_has_had_them_all(tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "FlowerMessage", lambda **fields: fields)
    source = load("digits")
    data = store(tmp_path / "north.npz", source.train[100:400], source.test)
    agreed = tmp_path / "federation.yaml"
    text = f"method: fedavg\ndata: {data}\nsteps-per-round: 2\nnoise-multiplier: 2\nsites: {{north: 300}}\n"
    node = {"name": "north", "data": data, "state": str(tmp_path / "state"), "federation": str(agreed)}
    node |= {"ledger": str(tmp_path / "ledger.sqlite"), "data-id": "patients"}
    for rounds in (1, 3):
        agreed.write_text(text + f"rounds: {rounds}\n")
        flower.run_server(agreed, tmp_path / "out", Loopback({5: node}, kill=False), 5.0)
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["accepted"] for row in rows] == [1, 1, 1]
    assert "(1 run, 6 steps reserved" in (tmp_path / "state" / "statement.txt").read_text()
    assert "rounds: 3\n" in (tmp_path / "out" / "config.yaml").read_text(), "the statement vouches for this file"
