"""What a site reveals to an untrusted server, and what it pays after failures, without a network."""

from __future__ import annotations

import functools
import math
import shutil
from dataclasses import replace

import pytest
import torch

from gnomon.accounting import Account, FullBatch
from gnomon.cli.main import main
from gnomon.data import Records, load
from gnomon.errors import DataError, SettingError
from gnomon.federated import Message, Refused, ServerState
from gnomon.federated.builders import build_server
from gnomon.federated.deployment.site import Site, SiteFolder, check_site
from gnomon.federated.deployment.site import run_site_round as nameless_answer
from gnomon.federated.deployment.upload_log import UploadLog
from gnomon.federated.refusal import REASONS
from gnomon.federated.rounds import refusal_for
from gnomon.ledger import Budget, Ledger, LedgerError
from gnomon.runs.federate_config import FederateConfig
from tests.federated.small import store

SIZE = 300
CONFIG = FederateConfig(
    method="fedavg", noise_multiplier=2.0, rounds=2, steps_per_round=2, rank=10.0, clients=2, accountant="rdp"
)
SITES = {"north": Site(SIZE), "south": Site(SIZE)}
answer = functools.partial(nameless_answer, dataset="patients")


@pytest.fixture(scope="module")
def source():
    return load("digits")


@pytest.fixture
def own(source, tmp_path) -> str:
    """Return the file of a site with the records 100 to 399."""
    return store(tmp_path / "north.npz", source.train[100 : 100 + SIZE], source.test)


def runs(path) -> list[int]:
    """Return the reserved steps of each run in a ledger."""
    ledger = Ledger(path)
    found = [run.reserved for run in ledger.state().runs.values()]
    ledger.close()
    return found


def datasets(path) -> list[str]:
    ledger = Ledger(path)
    found = list(ledger.state().datasets)
    ledger.close()
    return found


# -- public records that the server chose -----------------------------------------------------------


def public(source, *also: int) -> Records:
    """Return sixty public records, and some that may be among a site's own."""
    chosen = torch.tensor([*range(60), *also])
    return Records(source.train.inputs[chosen], source.train.targets[chosen])


@pytest.mark.parametrize("method", ["pfa", "fedpdp", "fedpcdp"])
def test_no_server_can_ask_whether_a_record_is_here_by_calling_it_public(method, source, own, tmp_path):
    config = replace(CONFIG, method=method)
    for case, also in {"none": (50,), "one": (150,), "all": tuple(range(100, 400))}.items():
        server = build_server(config, source, public(source, *also), dict.fromkeys(SITES, SIZE))
        message = server.begin()["north"]
        reply = answer(config, SITES, "north", own, tmp_path / case, message, ledger=tmp_path / "l")
        server.accept("north", reply)
        assert server.end().accepted == ["north"]
        assert set(reply.numbers) == {"ticket"}
        assert set(reply.arrays) == {"change"}
    assert runs(tmp_path / "l") == [2, 2, 2]
    assert len(datasets(tmp_path / "l")) == 1, "the ledger knows the site's records, whatever was left out"
    left_out = [
        '"unprotected/left out": 300' in line
        for line in (tmp_path / "all" / "unprotected.jsonl").read_text().split("\n")[:-1]
    ]
    assert left_out == [True, True], "for the site's own eyes"


def test_a_site_checks_the_model_on_records_that_nobody_has(source, own, tmp_path, monkeypatch):
    """Weights for which the check fails on one record would reveal, without noise, whether the site has it."""
    seen = []
    monkeypatch.setattr("gnomon.training.admission.refuse_dependence", lambda *given, **_: seen.append(given[3]))
    server = build_server(CONFIG, source, source.train[:0], dict.fromkeys(SITES, SIZE))
    answer(CONFIG, SITES, "north", own, tmp_path / "state", server.begin()["north"], ledger=tmp_path / "l")
    here = set(map(tuple, source.train.inputs[100:400].flatten(1).tolist()))
    assert seen
    assert not any(tuple(row) in here for inputs in seen for row in inputs.flatten(1).tolist())


# -- what is paid ----------------------------------------------------------------------------------


class Pair:
    """A server and the site north, with the site's folder and ledger in one place."""

    def __init__(self, source, own: str, place) -> None:
        self.config = replace(CONFIG, rounds=4)
        self.own, self.place = own, place
        self.server = build_server(self.config, source, source.train[:0], dict.fromkeys(SITES, SIZE))

    def round(self, *, state: str = "state", spoiled: bool = False, told: dict[str, float] | None = None) -> list[str]:
        """Run a round and return the accepted sites."""
        message = self.server.begin()["north"]
        message.numbers |= told or {}
        try:
            reply = self.answer(message, state)
        except Exception as error:
            self.server.refuse("north", refusal_for(error).reason)
            self.server.end()
            raise
        if spoiled:
            reply.arrays["change"] = {name: 1e9 * value for name, value in reply.arrays["change"].items()}
        self.server.accept("north", reply)
        return self.server.end().accepted

    def answer(self, message: Message, state: str = "state") -> Message:
        return answer(self.config, SITES, "north", self.own, self.place / state, message, ledger=self.place / "l")

    def more(self, rounds: int) -> None:
        """Change the agreed number of rounds on both sides."""
        self.config, self.server.rounds = replace(self.config, rounds=rounds), rounds

    @property
    def paid(self) -> list[int]:
        return runs(self.place / "l")


