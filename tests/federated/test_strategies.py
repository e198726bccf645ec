"""Each strategy does what its paper says, on top of the same private step."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch

from gnomon.clipping import Automatic
from gnomon.data import Records, load
from gnomon.errors import SettingError
from gnomon.federated import (
    STRATEGIES,
    AllParameters,
    BasisCache,
    Coordinates,
    LargestEntries,
    Proximal,
    Strategy,
    fedavg,
    fedfair,
    fedfdp,
    fedlrs,
    fedpcdp,
    fedpdp,
    fedprox,
    fingerprint,
    moon,
    pfa,
    qffl,
    round_basis,
    scaffold,
)
from gnomon.federated.builders import build_federation, build_strategy
from gnomon.federated.round_basis import TOLERANCE
from gnomon.federated.rounds import fairness_metrics
from gnomon.federated.strategies import LossRelease, Moon
from gnomon.federated.strategies.contrastive import ContrastiveUpdate, WithFeatures, contrastive_loss
from gnomon.methods import LocalSteps, pcdp
from gnomon.runs.federate_config import FederateConfig
from gnomon.subspaces import RandomProjection
from tests.federated.small import LOSS, PUBLIC, data, federation, flat, model, run

EVERY = [
    fedavg(),
    fedprox(0.1),
    scaffold(),
    moon(),
    fedlrs(),
    pfa(PUBLIC, 5),
    fedpdp(PUBLIC, 5),
    fedpcdp(PUBLIC, 5),
    fedfair(),
    fedfdp(),
    qffl(lr=1.0),
    fedpcdp(PUBLIC, 5, local=pcdp(PUBLIC, 5, clip=Automatic())),
    Strategy(
        "lsgd",
        dataclasses.replace(pcdp(PUBLIC, 5), update=LocalSteps(2, 0.1)),
        Coordinates(),
        components=(Proximal(0.1),),
    ),
    Strategy("random", dataclasses.replace(pcdp(PUBLIC), subspace=RandomProjection(6)), Coordinates()),
    Strategy("all", pcdp(PUBLIC, 4), Coordinates(), components=(Proximal(0.1), Moon(), LossRelease())),
]


@pytest.mark.parametrize("strategy", EVERY, ids=lambda s: s.describe()[:60])
def test_every_strategy_runs_its_rounds_and_every_honest_answer_counts(strategy):
    server, clients = federation(strategy, rounds=2)
    before = flat(server.weights)
    for ended in run(server, clients):
        assert ended.accepted == ["c0", "c1", "c2"], ended.refused
    assert torch.isfinite(flat(server.weights)).all()
    assert not torch.equal(flat(server.weights), before)
    assert all(client.trainer.account.steps == 4 for client in clients.values())


def test_the_table_names_every_strategy():
    assert {maker.__name__ for maker in STRATEGIES.values()} == {
        "fedavg", "fedprox", "scaffold", "moon", "fedlrs", "pfa", "fedpdp", "fedpcdp", "fedfair", "fedfdp", "qffl",
    }  # fmt: skip


def test_one_client_that_uploads_everything_is_a_trainer():
    server, clients = federation(fedavg(), clients=1)
    run(server, clients)
    _, alone = federation(fedavg(), clients=1)
    alone["c0"].trainer.fit(data(0))
    torch.testing.assert_close(flat(server.weights), flat(dict(alone["c0"].trainer.model.named_parameters())))


@pytest.mark.parametrize("make", [fedpcdp, fedpdp])
@pytest.mark.parametrize("per_tensor", [True, False])
def test_uploading_coordinates_loses_nothing_against_uploading_everything(make, per_tensor):
    moved = []
    for upload in (Coordinates(), AllParameters()):
        server, clients = federation(dataclasses.replace(make(PUBLIC, 5, per_tensor), upload=upload), rounds=3)
        start = flat(server.weights)
        run(server, clients)
        moved.append(flat(server.weights) - start)
    assert moved[0].norm() > 0.05
    assert (moved[0] - moved[1]).norm() < 1e-4 * moved[1].norm()


def test_pfa_uploads_only_the_part_inside_the_subspace():
    moved = []
    for upload in (Coordinates(), AllParameters()):
        server, clients = federation(dataclasses.replace(pfa(PUBLIC, 3, False), upload=upload), rounds=1)
        start = flat(server.weights)
        run(server, clients)
        moved.append(flat(server.weights) - start)
    assert moved[0].norm() < 0.9 * moved[1].norm()
    assert float(moved[0] @ moved[1]) == pytest.approx(float(moved[0] @ moved[0]), rel=1e-3), "an orthogonal projection"


def test_the_paper_s_network_uploads_490_numbers():
    from gnomon.models import paper_cnn

    network = paper_cnn((1, 28, 28), 10)
    public = (torch.randn(110, 1, 28, 28), torch.arange(110) % 10)
    basis = round_basis(fedpcdp(public).round_subspace, network, LOSS, 1, 1, seed=0)
    assert sum(like.numel() for like in Coordinates().template({}, basis).values()) == 490


def test_bytes_are_counted_both_ways_and_public_records_travel_once():
    whole = sum(p.numel() * 4 for p in model().parameters())
    server, clients = federation(fedpcdp(PUBLIC, 5), rounds=3)
    first, second, third = run(server, clients)
    assert first.bytes_down - second.bytes_down == 3 * (12 * 4 * 4 + 12 * 8)
    assert second.bytes_down == third.bytes_down == 3 * (whole + 16 * 4 + 6 * 8)
    assert first.bytes_up == 3 * (4 * (5 + 5 + 5 + 3) + 16)
    server, clients = federation(fedavg(), rounds=1)
    assert run(server, clients)[0].bytes_up == 3 * (whole + 16)


# -- terms after the noise -------------------------------------------------------------------------


def moved(strategy, steps: int = 2) -> torch.Tensor:
    """Return how far one client's seeded noise alone moves the model in one round."""
    server, clients = federation(strategy, clients=1, rounds=1, steps=steps, bound=1e-6, sigma=1e6, lr=0.5)
    start = flat(server.weights)
    run(server, clients)
    return flat(server.weights) - start


