"""A real federation on this machine: one SuperLink, three SuperNodes, TLS, and keys that are checked."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from gnomon.accounting import epsilon
from gnomon.data import load
from gnomon.federated.deployment.flower import REFUSED
from gnomon.federated.deployment.supernode import PROGRAMS
from gnomon.federated.refusal import REASONS
from gnomon.ledger import Ledger
from tests.federated.deployment import Deployment

STRANGER = Path(__file__).parent / "stranger"
SITES = ("north", "south", "west")
RECORDS = 400


STEPS = 3


class Place:
    """The files of a server and its sites in one folder."""

    def __init__(self, folder, rounds: int) -> None:
        source = load("digits")
        _store(folder / "server.npz", source.train[:100], source.test)
        for number, name in enumerate(SITES):
            start = 100 + 300 * number
            _store(folder / f"{name}.npz", source.train[start : start + 300], source.test)
        self.folder, self.out, self.agreed = folder, folder / "out", folder / "federation.yaml"
        self.agreed.write_text(
            f"method: fedpcdp\ndata: npz:{folder / 'server.npz'}\nrounds: {rounds}\nsteps-per-round: {STEPS}\n"
            f"batch-size: 40\nnoise-multiplier: 2\nrank: 20\nthreads: 1\n"
            f"sites: {{north: {RECORDS}, south: {RECORDS}, west: {RECORDS}}}\n"
        )

    def node(self, name: str) -> dict[str, str]:
        return {
            "name": name, "data": f"npz:{self.folder / name}.npz", "state": str(self.folder / f"{name}-state"),
            "federation": str(self.agreed), "ledger": str(self.folder / f"{name}.sqlite"), "data-id": "patients",
        }  # fmt: skip

    def rows(self, name: str = "metrics.jsonl") -> list[dict]:
        path = self.out / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def paid(self, name: str) -> list[int]:
        """The steps of each run in a site's ledger."""
        ledger = Ledger(self.folder / f"{name}.sqlite")
        found = [run.reserved for run in ledger.state().runs.values()]
        ledger.verify()
        ledger.close()
        return found


@pytest.mark.slow
def test_three_sites_train_over_tls_and_a_stranger_stays_outside(tmp_path):
    place = Place(tmp_path, rounds=2)
    deployment = Deployment(tmp_path)
    try:
        deployment.superlink()
        for name in SITES:
            deployment.supernode(name, place.node(name))
        stranger = place.node("north") | {"state": str(tmp_path / "stranger-state")}
        deployment.supernode("stranger", stranger, register=False)
        deployment.run(federation=str(place.agreed), out=str(place.out), deadline=300.0)
        deployment.wait_for((place.out / "statement.json").exists, 400, "the run")
        deployment.wait_for(lambda: deployment.status() == "finished:completed", 60, "the end of the run")
        loot = tmp_path / "loot.json"
        deployment.run(STRANGER, loot=str(loot))
        deployment.wait_for(loot.exists, 200, "the stranger's app")
    finally:
        deployment.stop_all()

    assert json.loads(loot.read_text()) == [[REFUSED]], "sites run the installed Gnomon, whatever is sent"
    rows = place.rows()
    assert [row["accepted"] for row in rows] == [3, 3]
    assert rows[0]["bytes/down"] > rows[1]["bytes/down"] > rows[1]["bytes/up"], "public records travelled once"
    assert not any(name.startswith("unprotected/") for row in rows for name in row), "the server learns no such thing"
    statement = json.loads((place.out / "statement.json").read_text())
    spent = epsilon(noise_multiplier=2.0, sample_rate=40 / RECORDS, steps=6, delta=1e-5)
    assert statement["epsilon"] == pytest.approx(float(spent))
    assert statement["guarantee"]
    for name in SITES:
        state = tmp_path / f"{name}-state"
        assert place.paid(name) == [6]
        assert f"{float(spent):.3f}" in (state / "statement.txt").read_text()
    kept = [path.name for path in (tmp_path / "stranger-state").iterdir()]
    assert kept == [PROGRAMS], "an unregistered key got no work"


@pytest.mark.skipif(not os.environ.get("GNOMON_SOAK"), reason="a long form, minutes: set GNOMON_SOAK=1")
def test_a_killed_node_is_named_and_a_killed_server_goes_on_with_the_sites_ledgers(tmp_path):
    place = Place(tmp_path, rounds=4)
    deployment = Deployment(tmp_path)
    settings = {"federation": str(place.agreed), "out": str(place.out), "patience": 200.0}
    settings["deadline"] = max(15.0, 8 * deployment.pace())  # a round waits this long for a dead node
    try:
        deployment.superlink()
        for name in SITES:
            deployment.supernode(name, place.node(name))
        deployment.run(**settings)
        deployment.wait_for(lambda: len(place.rows()) >= 1, 200, "the first round")
        deployment.stop("west", signal.SIGKILL)
        deployment.wait_for(lambda: place.rows("refused.jsonl"), 200, "a round without west")
        deployment.wait_for(lambda: place.rows()[-1]["accepted"] == 2, 200, "a round of the others")
        os.kill(deployment.server_app(), signal.SIGKILL)
        reached, paid = place.rows(), {name: place.paid(name) for name in SITES}
        deployment.supernode_again("west", place.node("west"))  # with its old key
        deployment.run(**settings)
        deployment.wait_for((place.out / "statement.json").exists, 400, "the run")
        deployment.wait_for(lambda: deployment.status() == "finished:completed", 200, "the end of the run")
    finally:
        deployment.stop_all()

    assert {(row["client"], row["why"]) for row in place.rows("refused.jsonl")[:1]} == {("west", REASONS["absent"])}
    rows = place.rows()
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1)), "no round twice, none left out"
    assert rows[: len(reached)] == reached
    assert place.paid("west") > paid["west"], "the node that came back takes part again"
    for name in SITES:
        (after,) = place.paid(name)
        assert after % STEPS == 0
        assert sum(paid[name]) <= after <= 4 * STEPS, "one run of the ledger, never above its plan"
    answered = sum(row["accepted"] for row in rows) * STEPS
    assert sum(place.paid(name)[0] for name in SITES) >= answered, "every answer that counted was paid for"
    statement = json.loads((place.out / "statement.json").read_text())
    assert statement["steps"] >= max(place.paid(name)[0] for name in SITES), "the server never counts less than a site"


def _store(path, records, test):
    arrays = {"x_train": records.inputs, "y_train": records.targets, "x_test": test.inputs, "y_test": test.targets}
    np.savez(path, classes=10, **{name: value.numpy() for name, value in arrays.items()})
