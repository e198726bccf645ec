"""The recipe `fed-best`: its settings, its accuracy, what each client pays, and where the feature map comes from."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import load_file

from gnomon.cli.main import main
from gnomon.data import fingerprints, load
from gnomon.errors import DataError, SettingError
from gnomon.federated import Message
from gnomon.federated.builders import (
    CHOSEN_BY_RECIPE,
    build_client,
    build_federation,
    build_server,
    prepare_federation,
)
from gnomon.federated.deployment.site import Site, read_federation, run_site_round
from gnomon.federated.simulation.run import federate, resume
from gnomon.ledger import Ledger
from gnomon.recipes import Budget
from gnomon.runs.federate_config import FederateConfig
from tests.federated.small import store

RECIPE = FederateConfig(recipe="fed-best", features="scaled", target_epsilon=3.0, clients=5)
"""A federation whose features are quick to compute."""


@pytest.fixture(scope="module")
def prepared():
    return prepare_federation(RECIPE, progress=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fed-best")
    return federate(dataclasses.replace(RECIPE, insecure_noise_seed=1), folder / "run", progress=False)


# -- the settings


def test_the_settings_follow_from_the_signal_that_all_clients_have_together(prepared):
    config, plan = prepared.config, prepared.plan
    sizes = [len(records) for records in prepared.train.values()]
    sigma = Budget(sum(sizes), 3.0, 1e-5).noise
    rho = sum(sizes) / (sigma * math.sqrt(5))
    assert plan.budget.signal == pytest.approx(rho)
    whitening, noise = plan.features.whitening, plan.budget.final_noise(start=True)
    assert config.whitening_directions == min(plan.budget.directions, whitening.rank)
    assert config.whitening_lam == pytest.approx(min(0.05, 1 / math.sqrt(rho)))
    assert config.rounds == max(10, math.ceil(noise * rho / whitening.effective_dimension))
    assert config.lr * config.rounds * config.max_grad_norm == pytest.approx(noise * rho, rel=1e-3)
    assert (config.method, config.sampler, config.steps_per_round) == ("fedavg", "full", 1)
    assert (config.client_weights, config.known_space, config.warm_start) == ("size", "softmax-head", "public")
    assert {"rho", "rounds", "lr", "client-weights"} <= {reason.setting for reason in plan.reasons}


def test_all_clients_together_add_as_much_noise_to_the_final_weights_as_a_central_run(prepared):
    """However unequal the clients are: the divisor of a client and its weight in the mean cancel."""
    skewed = prepare_federation(dataclasses.replace(RECIPE, partition="dirichlet:0.3"), progress=False)
    for parts in (prepared, skewed):
        server = build_federation(parts.config, prepared=parts).server
        config, total = parts.config, sum(profile.weight for profile in server.profiles.values())
        variance = sum(
            (profile.weight / total * profile.account.noise_multiplier / profile.bounds.expected_batch_size) ** 2
            for profile in server.profiles.values()
        )
        final = config.lr * config.max_grad_norm * math.sqrt(config.rounds * variance)
        assert final == pytest.approx(prepared.plan.budget.final_noise(start=True), rel=0.01)
    assert skewed.config == dataclasses.replace(prepared.config, partition="dirichlet:0.3")


def test_the_partition_makes_no_difference_to_a_round(prepared, tmp_path):
    weights = []
    for partition, clients, physical in (("iid", 1, 100), ("shards:2", 5, None), ("dirichlet:0.3", 5, 64)):
        config = dataclasses.replace(
            prepared.config, partition=partition, clients=clients, noise_multiplier=1e-6, target_epsilon=None, rounds=3,
            max_physical_batch_size=physical,
        )  # fmt: skip
        run = federate(config, tmp_path / f"{partition}-{clients}".replace(":", "-"), progress=False)
        weights.append(next(iter(run.federation.server.weights.values())))
    assert torch.allclose(weights[0], weights[1], atol=2e-3)
    assert torch.allclose(weights[0], weights[2], atol=2e-3)


def test_the_resolved_settings_repeat_the_run_without_the_recipe(prepared):
    again = prepare_federation(FederateConfig.from_dict(dataclasses.asdict(prepared.config)), progress=False)
    assert again.config == prepared.config
    assert again.plan is None
    assert again.features.feature_map.identity() == prepared.features.feature_map.identity()


def test_without_public_records_training_starts_from_zero_without_a_whitening(tmp_path):
    digits = load("digits")
    config = dataclasses.replace(RECIPE, data=store(tmp_path / "own.npz", digits.train, digits.test))
    parts = prepare_federation(config, progress=False)
    assert (parts.config.warm_start, parts.config.whitening_directions, parts.public_records) == ("none", None, 0)
    assert build_federation(parts.config, prepared=parts).server.selected(1)


@pytest.mark.parametrize("name", CHOSEN_BY_RECIPE)
def test_a_setting_that_the_recipe_chooses_is_refused(name):
    other = {
        "model": "mlp", "method": "scaffold", "clip": "automatic", "sampler": "full", "momentum": 0.5,
        "warm_start": "public", "loss": "huber", "client_weights": "size", "unit": "client",
        "known_space": "softmax-head",
    }.get(name, 0.125)  # fmt: skip
    with pytest.raises(SettingError, match=f"the recipe fed-best chooses {name.replace('_', '-')} itself"):
        prepare_federation(dataclasses.replace(RECIPE, **{name: other}), progress=False)


def test_a_flag_is_refused_also_with_a_default_value(tmp_path, capsys):
    flags = ["--simulate", "--recipe", "fed-best", "--method", "fedpcdp", "--out", str(tmp_path / "run")]
    assert main(["federate", *flags]) == 2
    assert "chooses method itself: remove method = fedpcdp" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"whitening_directions": 5}, "whitening-directions = 5 has no effect without a feature map"),
        ({"distortion": "strokes"}, "distortion = strokes has no effect"),
        ({"sampler": "full", "sample_rate": 0.5, "method": "fedavg"}, "no value with sampler full"),
        ({"known_space": "softmax-head", "method": "fedprox"}, "the method fedavg"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, named):
    with pytest.raises(SettingError, match=named):
        build_federation(FederateConfig(**settings))


# -- accuracy


def test_five_clients_learn_more_than_the_public_records_teach(finished):
    public = json.loads((finished.folder / "public-only.json").read_text())
    assert public["public records"] == 100
    assert finished.history[-1]["validation/accuracy"] > public["accuracy"] + 0.01
    assert all(row["accepted"] == 5 for row in finished.history)


@pytest.mark.data
@pytest.mark.slow
def test_two_thousand_images_over_five_clients(tmp_path):
    config = FederateConfig(
        data="mnist",
        recipe="fed-best",
        private_records=2000,
        clients=5,
        partition="shards:2",
        target_epsilon=3.0,
        insecure_noise_seed=1,
    )
    run = federate(config, tmp_path / "run", progress=False)
    public = json.loads((run.folder / "public-only.json").read_text())["accuracy"]
    assert run.history[-1]["validation/accuracy"] > public + 0.005


# -- privacy


def test_no_client_spends_more_than_the_target(tmp_path):
    config = dataclasses.replace(RECIPE, partition="dirichlet:0.3", target_epsilon=1.0)
    run = federate(config, tmp_path / "run", progress=False)
    assert run.statement.guarantee
    assert 0.98 < run.statement.epsilon <= 1.0
    for name, client in run.federation.clients.items():
        assert float(client.trainer.account.epsilon(1e-5)) <= 1.0
        assert client.trainer.account.steps == run.federation.server.profiles[name].account.steps
        assert client.trainer.mechanism.sampler.name == "full batch"


def test_the_statements_of_clients_and_run_name_the_feature_map(finished):
    named = finished.federation.feature_map.description
    assert "statistics of 100 public records" in named
    texts = [client.statement().text() for client in finished.federation.clients.values()]
    for text in (*texts, (finished.folder / "statement.txt").read_text()):
        flat = " ".join(text.split())
        assert named in flat
        assert "100 records were used as public" in flat
        assert "The model started from one trained without noise on the public records" in flat


def test_every_client_computes_its_features_with_the_same_map(finished):
    feature_map = finished.federation.feature_map
    for client in finished.federation.clients.values():
        assert client.data.raw.inputs.shape[1:] == (1, 8, 8)
        assert torch.allclose(client.data.inputs, feature_map(client.data.raw.inputs), atol=2e-3)


def test_the_map_depends_on_public_records_alone(prepared):
    """Two sites with the same public records build the same map, whatever their own records are."""
    fewer = prepare_federation(dataclasses.replace(prepared.config, private_records=500), progress=False)
    same = dataclasses.replace(prepared.config, partition="shards:2")
    assert prepare_federation(same, progress=False).features.feature_map.identity() == (
        prepared.features.feature_map.identity()
    )
    assert fewer.features.feature_map.origin.records == 100
    public = set(prepared.features.feature_map.origin.fingerprints)
    assert not any(public & set(fingerprints(records)) for records in prepared.train.values())


def test_no_feature_map_is_used_with_an_untrusted_server(prepared):
    server = build_federation(prepared.config, prepared=prepared).server
    name, data = next(iter(prepared.train.items()))
    with pytest.raises(SettingError, match="no feature map with an untrusted server"):
        build_client(
            prepared.config, name, data, server.profiles[name], server.strategy, prepared.source,
            untrusted_server=True, features=prepared.features,
        )  # fmt: skip


def test_a_public_record_of_the_map_is_refused_among_a_client_s_own(prepared):
    raw = prepared.features.public.raw
    train = prepared.train | {"client-0": raw[:50]}
    with pytest.raises(DataError, match=r"50 of 100 public records of .* are among the private records"):
        build_federation(prepared.config, prepared=dataclasses.replace(prepared, train=train))


def test_the_ledger_recognises_raw_records_behind_the_features(prepared, tmp_path, own_ledger):
    raw = FederateConfig(method="fedavg", noise_multiplier=20.0, rounds=1, private_records=1337, public_records=100)
    ledger = Ledger(own_ledger)
    first = federate(raw, tmp_path / "raw", progress=False, ledger=ledger)
    assert [len(client.data) for client in first.federation.clients.values()] == [
        len(records) for records in prepared.train.values()
    ]
    second = federate(prepared.config, tmp_path / "features", progress=False, ledger=ledger)
    assert second.total.runs == 2, "the same records, with and without features, are charged together"
    assert len(ledger.state().datasets) == 5
    ledger.close()


def test_a_run_with_features_resumes_by_its_raw_records(prepared, tmp_path):
    config = dataclasses.replace(prepared.config, noise_multiplier=20.0, target_epsilon=None, rounds=2)
    out = tmp_path / "run"
    federate(config, out, progress=False)
    (out / "config.yaml").write_text(dataclasses.replace(config, rounds=3).to_yaml())
    run = resume(out, progress=False)
    assert [row["round"] for row in run.history] == [1, 2, 3]
    (out / "config.yaml").write_text(dataclasses.replace(config, rounds=4, split_seed=1).to_yaml())
    with pytest.raises(SettingError, match="have changed since the first round"):
        resume(out, progress=False)


# -- the command and deployments


def test_the_command_prints_the_settings_and_writes_them_down(tmp_path, capsys):
    flags = [
        "--recipe",
        "fed-best",
        "--features",
        "scaled",
        "--target-epsilon",
        "2",
        "--clients",
        "3",
        "--ledger",
        "none",
    ]
    assert main(["federate", "--simulate", *flags, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "recipe fed-best, for epsilon = 2 at delta = 1e-05" in shown
    for text in ("sqrt(3 clients)", "known-space", "steps-per-round", "public alone", "Feature map: "):
        assert text in shown
    written = (tmp_path / "run" / "config.yaml").read_text()
    assert "recipe: null" in written
    assert "features: scaled" in written
    assert load_file(tmp_path / "run" / "model.safetensors")


@pytest.mark.parametrize("line", ["recipe: fed-best", "features: scaled", "whitening-directions: 20"])
def test_a_deployment_refuses_feature_maps_by_name(line, tmp_path):
    file = tmp_path / "federation.yaml"
    file.write_text(f"method: fedavg\nnoise-multiplier: 2\n{line}\nsites: {{north: 480, south: 520}}")
    name = line.partition(":")[0]
    with pytest.raises(SettingError, match=f"{name} = .* is for simulations only: .* takes none from a server"):
        read_federation(file)


def test_a_site_releases_full_batches(tmp_path, own_ledger):
    digits = load("digits")
    config = FederateConfig(method="fedavg", sampler="full", noise_multiplier=20.0, rounds=1, clients=2)
    server = build_server(config, digits, digits.train[:0], {"north": 300, "south": 300})
    data = store(tmp_path / "north.npz", digits.train[:300], digits.test)
    sites = {"north": Site(300), "south": Site(300)}
    message = server.begin()["north"]
    reply = run_site_round(config, sites, "north", data, tmp_path / "state", message, dataset="patients")
    assert isinstance(reply, Message)
    server.accept("north", reply)
    assert server.end().accepted == ["north"]
    assert "full batch" in (tmp_path / "state" / "statement.txt").read_text()