def test_fedprox_adds_its_pull_after_the_noise():
    """Of two steps with the same noise, the second one differs by lr * mu * (the first step)."""
    felt = moved(fedprox(0.2)) - moved(fedprox(0.0))
    torch.testing.assert_close(felt, -0.5 * 0.2 * moved(fedavg(), steps=1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("limit", "pulled"), [(1e-6, 1.0), (1e6, 0.0)])
def test_fedlrs_pulls_back_after_the_noise_once_an_update_is_longer_than_its_limit(limit, pulled):
    """With all entries uploaded, the second step is pulled back by lr * mu * (the first step), or not at all."""
    felt = moved(fedlrs(0.2, limit, 1.0)) - moved(fedlrs(0.0, limit, 1.0))
    torch.testing.assert_close(felt, -0.5 * 0.2 * pulled * moved(fedavg(), steps=1), rtol=1e-3, atol=1e-5)


def test_a_control_variate_is_the_mean_of_the_client_s_released_gradients():
    seen = []

    def spy() -> None:
        shift = flat(client.trainer.method.step.terms[0].vector)
        seen.append(flat({n: p.grad for n, p in client.trainer.model.named_parameters()}) - shift)
        plain()

    server, clients = federation(scaffold(), rounds=2, steps=3)
    run(server, clients, 1)
    client = clients["c1"]
    plain = client.trainer.optimizer.step
    client.trainer.optimizer.step = spy
    run(server, clients, 1)
    torch.testing.assert_close(flat(client.state.arrays["control"]), torch.stack(seen).mean(0), rtol=1e-3, atol=1e-5)
    means = torch.stack([flat(one.state.arrays["control"]) for one in clients.values()]).mean(0)
    torch.testing.assert_close(flat(server.state.arrays["control"]), means, rtol=1e-3, atol=1e-5)


def test_without_anybody_malicious_the_server_s_control_is_the_running_sum_of_all_gains_over_the_clients():
    """As in the paper, also with partial participation: no honest control variate is cut."""
    server, clients = federation(scaffold(), clients=4, rounds=6, participation=0.5)
    summed = torch.zeros_like(flat(server.weights))
    for _ in range(6):
        for name, message in server.begin().items():
            before = clients[name].state.arrays.get("control")
            reply = clients[name].train(message)
            gain = flat(reply.arrays["control"]) - (0 if before is None else flat(before))
            summed = summed + gain / 4
            server.accept(name, reply)
        server.end()
        torch.testing.assert_close(flat(server.state.arrays["control"]), summed, rtol=1e-4, atol=1e-6)


def test_scaffold_refuses_momentum():
    server, clients = federation(scaffold(), clients=1, rounds=1)
    clients["c0"].trainer.optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(RuntimeError, match="no upload was accepted") as raised:
        run(server, clients)
    assert isinstance(raised.value.__cause__, SettingError)


def test_fedlrs_uploads_its_largest_entries():
    change = {"a": torch.tensor([[0.1, -3.0], [0.2, 0.0]]), "b": torch.tensor([2.0])}
    upload = LargestEntries(0.4)
    back = upload.unpack(upload.pack(change, None), change, None)
    assert back["a"].tolist() == [[0.0, -3.0], [0.0, 0.0]]
    assert back["b"].tolist() == [2.0]


# -- terms inside the clip -------------------------------------------------------------------------


def test_moon_s_term_is_differentiated_with_each_record_s_loss():
    local, near, far = model(), model(), model()
    with torch.no_grad():
        for other in (near, far):
            for p in other.parameters():
                p.add_(torch.randn_like(p))
    x, y = data(1, 6)
    found = ContrastiveUpdate(2.0, 0.5, *map(WithFeatures, (local, near, far)))(local, LOSS, x, y).dense()
    for i in range(6):
        outputs, z = WithFeatures(local)(x[i : i + 1])
        known = [WithFeatures(other)(x[i : i + 1])[1].detach() for other in (near, far)]
        loss = (LOSS(outputs, y[i : i + 1]) + 2.0 * contrastive_loss(z, *known, 0.5)).sum()
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(local.parameters()))])
        torch.testing.assert_close(found[i], expected)