@pytest.fixture
def pair(source, own, tmp_path) -> Pair:
    (tmp_path / "site").mkdir()
    return Pair(source, own, tmp_path / "site")


def test_a_restored_backup_answers_no_round_until_the_site_pays_for_what_it_has_forgotten(pair, tmp_path):
    pair.round()
    shutil.copytree(pair.place, tmp_path / "backup")
    assert pair.round(spoiled=True) == []
    shutil.rmtree(pair.place)
    shutil.copytree(tmp_path / "backup", pair.place)
    with pytest.raises(LedgerError, match="has received 1 upload of this site") as error:
        pair.round()
    assert pair.paid == [2]
    command = str(error.value).partition("gnomon ")[2].partition(". If")[0].split()
    assert command[:2] == ["ledger", "pay"]
    assert main(command) == 0
    assert pair.round() == ["north"]
    assert pair.paid == [6], "three rounds were released, one of which the server had and refused"


@pytest.mark.parametrize("claim", [1.0, 4.0, 1e300, math.inf])
def test_no_claim_of_a_server_costs_a_site_anything(claim, pair):
    for paid in ([0], [0]):
        with pytest.raises(LedgerError, match="nothing was paid"):
            pair.round(told={"uploads_received": claim})
        assert pair.paid == paid
    assert pair.round() == ["north"], "as soon as the server is right"
    assert pair.paid == [2]


def test_a_site_that_lost_folder_and_ledger_answers_no_round_until_it_has_paid_again(pair, tmp_path, capsys):
    pair.round()
    shutil.rmtree(pair.place)
    pair.place.mkdir()
    with pytest.raises(LedgerError) as error:
        pair.round()
    run = str(error.value).partition("ledger pay ")[2].split()[0]
    assert main(["ledger", "pay", run, "--steps", "99", "--ledger", str(pair.place / "l")]) == 2
    assert "steps = 99 is invalid; expected at most 8" in capsys.readouterr().err
    assert main(["ledger", "pay", run, "--steps", "2", "--ledger", str(pair.place / "l")]) == 0
    assert pair.round() == ["north"]
    assert pair.paid == [4]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
@pytest.mark.parametrize("size", [1e30, 3e38, -2e4])
def test_weights_above_the_agreed_size_are_refused_and_cost_nothing(method, size, source, pair):
    pair.config = replace(pair.config, method=method)
    pair.server = build_server(pair.config, source, source.train[:0], dict.fromkeys(SITES, SIZE))
    message = pair.server.begin()["north"]
    for group in message.arrays:
        for name, value in message.arrays[group].items():
            large = value.clone()
            large.view(-1)[-1] = size
            arrays = message.arrays | {group: message.arrays[group] | {name: large}}
            with pytest.raises(Refused, match="weights above the agreed maximum") as refused:
                pair.answer(replace(message, arrays=arrays))
            assert refusal_for(refused.value).reason == "size"
    assert pair.paid == []
    pair.server.end()
    assert [pair.round() for _ in range(3)] == [["north"]] * 3, "and leave nothing behind"


def test_the_agreed_size_of_weights_is_a_setting(pair):
    pair.config = replace(pair.config, max_weight=1e-6)
    with pytest.raises(Refused, match="above 1e-06"):
        pair.round()
    for size in (0.0, -1.0, math.nan):
        pair.config = replace(pair.config, max_weight=size)
        with pytest.raises(SettingError, match="max-weight"):
            pair.round()


def test_a_round_beyond_the_agreed_ones_is_refused_and_does_not_keep_the_others_out(pair):
    message = pair.server.begin()["north"]
    with pytest.raises(Refused, match="round 1000000 of 4"):
        pair.answer(replace(message, round=10**6))
    assert runs(pair.place / "l") == []
    pair.server.accept("north", pair.answer(message))
    assert pair.server.end().accepted == ["north"]


# -- whose budget it is ----------------------------------------------------------------------------


def test_a_site_without_a_name_for_its_records_spends_nothing_and_says_what_to_do(source, own, tmp_path):
    server = build_server(CONFIG, source, source.train[:0], dict.fromkeys(SITES, SIZE))
    message = server.begin()["north"]
    for name in (None, "", "  "):
        with pytest.raises(SettingError, match="--data-id patients"):
            nameless_answer(CONFIG, SITES, "north", own, tmp_path / "s", message, ledger=tmp_path / "l", dataset=name)
    assert not (tmp_path / "l").exists()
    assert not (tmp_path / "s").exists()
    agreed = tmp_path / "federation.yaml"
    agreed.write_text("method: fedavg\nnoise-multiplier: 2\nsites: {north: 300, south: 300}\n")
    with pytest.raises(SettingError, match="--data-id patients"):
        check_site(agreed, "north", own, None)
    check_site(agreed, "north", own, "patients")


