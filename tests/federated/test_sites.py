"""What a site tells a server that it does not trust, and what it pays when things go wrong; no network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnomon.data import Records, load
from gnomon.federated.setup import build_server
from gnomon.federated.sites import Site, answer
from gnomon.federated_config import FederateConfig
from gnomon.ledger import Ledger
from tests.federated.test_flower import store

SIZE = 300
CONFIG = FederateConfig(
    method="fedavg", noise_multiplier=2.0, rounds=2, steps_per_round=2, rank=10.0, clients=2, accountant="rdp"
)
SITES = {"north": Site(SIZE), "south": Site(SIZE)}


@pytest.fixture(scope="module")
def source():
    return load("digits")


@pytest.fixture
def own(source, tmp_path) -> str:
    """The file of a site with the records 100 to 399."""
    return store(tmp_path / "north.npz", source.train[100 : 100 + SIZE], source.test)


def runs(path) -> list[int]:
    """The steps of each run in a ledger."""
    ledger = Ledger(path)
    found = [run.reserved for run in ledger.state().runs.values()]
    ledger.shut()
    return found


def datasets(path) -> list[str]:
    ledger = Ledger(path)
    found = list(ledger.state().datasets)
    ledger.shut()
    return found


# -- public records that somebody else chose -------------------------------------------------------


def public(source, *also: int) -> Records:
    """Sixty public records, and some that may be a site's own."""
    chosen = torch.tensor([*range(60), *also])
    return Records(source.train.inputs[chosen], source.train.targets[chosen])


@pytest.mark.parametrize("method", ["pfa", "fedpdp", "fedpcdp"])
def test_no_server_can_ask_whether_a_record_is_here_by_calling_it_public(method, source, own, tmp_path):
    config = replace(CONFIG, method=method)
    for case, also in {"none": (50,), "one": (150,), "all": tuple(range(100, 400))}.items():
        server = build_server(config, source, public(source, *also), dict.fromkeys(SITES, SIZE))
        parcel = server.begin()["north"]
        reply = answer(config, SITES, "north", own, tmp_path / case, parcel, ledger=tmp_path / "l")
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
    """Weights for which the check breaks on one record would tell whether it is here, without any noise."""
    seen = []
    monkeypatch.setattr("gnomon.training.trainer.refuse_dependence", lambda *given: seen.append(given[3]))
    server = build_server(CONFIG, source, source.train[:0], dict.fromkeys(SITES, SIZE))
    answer(CONFIG, SITES, "north", own, tmp_path / "state", server.begin()["north"], ledger=tmp_path / "l")
    here = set(map(tuple, source.train.inputs[100:400].flatten(1).tolist()))
    assert seen
    assert not any(tuple(row) in here for inputs in seen for row in inputs.flatten(1).tolist())