def test_moon_stays_within_the_clip_bound_however_strong_its_term_is():
    server, clients = federation(moon(weight=1e6), clients=1, rounds=2, sigma=0.0, bound=0.01, lr=1.0, steps=1)
    run(server, clients, 1)
    start = flat(server.weights)
    run(server, clients, 1)
    most = 0.01 * 30 / 15  # at most 30 records, divided by 15
    assert float((flat(server.weights) - start).norm()) <= most


# -- fairness --------------------------------------------------------------------------------------


def test_fedfdp_starts_like_fedavg_and_then_uses_the_noisy_mean_loss():
    server, clients = federation(fedfdp(0.5), rounds=2, bound=20.0)
    run(server, clients, 1)
    plain, others = federation(dataclasses.replace(fedfdp(0.0), name="same release"), rounds=2, bound=20.0)
    run(plain, others, 1)
    torch.testing.assert_close(flat(server.weights), flat(plain.weights))
    sent = server.state.numbers["loss"]
    run(server, clients, 1)
    assert clients["c0"].trainer.method.clip.reference == sent > 0
    run(plain, others, 1)
    assert not torch.allclose(flat(server.weights), flat(plain.weights))


@pytest.mark.parametrize("growth", [2.0])
def test_the_bound_of_released_losses_follows_them_within_limits(growth):
    server, clients = federation(
        Strategy("l", components=(LossRelease(growth=growth, min_bound=0.3, max_bound=0.9),)), rounds=3
    )
    run(server, clients)
    for client in clients.values():
        wanted = min(0.9, max(0.3, growth * client.state.numbers["own_loss"]))
        assert client.state.numbers["loss_bound"] == wanted


