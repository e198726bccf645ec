"""A real federation on this machine: one SuperLink, three SuperNodes, TLS, and keys that are checked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gnomon.accounting import epsilon
from gnomon.data import load
from tests.federated.deployment import Deployment

SITES = ("north", "south", "west")
RECORDS = 400


@pytest.mark.slow
def test_three_sites_train_over_tls_and_a_stranger_stays_outside(tmp_path):
    source = load("digits")
    _store(tmp_path / "server.npz", source.train[:100], source.test)
    for number, name in enumerate((*SITES, "stranger")):
        start = 100 + 300 * number
        _store(tmp_path / f"{name}.npz", source.train[start : start + 300], source.test)
    agreed = tmp_path / "federation.yaml"
    agreed.write_text(
        f"method: fedpcdp\ndata: npz:{tmp_path / 'server.npz'}\nrounds: 2\nsteps-per-round: 3\nbatch-size: 40\n"
        f"noise-multiplier: 2\nrank: 20\nsites: {{north: {RECORDS}, south: {RECORDS}, west: {RECORDS}}}\n"
    )

    def node(name: str) -> dict[str, str]:
        state = tmp_path / f"{name}-state"
        return {"name": name, "data": f"npz:{tmp_path / name}.npz", "state": str(state), "federation": str(agreed)}

    deployment = Deployment(tmp_path)
    try:
        deployment.superlink()
        for name in SITES:
            deployment.supernode(name, node(name))
        deployment.supernode("stranger", node("north") | {"state": str(tmp_path / "stranger-state")}, register=False)
        deployment.run(federation=str(agreed), out=str(tmp_path / "out"), deadline=300.0)
        deployment.wait_for(lambda: deployment.status().startswith("finished"), 400, "the run")
        assert deployment.status() == "finished:completed", deployment.logs()
    finally:
        deployment.stop_all()

    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["accepted"] for row in rows] == [3, 3]
    assert rows[0]["bytes/down"] > rows[1]["bytes/down"] > rows[1]["bytes/up"], "public records travelled once"
    assert not any(name.startswith("unprotected/") for row in rows for name in row), "the server learns no such thing"
    statement = json.loads((tmp_path / "out" / "statement.json").read_text())
    spent = epsilon(noise_multiplier=2.0, sample_rate=40 / RECORDS, steps=6, delta=1e-5)
    assert statement["epsilon"] == pytest.approx(float(spent))
    assert statement["guarantee"]
    for name in SITES:
        state = tmp_path / f"{name}-state"
        assert json.loads((state / "spent.json").read_text())["steps"] == 6
        assert f"{float(spent):.3f}" in (state / "statement.txt").read_text()
    assert not (tmp_path / "stranger-state").exists(), "an unregistered key got no work"


def _store(path, records, test):
    arrays = {"x_train": records.inputs, "y_train": records.targets, "x_test": test.inputs, "y_test": test.targets}
    np.savez(path, classes=10, **{name: value.numpy() for name, value in arrays.items()})
