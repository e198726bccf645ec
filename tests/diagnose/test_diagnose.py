"""Diagnostics agree with the plain matrices they avoid, leave training alone, and say what is unprotected."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from gnomon import methods
from gnomon.cli.main import main
from gnomon.clipping import Fair
from gnomon.data import Records
from gnomon.diagnose import (
    Diagnostics,
    DiagnosticSchedule,
    angles,
    bias,
    cloud,
    components,
    energy_inside,
    gap,
    gram,
    skew,
    spectrum,
)
from gnomon.diagnose.observer import noise_dimensions
from gnomon.errors import SettingError
from gnomon.figures.diagnostics import diagnostic_pictures
from gnomon.methods import (
    CLIP_AFTER_SKETCH,
    LINEAR_SKETCH,
    ClipThenProject,
    LocalSteps,
    Method,
    dp_comp_minibatch,
    dp_lsgd,
    dp_sgd,
    gep,
    pcdp,
    pdp,
    rpdp,
    rsdp,
)
from gnomon.release import SeededNoise
from gnomon.release.door import admission
from gnomon.subspaces import Ambient, BesideLoss
from gnomon.subspaces.eigenspace import shared_basis
from gnomon.training import Trainer
from gnomon.training.observer import StepView
from gnomon.updates import gradients
from tests.helpers import LOSS


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def some(count: int, seed: int) -> Records:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return Records(inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long())


PRIVATE, PUBLIC = some(200, 1), some(30, 2)
EVERY = {
    "dp-sgd": lambda: dp_sgd(),
    "pdp": lambda: pdp(PUBLIC, rank=6),
    "pcdp": lambda: pcdp(PUBLIC, rank=6),
    "pcdp per tensor": lambda: pcdp(PUBLIC, rank=4, per_tensor=True),
    "rpdp": lambda: rpdp(rank=9),
    "rsdp": lambda: rsdp(rate=0.5),
    "gep": lambda: gep(PUBLIC, rank=6),
    "dp-lsgd": lambda: dp_lsgd(steps=3, lr=0.1),
    "late pcdp": lambda: pcdp(PUBLIC, rank=6, start=1),
}


def trainer(method: methods.Method | None = None, **settings) -> Trainer:
    model = network()
    given = {"sample_rate": 0.2, "expected_batch_size": 40, "noise_multiplier": 2.0, "target_delta": 1e-5, "steps": 6}
    return Trainer(
        model, LOSS, torch.optim.SGD(model.parameters(), lr=0.5), method=method or dp_sgd(), max_grad_norm=0.3,
        noise=SeededNoise(0), progress=False, **(given | settings),
    )  # fmt: skip


def look(trainer: Trainer, inputs: torch.Tensor, targets: torch.Tensor) -> StepView:
    """What a step on these records would look like."""
    return trainer.engine.preview(inputs, targets)


def updates(count: int = 20, seed: int = 3):
    records = some(count, seed)
    return gradients(network(), LOSS, records.inputs, records.targets)


# -- the numbers -----------------------------------------------------------------------------------


def test_the_spectrum_is_that_of_the_second_moment_of_all_parameters():
    found = updates()
    dense = found.dense()
    plain = torch.linalg.eigvalsh(dense.T @ dense / len(dense)).flip(0)
    values = spectrum(gram(found))
    assert torch.allclose(values, plain[: len(values)], atol=1e-12)
    assert plain[len(values) :].abs().max() < 1e-12
    assert gap(values, 3) == pytest.approx(float((plain[2] - plain[3]) / plain[0]))
    assert gap(values, 99) == 0.0


def test_skew_and_angles_are_those_of_the_projectors():
    one, other = shared_basis(updates(seed=3), 4), shared_basis(updates(seed=4), 4)
    inner = one.public.gram(other.public)
    overlap = one.mixing.T @ inner @ other.mixing
    difference = one.dense() @ one.dense().T - other.dense() @ other.dense().T
    spectral, frobenius = skew(overlap)
    assert spectral == pytest.approx(float(torch.linalg.matrix_norm(difference, 2)), abs=1e-7)
    assert frobenius == pytest.approx(float(torch.linalg.matrix_norm(difference)) / 8**0.5, abs=1e-7)
    cosines = torch.linalg.svdvals(one.dense().T @ other.dense())
    assert torch.allclose(torch.cos(torch.deg2rad(angles(overlap))), cosines, atol=1e-7)


def test_energy_inside_is_that_of_the_projected_gradient():
    found, basis = updates(), shared_basis(updates(seed=5), 4)
    v, g = basis.dense(), found.dense()
    share = (g @ v @ v.T).square().sum(1) / g.square().sum(1)
    assert torch.allclose(energy_inside(basis.coordinates(found), found), share)


def test_components_are_sorted_and_end_with_the_smallest():
    mean = updates().weighted_sum(torch.full((20,), 0.05, dtype=torch.float64))
    flat = torch.cat([value.flatten() for value in mean.values()]).abs()
    points = components(mean)
    assert points[0] == [1, pytest.approx(float(flat.max()))]
    assert points[-1] == [66, pytest.approx(float(flat.min()))]
    assert [value for _, value in points] == sorted((value for _, value in points), reverse=True)


def test_a_cloud_shows_the_same_plane_before_and_after_projection():
    found, basis = updates(), shared_basis(updates(seed=3), 20)  # their own span: nothing is lost
    points = cloud(found, basis)
    assert torch.allclose(torch.tensor(points["whole"]), torch.tensor(points["projected"]), atol=1e-6)
    less = cloud(found, shared_basis(updates(seed=5), 2))
    assert torch.tensor(less["projected"]).norm() < torch.tensor(less["whole"]).norm()


@pytest.mark.parametrize("name", EVERY)
def test_bias_and_noise_are_what_the_step_of_the_method_does(name):
    """Without noise the model moves by the clipped mean; the diagnosis must say the same about it."""
    method = EVERY[name]()
    ours = trainer(method, noise_multiplier=1e-9, sample_rate=0.999999, expected_batch_size=200, steps=1)
    found: list[dict] = []
    ours.observers = (Diagnostics(found.append, every=1, public=PUBLIC, rank=5),)
    before = torch.cat([p.detach().flatten().clone() for p in ours.model.parameters()])
    true = method.update(network(), LOSS, PRIVATE.inputs, PRIVATE.targets)
    mean = torch.cat([v.flatten() for v in true.weighted_sum(torch.full((200,), 1 / 200).double()).values()])
    ours.fit(PRIVATE)
    moved = (before - torch.cat([p.detach().flatten() for p in ours.model.parameters()])) / 0.5
    moved = -moved if method.displaces else moved
    record = found[0]
    assert record["unprotected/bias/ratio"] == pytest.approx(float(moved.norm() / mean.norm()), rel=1e-3)
    cosine = float(torch.nn.functional.cosine_similarity(moved, mean, 0))
    assert record["unprotected/bias/cosine"] == pytest.approx(cosine, abs=1e-3)
    clipped = (
        (admission(true, method.clip_rule, 0.3).weights < 1).double().mean()
        if method.route == ClipThenProject()
        else None
    )
    assert clipped is None or record["unprotected/clipped"] == pytest.approx(float(clipped))


@pytest.mark.parametrize(("name", "expected"), [("dp-sgd", 66), ("pcdp", 6), ("pdp", 6), ("rpdp", 9)])
def test_noise_reaches_the_model_in_as_many_dimensions(name, expected):
    view = look(trainer(EVERY[name]()), PRIVATE.inputs, PRIVATE.targets)
    assert noise_dimensions(view) == pytest.approx(expected, rel=1e-6)


def test_signal_to_noise_is_the_ratio_of_lengths():
    view = look(trainer(), PRIVATE.inputs, PRIVATE.targets)
    record = Diagnostics(print).record(view)
    norms = view.updates.norms()
    total = (view.updates.dense() * (0.3 / norms).clamp_max(1)[:, None]).sum(0) / 200 * 40
    assert record["unprotected/signal_to_noise"] == pytest.approx(float(total.norm()) / (2 * 0.3 * 66**0.5), rel=1e-4)
    silent = dataclasses.replace(view, mechanism=dataclasses.replace(view.mechanism, noise_multiplier=0.0))
    assert Diagnostics(print).record(silent)["unprotected/signal_to_noise"] is None


def shares(updates, basis) -> torch.Tensor:
    """How much of each update a plain matrix leaves, at the quantiles of a record."""
    v, g = basis.dense(), updates.dense()
    inside = (g @ v @ v.T).square().sum(1) / g.square().sum(1)
    return torch.quantile(inside, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64))


def test_gep_s_energy_is_that_inside_its_public_subspace_without_the_residual():
    view = look(trainer(gep(PUBLIC, rank=6)), PRIVATE.inputs, PRIVATE.targets)
    record = Diagnostics(print, rank=5).record(view)
    expected = shares(view.updates, view.basis.embedding)
    assert expected[2] < 0.99
    assert record["unprotected/energy"] == pytest.approx(expected.tolist(), rel=1e-6)
    assert record["unprotected/energy/rank"] == 6
    assert record["unprotected/energy/of"] == "method"
    assert record["unprotected/norms_projected/mean"] < record["unprotected/norms/mean"]


RANDOM = {name: EVERY[name] for name in ("rpdp", "rsdp")}
SKETCHED = {
    form.name: lambda form=form: dp_comp_minibatch("l2:5", sketch=10, form=form)
    for form in (CLIP_AFTER_SKETCH, LINEAR_SKETCH)
}


@pytest.mark.parametrize("name", [*RANDOM, *SKETCHED])
def test_directions_that_no_public_record_made_hold_no_public_energy(name):
    view = look(trainer((RANDOM | SKETCHED)[name]()), PRIVATE.inputs, PRIVATE.targets)
    alone = Diagnostics(print).record(view)
    assert not [one for one in alone if "energy" in one]
    assert ("unprotected/norms_projected" in alone) == (name in RANDOM)
    assert ("projected" in alone["unprotected/cloud"]) == (name in RANDOM)
    beside = Diagnostics(print, public=PUBLIC, rank=5).record(view)
    public = shared_basis(gradients(network(), LOSS, PUBLIC.inputs, PUBLIC.targets), 5)
    assert beside["unprotected/energy"] == pytest.approx(shares(view.updates, public).tolist(), rel=1e-6)
    assert beside["unprotected/energy/of"] == "diagnosis"
    for key in ("unprotected/signal_to_noise", "unprotected/bias/cosine", "unprotected/bias/ratio"):
        assert beside[key] == alone[key]
    same = name in RANDOM  # norms after the method's own projection do not depend on public records
    assert (beside["unprotected/norms_projected"] == alone.get("unprotected/norms_projected")) == same


def test_captions_say_whose_gradients_are_held_against_which_subspace():
    def caption(method, name="subspace", **settings):
        view = look(trainer(method), PRIVATE.inputs, PRIVATE.targets)
        records = [Diagnostics(print, **{"rank": 5} | settings).record(view)]
        return {one.name: one.caption for one in diagnostic_pictures(records)}[name]

    said = caption(pcdp(PUBLIC, rank=6))
    assert "private gradients in the method's public subspace (rank 6)" in said
    assert "held-out public gradients in the subspace of the other half of the public records (rank 5)" in said
    assert "private gradients in the subspace of the public records (rank 5)" in caption(rpdp(rank=9), public=PUBLIC)
    assert "private" not in caption(pcdp(PUBLIC, rank=6), public_only=True)


def test_energy_in_the_method_s_subspace_and_in_the_diagnosis_are_two_lines():
    ours, found = trainer(pcdp(PUBLIC, rank=6, start=1)), []
    ours.observers = (Diagnostics(found.append, every=1, rank=3),)
    ours.fit(PRIVATE)
    assert {one["unprotected/energy/of"] for one in found} == {"diagnosis", "method"}
    (picture,) = (one for one in diagnostic_pictures(found) if one.name == "subspace")
    assert "private gradients, no projection yet from" in picture.alt
    assert (
        "(rank 3) until projection starts, and private gradients in the method's public subspace (rank 6)"
        in picture.alt
    )


def test_bias_of_orthogonal_vectors_is_zero():
    assert bias({"a": torch.tensor([1.0, 0.0])}, {"a": torch.tensor([0.0, 2.0])}) == (0.0, 0.5)


# -- along training --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_looking_changes_nothing(name):
    weights = []
    for watched in (False, True):
        ours = trainer(EVERY[name]())
        found: list[dict] = []
        if watched:
            ours.observers = (Diagnostics(found.append, every=2, public=PUBLIC, rank=5),)
        ours.fit(PRIVATE)
        weights.append(torch.cat([p.detach().flatten() for p in ours.model.parameters()]))
    assert torch.equal(*weights)
    assert [one["step"] for one in found] == [0, 2, 4]
    assert "public/drift" not in found[0]
    assert len(found[1]["public/drift"]) == 5
    json.dumps(found, allow_nan=False)


def test_looking_changes_nothing_in_losses_that_are_released_beside_the_update():
    released = []
    for watched in (False, True):
        space = BesideLoss(Ambient(), bound=0.3)
        ours = trainer(Method("with loss", subspace=space))
        if watched:
            ours.observers = (Diagnostics(lambda record: None, every=1, public=PUBLIC, rank=5),)
        seen: list[float] = []
        ours.fit(PRIVATE, on_step=lambda step, ours=ours, seen=seen: seen.append(ours.released.extra["loss"]))
        released.append(seen)
    assert released[0] == released[1]
    assert len(released[0]) == 6


def test_looks_along_a_run_change_nothing_in_its_dropout():
    weights = []
    for looks in (None, DiagnosticSchedule(times=3, records=20, keep=("unprotected/clipped",))):
        model = network().insert(2, nn.Dropout(0.3))
        ours = Trainer(
            model, LOSS, torch.optim.SGD(model.parameters(), lr=0.5), max_grad_norm=0.3, sample_rate=0.2,
            expected_batch_size=40, noise_multiplier=2.0, target_delta=1e-5, steps=6, noise=SeededNoise(0),
            progress=False,
        )  # fmt: skip
        if looks is not None:
            looks.attach(ours, PRIVATE)
        torch.manual_seed(7)
        ours.fit(PRIVATE)
        weights.append(torch.cat([p.detach().flatten() for p in ours.model.parameters()]))
    assert torch.equal(*weights)


def test_a_look_sees_noise_before_clipping_and_fair_weights_as_a_step_does():
    noisy = dataclasses.replace(dp_sgd(), pre_noise=5.0)
    fair = dataclasses.replace(dp_sgd(), clip=Fair(strength=3.0, reference=0.1, most=4.0))
    for method, bound in ((noisy, 1.0), (fair, 1000.0)):
        ours = trainer(method)
        ours.engine._mechanism = dataclasses.replace(ours.mechanism, max_grad_norm=bound)
        found: list[dict] = []
        ours.observers = (Diagnostics(found.append, every=1),)
        view = look(ours, PRIVATE.inputs, PRIVATE.targets)
        ours.fit(PRIVATE)
        seen = Diagnostics(print).record(view)
        plain = Diagnostics(print).record(look(trainer(), PRIVATE.inputs, PRIVATE.targets))
        for name in ("unprotected/clipped", "unprotected/bias/ratio"):
            assert seen[name] == pytest.approx(found[0][name], rel=0.3), name
        assert seen["unprotected/bias/ratio"] != pytest.approx(plain["unprotected/bias/ratio"], rel=0.3)


@pytest.mark.parametrize(
    "method",
    [gep(PUBLIC, rank=6), dataclasses.replace(dp_sgd(), clip=Fair(strength=0.5, reference=1.0))],
    ids=["gep", "fair"],
)
def test_scaling_is_not_clipping(method):
    for bound, clipped in ((1000.0, 0.0), (1e-6, 1.0)):
        ours = trainer(method, steps=1)
        ours.engine._mechanism = dataclasses.replace(ours.mechanism, max_grad_norm=bound)
        found: list[dict] = []
        ours.observers = (Diagnostics(found.append, every=1),)
        (record,) = ours.fit(PRIVATE).history
        assert found[0]["unprotected/clipped"] == record["unprotected/clipped"] == clipped


def test_public_records_without_a_gradient_are_survived():
    hinge = lambda outputs, targets: (1 - outputs.squeeze(1) * targets).clamp_min(0)
    model = nn.Linear(5, 1).double()
    far = Records(
        torch.full((8, 5), 100.0).double(), torch.sign(model(torch.full((8, 5), 100.0).double())).squeeze(1).detach()
    )
    found: list[dict] = []
    ours = Trainer(
        model, hinge, torch.optim.SGD(model.parameters(), lr=1e-9), sample_rate=0.2, expected_batch_size=40,
        noise_multiplier=1.0, target_delta=1e-5, steps=2, noise=SeededNoise(0), progress=False,
        observers=[Diagnostics(found.append, every=1, public=far)],
    )  # fmt: skip
    ours.fit((PRIVATE.inputs, PRIVATE.targets.double() - 1))
    assert [one["public/skew"] for one in found] == [0.0, 0.0]
    assert diagnostic_pictures(found)


def test_the_subspace_does_not_drift_while_the_weights_stand_still():
    ours = trainer(steps=2)
    for group in ours.optimizer.param_groups:
        group["lr"] = 0.0
    found: list[dict] = []
    ours.observers = (Diagnostics(found.append, every=1, public=PUBLIC, rank=5),)
    ours.fit(PRIVATE)
    assert max(found[1]["public/drift"]) < 1e-2


def test_everything_that_reads_private_records_is_named_unprotected():
    ours, others = (look(trainer(pcdp(PUBLIC, rank=6)), records.inputs, records.targets)
                    for records in (PRIVATE, some(200, 9)))  # fmt: skip
    one, other = (Diagnostics(print, rank=5).record(view) for view in (ours, others))
    differ = {name for name in one if one[name] != other[name]}
    assert {name.split("/")[0] for name in differ} == {"unprotected"}
    assert "unprotected/energy" in differ


def test_the_public_mode_reads_no_private_record():
    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError(f"a private update was read: {name}")

    view = look(trainer(pcdp(PUBLIC, rank=6)), PRIVATE.inputs, PRIVATE.targets)
    view = dataclasses.replace(view, updates=Untouchable(), admitted=Untouchable())
    record = Diagnostics(print, public_only=True, rank=5).record(view)
    assert not [name for name in record if name.startswith("unprotected")]
    assert {"public/spectrum", "public/skew", "public/bias/cosine", "public/cloud"} <= set(record)
    with pytest.raises(AssertionError, match="private update was read"):
        Diagnostics(print, rank=5).record(view)


def test_without_public_records_there_is_no_public_mode():
    view = look(trainer(), PRIVATE.inputs, PRIVATE.targets)
    with pytest.raises(SettingError, match="public records"):
        Diagnostics(print, public_only=True).record(view)


def test_records_without_a_finite_gradient_and_empty_batches_are_survived():
    inputs = PRIVATE.inputs.clone()
    inputs[3] = float("nan")
    record = Diagnostics(print).record(look(trainer(), inputs, PRIVATE.targets))
    json.dumps(record, allow_nan=False)
    empty = Diagnostics(print).record(look(trainer(), inputs[:0], PRIVATE.targets[:0]))
    assert set(empty) == {"step", "epoch"}


def test_local_steps_are_measured_in_units_of_their_step():
    def clipped_at(method, bound):
        view = look(trainer(method), PRIVATE.inputs, PRIVATE.targets)
        return dataclasses.replace(view, mechanism=dataclasses.replace(view.mechanism, max_grad_norm=bound))

    ours = clipped_at(dataclasses.replace(dp_sgd(), update=LocalSteps(1, 0.1)), 0.03)
    plain = clipped_at(dp_sgd(), 0.3)
    key = "unprotected/incremental"
    assert Diagnostics(print).record(ours)[key] == pytest.approx(Diagnostics(print).record(plain)[key], rel=1e-4)


def test_public_gradients_are_not_held_against_a_bound_for_displacements():
    view = look(trainer(dp_lsgd(steps=3, lr=0.1)), PRIVATE.inputs, PRIVATE.targets)
    record = Diagnostics(print, public=PUBLIC, rank=5).record(view)
    told = {"clipped", "incremental", "bias/cosine", "bias/ratio"}
    assert {name.removeprefix("unprotected/") for name in record if name.startswith("unprotected/")} >= told
    assert not {name.removeprefix("public/") for name in record} & told
    assert {"public/spectrum", "public/norms", "public/energy"} <= set(record)


def test_the_caption_about_public_gradients_says_that_they_are_not_projected():
    records = [{"epoch": 1.0, "public/bias/cosine": 0.9, "public/bias/ratio": 0.5}]
    assert "Effect of clipping, without projection" in diagnostic_pictures(records)[0].caption
    records[0] |= {"unprotected/bias/cosine": 0.9, "unprotected/bias/ratio": 0.5}
    assert "clipping and projection" in diagnostic_pictures(records)[0].caption


# -- the command -----------------------------------------------------------------------------------


def test_the_commands_write_what_the_report_shows(tmp_path, capsys):
    out = tmp_path / "run"
    flags = ["--method", "pcdp", "--rank", "10", "--epochs", "2", "--noise-multiplier", "5", "--quiet"]
    assert main(["train", *flags, "--diagnose", "4", "--out", str(out)]) == 0
    lines = [json.loads(line) for line in (out / "diagnostics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 4, 8]
    assert main(["diagnose", str(out)]) == 0
    assert "unprotected/signal_to_noise" in capsys.readouterr().out
    record = json.loads((out / "diagnosis.json").read_text())
    assert record["epoch"] == 2.0
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "<h3>Diagnostics</h3>" in page
    assert "clipped sum relative to the expected norm of its noise" in page
    assert main(["report", str(out), "--without-unprotected"]) == 0
    page = (out / "report.html").read_text()
    assert "public gradients" in page
    assert "private gradients" not in page
    (out / "model.safetensors").unlink()
    assert main(["diagnose", str(out)]) == 2
    assert "model.safetensors is missing" in capsys.readouterr().err


SHORT = ["--epochs", "1", "--noise-multiplier", "5", "--quiet", "--ledger", "none"]


def test_a_run_whose_method_has_no_public_records_is_diagnosed_on_those_it_started_from(tmp_path, capsys):
    out = tmp_path / "run"
    warm = ["--warm-start", "public", "--public-records", "100"]
    assert main(["train", *SHORT, *warm, "--diagnose", "4", "--out", str(out)]) == 0
    seen = json.loads((out / "diagnostics.jsonl").read_text().splitlines()[0])
    assert {"public/spectrum", "unprotected/energy"} <= set(seen)
    assert main(["diagnose", str(out), "--public-only"]) == 0, capsys.readouterr().err
    record = json.loads((out / "diagnosis.json").read_text())
    assert "public/spectrum" in record
    assert not [name for name in record if name.startswith("unprotected")]


def test_diagnostics_along_training_can_do_without_private_records(tmp_path, capsys, monkeypatch):
    def read(self, *args):
        raise AssertionError("a private update was read")

    monkeypatch.setattr(Diagnostics, "_private_diagnostics", read)
    flags = ["--method", "pcdp", "--rank", "5", *SHORT]
    assert main(["train", *flags, "--diagnose", "4", "--diagnose-public-only", "--out", str(tmp_path / "a")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "a/diagnostics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 4]
    assert all("public/spectrum" in line for line in lines)
    assert main(["train", *flags, "--diagnose-public-only", "--out", str(tmp_path / "b")]) == 0
    assert (tmp_path / "b/diagnostics.jsonl").exists()
    capsys.readouterr()
    assert main(["train", *SHORT, "--diagnose-public-only", "--out", str(tmp_path / "c")]) == 2
    assert "diagnose-public-only" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