def test_q_ffl_moves_towards_the_client_with_the_larger_loss():
    from gnomon.federated import QFair

    changes = {"happy": {"w": torch.tensor([1.0, 0.0])}, "sad": {"w": torch.tensor([0.0, 1.0])}}
    moved = QFair(2.0, 1.0).aggregate(changes, {"happy": 1.0, "sad": 1.0}, {"happy": 0.5, "sad": 2.0}, {})["w"]
    assert moved[1] > 10 * moved[0] > 0
    assert float(moved.norm()) <= 1.0


def test_fedfair_gives_the_client_with_the_larger_loss_longer_steps():
    server, clients = federation(fedfair(1.0), rounds=2)
    run(server, clients, 1)
    for name, loss in (("c0", 3.0), ("c1", 0.0), ("c2", 1.0)):
        clients[name].state.numbers["own_loss"] = loss
    server.state.numbers["loss"] = 1.0
    paces = {}
    for name, client in clients.items():
        plain = client.trainer.optimizer.step

        def spy(name=name, client=client, plain=plain):
            paces[name] = client.trainer.optimizer.param_groups[0]["lr"] / 0.5
            plain()

        client.trainer.optimizer.step = spy
    run(server, clients, 1)
    assert paces == {"c0": 2.0, "c1": 0.0, "c2": 1.0}
    assert clients["c0"].trainer.optimizer.param_groups[0]["lr"] == 0.5, "only for that round"


def test_unfairness_is_the_weighted_variance_of_the_losses_on_held_out_records():
    server, _ = federation(fedavg(), clients=2)
    held = {"a": Records(*data(7, 30)), "b": Records(*data(8, 10))}
    with torch.no_grad():
        losses = {name: float(LOSS(server.model(part.inputs), part.targets).mean()) for name, part in held.items()}
    mean = 0.75 * losses["a"] + 0.25 * losses["b"]
    found = fairness_metrics(server, held)
    expected = 0.75 * (losses["a"] - mean) ** 2 + 0.25 * (losses["b"] - mean) ** 2
    assert expected > 1e-6
    assert found["validation/unfairness"] == pytest.approx(expected, rel=1e-4)
    assert found["validation/worst loss"] == pytest.approx(max(losses.values()))


# -- the subspace of a round -----------------------------------------------------------------------


def test_a_client_with_another_basis_refuses_before_it_spends_anything():
    server, clients = federation(fedpcdp(PUBLIC, 5), clients=2, rounds=1)
    other = (PUBLIC[0] + 0.5, PUBLIC[1])
    clients["c1"].strategy = fedpcdp(other, 5)
    ended = run(server, clients)[0]
    assert ended.accepted == ["c0"]
    assert "subspace" in ended.refused["c1"]
    assert clients["c1"].trainer.account.steps == 0


def test_a_fingerprint_forgives_rounding_and_sees_a_sign():
    space = fedpcdp(PUBLIC, 5, per_tensor=False).round_subspace
    basis = round_basis(space, model(), LOSS, 1, 1, seed=0)
    known = fingerprint(basis)
    basis.mixing = basis.mixing * (1 + 3e-5 * torch.randn_like(basis.mixing))
    assert (fingerprint(basis) - known).abs().max() < TOLERANCE / 10
    basis.mixing = basis.mixing * torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0])
    assert (fingerprint(basis) - known).abs().max() > TOLERANCE


def test_server_and_client_draw_the_same_public_batch_from_the_round_s_seed():
    strategy = Strategy("some", dataclasses.replace(pcdp(PUBLIC, 3, batch=6)), Coordinates())
    server, clients = federation(strategy, rounds=3)
    assert all(len(ended.accepted) == 3 for ended in run(server, clients))


def test_settings_that_do_not_fit_are_refused_by_name():
    with pytest.raises(SettingError, match="upload"):
        Strategy("wrong", upload=Coordinates())
    with pytest.raises(SettingError, match="aggregator"):
        Strategy("wrong", aggregator=qffl(lr=1.0).aggregator)
    server, clients = federation(fedprox(3.0), clients=1, rounds=1)
    with pytest.raises(RuntimeError) as raised:
        run(server, clients)
    assert "mu" in str(raised.value.__cause__)