@pytest.mark.parametrize("shared", [True, False])
def test_no_record_decides_whether_a_site_says_that_its_budget_is_spent(shared, source, own, tmp_path):
    """Another data set of the ledger, whose budget is spent, has one record in common with the site's, or none."""
    ledger = Ledger(tmp_path / "l")
    others = ledger.identify(source.train[399 if shared else 400 : 500])
    run = ledger.open_run(ledger.dataset(others, "others"), Account(FullBatch(), 1.0), 16)
    ledger.reserve(run)
    ledger.set_budget(others.id, Budget(0.1, 1e-5))
    server = build_server(CONFIG, source, source.train[:0], dict.fromkeys(SITES, SIZE))
    for name in ("patients", others.id):  # also a name that equals the identifier of records
        message = server.begin()["north"]
        reply = answer(CONFIG, SITES, "north", own, tmp_path / name, message, ledger=tmp_path / "l", dataset=name)
        server.accept("north", reply)
        assert server.end().accepted == ["north"]
        server.state = ServerState()
    assert [one for one in ledger.state().datasets if not one.startswith("name:")] == [others.id]
    ledger.close()


def test_a_run_that_was_entered_by_content_is_not_taken_up_under_a_name(pair):
    ledger = Ledger(pair.place / "l")
    pair.round()
    (run,) = ledger.state().runs.values()
    (pair.place / "other").mkdir()
    content = ledger.open_run(
        ledger.dataset(ledger.identify(load("digits").train[100:400])), run.account(), 8, label=run.label
    )
    ledger.close()
    with pytest.raises(LedgerError, match=f"run {content} .* new --state folder"):
        pair.round()


def test_a_server_that_was_killed_knows_whose_answers_it_had(pair, tmp_path):
    path = tmp_path / "answered.jsonl"
    exchange = UploadLog(lambda messages: [("north", Message(1)), ("south", Refused("error"))], path)
    next(exchange({}))  # the server is killed after this
    with path.open("a") as file:
        file.write('{"round": 2, "cli')
    list(exchange({}))
    exchange.restore_counts(pair.server)
    assert pair.server.begin()["north"].numbers["uploads_received"] == 2
    assert pair.server._open["south"].numbers["uploads_received"] == 0


def test_a_site_goes_on_when_all_agree_on_more_rounds_and_not_when_the_server_alone_wants_them(pair):
    for rounds in (2, 3):
        pair.more(rounds)
        while pair.server.round < rounds:
            assert pair.round() == ["north"]
    assert pair.paid == [6]
    pair.server.rounds = 4
    with pytest.raises(Refused, match="budget"):
        pair.round()


def test_a_site_is_told_of_a_ledger_that_begins_and_its_statements_say_so(pair, capsys):
    for told in (True, False):
        pair.round()
        assert (f"new ledger {pair.place / 'l'}: earlier runs" in capsys.readouterr().err) == told
        (statement,) = pair.place.rglob("statement.txt")
        assert "CAVEAT: new ledger l: earlier runs are not recorded in it." in statement.read_text()


def test_a_site_that_lost_its_folder_finds_its_run_in_the_ledger(pair):
    pair.round()
    pair.round()
    assert pair.round(state="new") == ["north"]
    assert pair.round(state="new") == ["north"]
    assert pair.paid == [8]
    pair.server.rounds = 5
    with pytest.raises(Refused, match="budget"):
        pair.round(state="another")


def test_a_server_cannot_have_a_site_enter_one_run_after_the_other(pair):
    """The plan of the first run limits the site."""
    for number in range(4):
        pair.round(told={"federation": float(number)})
    assert pair.paid == [8]
    pair.server.rounds = 5
    with pytest.raises(Refused, match="budget"):
        pair.round(told={"federation": 9.0})


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, 0.5, 1e300])
def test_a_federation_s_number_that_is_none_is_not_used(number, pair):
    assert pair.round(told={"federation": number}) == ["north"]


def test_a_new_folder_with_other_settings_enters_a_run_of_its_own(pair):
    pair.round()
    pair.config = replace(pair.config, noise_multiplier=3.0)
    with pytest.raises(LedgerError, match="gnomon ledger pay") as error:  # for uploads that the new run has not paid
        pair.round(state="new")
    assert main(str(error.value).partition("gnomon ")[2].partition(". If")[0].split()) == 0
    pair.round(state="new")
    assert pair.paid == [2, 4], "too much, never too little"


def test_a_message_that_does_not_say_how_many_uploads_came_is_refused(pair):
    message = pair.server.begin()["north"]
    del message.numbers["uploads_received"]
    with pytest.raises(Refused, match=REASONS["contents"]):
        pair.answer(message)


def test_the_state_of_an_earlier_version_is_not_taken_for_a_new_folder(tmp_path):
    folder = SiteFolder(tmp_path / "state")
    (folder.path / "memory.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"memory\.safetensors is the state of an earlier version"):
        folder.client_state()
