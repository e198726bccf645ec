"""The audit attacks the private step of a federated client."""

from __future__ import annotations

import torch

from gnomon.audit import audit
from gnomon.data import load
from gnomon.federated.builders import build_client, build_server
from gnomon.runs.federate_config import FederateConfig


def test_the_step_of_a_client_is_audited():
    config = FederateConfig(method="fedavg", data="digits", noise_multiplier=3.0, rounds=4, clients=1)
    source = load("digits")
    server = build_server(config, source, source.train[:0], {"a": len(source.train)})
    client = build_client(config, "a", source.train, server.profiles["a"], server.strategy, source)
    some = torch.arange(60)
    data = source.train.inputs[some], source.train.targets[some]
    report = audit(client.trainer, data, releases=20, canaries=4, draws=100_000)
    assert report.ok, report.table()
    assert report.epsilon > 0.8 * report.claim.epsilon