def test_nothing_is_left_on_a_model_that_moon_looked_at():
    local = model()
    ContrastiveUpdate(1.0, 0.5, *map(WithFeatures, (local, model(), model())))(local, LOSS, *data(0, 4))
    assert all(not module._forward_pre_hooks for module in local.modules())


def test_a_basis_is_shared_only_where_everything_that_made_it_is_the_same():
    space, equal_space = fedpcdp(PUBLIC, 5).round_subspace, fedpcdp(PUBLIC, 5).round_subspace
    first, second = model(), model()
    cache = BasisCache()
    basis = cache.round_basis(space, first, LOSS, 1, 4, seed=0)
    assert cache.round_basis(space, second, LOSS, 1, 4, seed=0) is basis
    assert cache.round_basis(equal_space, second, LOSS, 1, 4, seed=0) is not basis
    basis = cache.round_basis(space, first, LOSS, 1, 4, seed=0)
    assert cache.round_basis(space, first, LOSS, 2, 4, seed=0) is not basis
    basis = cache.round_basis(space, first, LOSS, 1, 4, seed=0)
    with torch.no_grad():
        second[0].weight[0, 0] += 1e-6
    assert cache.round_basis(space, second, LOSS, 1, 4, seed=0) is not basis


def test_bases_are_shared_within_a_simulation_and_nowhere_else():
    space = fedpcdp(PUBLIC, 5).round_subspace
    assert BasisCache().round_basis(space, model(), LOSS, 1, 4, 0) is not BasisCache().round_basis(
        space, model(), LOSS, 1, 4, 0
    )
    simulated = build_federation(FederateConfig(method="fedpcdp", noise_multiplier=1.0, rank=5.0, clients=2))
    assert {id(client.bases) for client in simulated.clients.values()} == {id(simulated.server.bases)}
    server, clients = federation(fedpcdp(PUBLIC, 5))
    assert len({id(owner.bases) for owner in (server, *clients.values())}) == 4


def test_a_client_in_another_process_rebuilds_the_same_basis():
    """A site has its own subspace object of the same records; its basis is rebuilt, not shared, and accepted."""
    server, clients = federation(fedpcdp(PUBLIC, 5), clients=2, rounds=2)
    clients["c1"].strategy = fedpcdp((PUBLIC[0].clone(), PUBLIC[1].clone()), 5)
    assert all(ended.accepted == ["c0", "c1"] for ended in run(server, clients))


def test_q_ffl_keeps_the_fixed_weights_and_a_claimed_loss_of_zero_stops_nobody():
    from gnomon.federated import QFair

    changes = {"a": {"w": torch.tensor([1.0])}, "b": {"w": torch.tensor([4.0])}}
    plain = QFair(0.0, 1.0, lr=0.5).aggregate(changes, {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, {})["w"]
    assert plain.item() == pytest.approx(0.5 * 2.0)
    honest = QFair(0.5, 1.0).aggregate(changes, dict.fromkeys(changes, 1.0), {"a": 1.0, "b": 1.0}, {})["w"]
    liar = QFair(0.5, 1.0).aggregate(changes, dict.fromkeys(changes, 1.0), {"a": 1.0, "b": 0.0}, {})["w"]
    assert liar.item() > 0.05 * honest.item()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_name_on_the_command_line_gives_the_strategy_of_that_function(name):
    """A strategy by name and by function is the same, with the same defaults."""
    config = FederateConfig(method=name, noise_multiplier=1.0, rank=5.0)
    public = load("digits").train[:20]
    by_name = build_strategy(config, public)
    given = {"public": public, "rank": 5.0, "lr": config.lr, "per_tensor": config.subspace_scope == "per-tensor"}
    build = STRATEGIES[name]
    by_hand = build(**{key: given[key] for key in inspect.signature(build).parameters if key in given})
    assert by_name.describe() == by_hand.describe()
    assert by_name.components == by_hand.components
    assert by_name.aggregator == by_hand.aggregator
