"""Every planted bug is detected in every method that can have it, and the correct methods pass."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from gnomon import Trainer
from gnomon.accounting import FullBatch
from gnomon.audit import (
    Probe,
    ProbeAttackData,
    RecordAttackData,
    StepAudit,
    TrainerTarget,
    check_independent_sources,
    check_noise_distribution,
    probe_loss,
)
from gnomon.audit.noise import DRAWS
from gnomon.audit.step import MAX_COMPARED_COORDINATES
from gnomon.clipping import PSAC, Automatic, Normalised, PerLayer
from gnomon.methods import dp_comp_minibatch, dp_lsgd, dp_sgd, gep, pcdp, pdp, rpcdp, rpdp, rsdp
from gnomon.release import Door, SeededNoise
from gnomon.subspaces import PublicEigenspace
from tests.audit import mutants

SIZE, RANK, ALPHA, SEEDED = 64, 32, 2.5e-4, object()


def public(*shape: int, classes: int = 0):
    draw = torch.Generator().manual_seed(5)
    targets = torch.randint(0, classes, shape[:1], generator=draw) if classes else torch.zeros(shape[0])
    return torch.randn(*shape, generator=draw), targets


def families(data, rank: int):
    return {
        "dp-sgd": dp_sgd(),
        "pdp": pdp(data, rank),
        "pcdp": pcdp(data, rank),
        "pcdp per tensor": pcdp(data, rank // 2, per_tensor=True),
        "rpdp": rpdp(rank),
        "rpcdp": rpcdp(rank),
        "rsdp": rsdp(0.3),
        "gep": gep(data, rank // 2),
        "automatic": dp_sgd(Automatic()),
        "normalised": dp_sgd(Normalised()),
        "psac": dp_sgd(PSAC()),
        "per layer": dp_sgd(PerLayer()),
        "pcdp automatic": pcdp(data, rank, clip=Automatic()),
        "dp-lsgd": dp_lsgd(steps=2, lr=0.5),
        "local steps in a subspace": dp_lsgd(steps=2, lr=0.5, subspace=PublicEigenspace(data, rank)),
        "dp-comp-minibatch": dp_comp_minibatch("l2:5", sketch=rank),
    }


FAMILIES = families(public(80, SIZE), RANK)
SUBSPACES = [
    "pdp",
    "pcdp",
    "pcdp per tensor",
    "rpdp",
    "rpcdp",
    "rsdp",
    "gep",
    "pcdp automatic",
    "local steps in a subspace",
]


def trainer_of(method, model, loss, kind: type[Trainer] = Trainer, noise=SEEDED) -> Trainer:
    return kind(
        model, loss, torch.optim.SGD(model.parameters(), lr=1.0), method=method, sample_rate=0.01,
        expected_batch_size=16, noise_multiplier=1.4147, target_delta=1e-5, steps=1000,
        noise=SeededNoise(1) if noise is SEEDED else noise, progress=False,
    )  # fmt: skip


def verdict(trainer: Trainer, attack, releases: int) -> list[str]:
    """Return the failed findings and the lower bounds above the claim."""
    step = StepAudit(TrainerTarget(trainer, attack.example), attack, canaries=4)
    findings, lower, _ = step.run(releases, ALPHA)
    claim = step.target.claim.mu
    return [f"{one.part} {one.what}" for one in findings if not one.ok] + [n for n, mu in lower.items() if mu > claim]


def of_noise(name: str, draws: int) -> list[str]:
    """Return the failed findings about the noise of a Trainer on the probe, with a secure noise source."""
    trainer = trainer_of(FAMILIES[name], Probe(SIZE), probe_loss, noise=None)
    return [
        f"{one.part} {one.what}"
        for one in [*check_noise_distribution(trainer, draws), *check_independent_sources(trainer)]
        if not one.ok
    ]


def on_probe(name: str, kind: type[Trainer] = Trainer, releases: int = 20) -> list[str]:
    return verdict(trainer_of(FAMILIES[name], Probe(SIZE), probe_loss, kind), ProbeAttackData(SIZE, 1.0, 8), releases)


SOAK = pytest.mark.skipif(not os.environ.get("GNOMON_SOAK"), reason="a long form: set GNOMON_SOAK=1")


def cases(bugs, every: int = 3) -> list:
    """Return families x bugs; outside a soak every `every`-th pair, so that each family and each bug has some."""
    return [
        pytest.param(family, bug, marks=[] if (i + j) % every == 0 else SOAK)
        for i, family in enumerate(FAMILIES)
        for j, bug in enumerate(bugs)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_honest_method_passes(family):
    assert on_probe(family, releases=20) == []


@pytest.mark.parametrize(("family", "bug"), cases(mutants.DOORS))
def test_the_bug_is_caught_and_named(family, bug, monkeypatch):
    for memory in (mutants.NoiseReused.known, mutants.NoiseReusedLater.known, mutants.NoiseReusedLater.steps):
        memory.clear()
    door, reason = mutants.DOORS[bug]
    monkeypatch.setattr("gnomon.training.engine.Door", door)
    assert reason in " ".join(on_probe(family, releases=60 if bug == "noise 5 % low" else 10))


@pytest.mark.parametrize("family", ["dp-sgd", "pdp", "rpdp", "automatic", "normalised", "psac", "per layer", "dp-lsgd"])
def test_a_broken_sample_that_was_repaired_is_caught(family, monkeypatch):
    door, reason = mutants.REPAIRED
    monkeypatch.setattr("gnomon.training.engine.Door", door)
    assert reason in " ".join(on_probe(family, releases=5))


@pytest.mark.parametrize("family", FAMILIES)
def test_honest_noise_passes(family):
    assert of_noise(family, 2**20) == []


def test_honest_noise_passes_with_as_many_draws_as_an_audit_makes():
    assert of_noise("dp-sgd", DRAWS) == []


@pytest.mark.parametrize(("family", "bug"), cases(mutants.NOISES, every=5))
def test_a_bug_of_the_noise_is_caught_and_named(family, bug, monkeypatch):
    source, draws, reason = mutants.NOISES[bug]
    monkeypatch.setattr("gnomon.training.engine.SecureNoise", source)
    assert reason in " ".join(of_noise(family, draws))


def test_noise_cut_at_five_deviations_is_caught_by_as_many_draws_as_an_audit_makes(monkeypatch):
    monkeypatch.setattr("gnomon.training.engine.SecureNoise", mutants.cut_at(5.0))
    assert of_noise("dp-sgd", DRAWS) == ["W release: draws beyond 5 deviations"]


@pytest.mark.parametrize(("family", "bug"), cases(mutants.FORMS))
def test_a_noisy_sum_that_shows_its_last_bits_is_caught(family, bug, monkeypatch):
    form, reason = mutants.FORMS[bug]
    monkeypatch.setattr("gnomon.release.door.add_noise", form)
    assert reason in " ".join(of_noise(family, 2**18))


@pytest.mark.parametrize("family", FAMILIES)
def test_noise_that_is_one_per_cent_low_is_caught(family, monkeypatch):
    monkeypatch.setattr("gnomon.training.engine.Door", mutants.NoiseOnePercentLow)
    assert "W release: deviation / declared" in of_noise(family, 2**20)


@pytest.mark.parametrize("bound", [0.001, 3.0])
@pytest.mark.parametrize("divisor", [1.0, 250.0, 333.3])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 20_000.0])
def test_the_grid_is_read_through_any_divisor_and_bound(bound, divisor, multiplier, monkeypatch):
    model = Probe(4)
    settings = {"max_grad_norm": bound, "expected_batch_size": divisor, "noise_multiplier": multiplier}
    trainer = Trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sampler=FullBatch(), target_delta=1e-5,
        steps=2, progress=False, **settings,
    )  # fmt: skip
    assert [str(one) for one in check_noise_distribution(trainer, 2**18) if not one.ok] == []
    for form, reason in mutants.FORMS.values():
        monkeypatch.setattr("gnomon.release.door.add_noise", form)
        assert reason in " ".join(
            f"{one.part} {one.what}" for one in check_noise_distribution(trainer, 2**18) if not one.ok
        )


@pytest.mark.parametrize("family", ["dp-sgd", "rsdp", "per layer"])
def test_one_draw_for_two_parameters_is_caught(family, monkeypatch):
    monkeypatch.setattr("gnomon.training.engine.Door", mutants.NoiseReusedNow)
    assert "cosine of two coordinates" in " ".join(on_probe(family, releases=40))


@pytest.mark.parametrize(
    ("door", "classes", "finding"),
    [
        (Door, 3, ""),
        (mutants.OneTensorWithoutNoise, 3, "deviation of each coordinate"),
        (mutants.OneTensorWithLittleNoise, 60, "deviation of 2.bias"),
    ],
)
def test_a_small_tensor_of_a_large_model_is_looked_at(door, classes, finding, monkeypatch):
    monkeypatch.setattr("gnomon.training.engine.Door", door)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 99_900 // (classes + 7)), nn.Tanh())
    model.append(nn.Linear(model[0].out_features, classes))
    assert sum(p.numel() for p in model.parameters()) > 40 * MAX_COMPARED_COORDINATES
    data = torch.randn(20, 6), torch.randint(0, classes, (20,))
    trainer = trainer_of(None, model, nn.CrossEntropyLoss(reduction="none"))
    found = verdict(trainer, RecordAttackData(data, 4), releases=40)
    assert finding in " ".join(found) if finding else found == []


@pytest.mark.parametrize("family", SUBSPACES)
def test_a_projector_from_private_data_is_caught(family):
    found = " ".join(on_probe(family, mutants.ProjectorFromPrivateData, releases=5))
    assert "S one" in found or "outside the subspace" in found


def of_records(family: str, *, smuggled: bool) -> list[str]:
    torch.manual_seed(0)
    model = nn.Sequential(mutants.HandMadeBatchNorm() if smuggled else nn.Identity(), nn.Linear(6, 8), nn.Tanh(),
                          nn.Linear(8, 3))  # fmt: skip
    method = families(public(80, 6, classes=3), RANK)[family]
    data = torch.randn(40, 6), torch.randint(0, 3, (40,))
    trainer = trainer_of(method, model, nn.CrossEntropyLoss(reduction="none"))
    return verdict(trainer, RecordAttackData(data, 8), releases=10)


@pytest.mark.parametrize("family", FAMILIES)
def test_batch_norm_smuggled_in_is_caught(family, monkeypatch):
    monkeypatch.setattr("gnomon.training.admission.refuse_dependence", lambda *ignored, **settings: None)
    assert "S " in " ".join(of_records(family, smuggled=True))


@pytest.mark.parametrize("family", ["dp-sgd", "pcdp per tensor", "gep", "per layer"])
def test_an_honest_model_of_layers_passes(family):
    assert of_records(family, smuggled=False) == []
