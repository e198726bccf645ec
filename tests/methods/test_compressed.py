"""Compressed methods: sensitivity, the counter-example to the published claim, constraints and statements."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest
import torch
from torch import nn

import gnomon
from gnomon.accounting import FixedSize, FullBatch, Poisson
from gnomon.accounting.sketch import sketched_gaussian
from gnomon.cli.main import main
from gnomon.clipping import Flat
from gnomon.constraints import L1Ball, L2Ball, NuclearBall
from gnomon.errors import SettingError
from gnomon.losses import LOSSES, hinge, huber, logistic
from gnomon.methods import (
    FORMS,
    LINEAR_SKETCH,
    PUBLISHED_WHOLE_BATCH_NORMALISER,
    ClipThenSketch,
    ConstrainedDescent,
    Method,
    comp_gd,
    comp_minibatch,
    comp_sgd,
    dp_comp_gd,
    dp_comp_minibatch,
)
from gnomon.release import Door, SeededNoise
from gnomon.subspaces import GaussianSketch, Growing, RandomMask
from gnomon.subspaces.basis import COORDINATES
from gnomon.subspaces.gaussian_sketch import SketchBasis
from gnomon.updates import Dense, Updates

D = torch.float64


def problem(size=20, n=200, seed=0):
    """Make records of length 1 whose label is the sign of one entry."""
    torch.manual_seed(seed)
    x = torch.randn(n, size, dtype=D)
    x = x / x.norm(dim=1, keepdim=True)
    return x, (x[:, 0] > 0).long()


def zero_model(size=20, classes=1):
    model = nn.Linear(size, classes, bias=False).to(D)
    nn.init.zeros_(model.weight)
    return model


def trainer_of(method, model, *, lr=1.0, steps=20, sampler=None, n=200, seed=0, loss=logistic, **more):
    if method.private and not {"target_epsilon", "noise_multiplier"} & set(more):
        more["target_epsilon"] = 1.0
    return gnomon.Trainer(
        model, loss, torch.optim.SGD(model.parameters(), lr=lr), method=method, sampler=sampler or FullBatch(),
        expected_batch_size=n, target_delta=1e-5, steps=steps, noise=SeededNoise(seed), progress=False, **more,
    )  # fmt: skip


def released(form, rows, sum_of, bound=1.0, directions=20, seed=0, clip=None):
    """Return what a form releases for some gradients, without noise."""
    basis = SketchBasis({"weight": sum_of}, directions, seed, form.normalised)
    updates = Updates({"weight": Dense(rows)}, rows.new_zeros(len(rows)))
    door = Door(basis.like, bound, 0.0, 1.0, SeededNoise(0), sketch=form.route.sketch(basis))
    door.admit(form.route.coordinates(basis, updates), clip or Flat())
    return door.release()[COORDINATES]


@pytest.mark.parametrize("name", ["clip-after-sketch", "per-sample-normaliser"])
def test_one_record_moves_forms_a_and_b_by_at_most_the_bound_for_every_sketch(name):
    torch.manual_seed(0)
    form, like = FORMS[name], torch.zeros(50, dtype=D)
    for seed in range(30):
        basis = SketchBasis({"weight": like}, 20, seed)
        rows = torch.randn(6, 50, dtype=D) * 10.0 ** torch.randint(-4, 5, (6, 1))
        rows[0] = basis.dense()[0] * 1e4  # along a row of this sketch, which stretches it most
        rows[1] = 0.0
        whole = released(form, rows, like, seed=seed)
        for i in range(6):
            others = torch.cat([rows[:i], rows[i + 1 :]])
            assert float((whole - released(form, others, like, seed=seed)).norm()) <= 1 + 1e-6
            replaced = rows.clone()
            replaced[i] = -replaced[i]
            assert float((whole - released(form, replaced, like, seed=seed)).norm()) <= 2 + 1e-6


def test_form_b_keeps_the_clipped_length_and_the_sketched_direction():
    torch.manual_seed(0)
    rows, like = torch.randn(1, 50, dtype=D), torch.zeros(50, dtype=D)
    basis = SketchBasis({"weight": like}, 20, 0)
    for bound in (100.0, 0.5):
        release = released(FORMS["per-sample-normaliser"], rows, like, bound)
        sketched = basis.dense() @ rows[0]
        torch.testing.assert_close(
            release, sketched / sketched.norm() * min(bound, float(rows.norm())), rtol=1e-4, atol=1e-9
        )


def test_form_c_is_the_sketch_of_the_clipped_sum():
    torch.manual_seed(0)
    rows, like = 5 * torch.randn(7, 50, dtype=D), torch.zeros(50, dtype=D)
    clipped = rows * (1.0 / rows.norm(dim=1, keepdim=True)).clamp_max(1)
    expected = SketchBasis({"weight": like}, 20, 0).dense() @ clipped.sum(0)
    torch.testing.assert_close(released(LINEAR_SKETCH, rows, like), expected, rtol=1e-4, atol=1e-9)


def test_the_published_normaliser_moves_by_1998_thousandths_for_a_change_of_2_thousandths():
    d, m, n = 200, 20, 1000
    like = torch.zeros(d, dtype=D)
    phi = SketchBasis({"weight": like}, m, 0).dense()
    rows = torch.linalg.svd(phi).Vh
    unseen, seen = rows[-1], rows[0]  # in the null space, and in the row space
    gradients = [torch.cat([unseen.expand(n - 1, d), sign * seen[None]]) for sign in (1.0, -1.0)]
    means = [g.mean(0) for g in gradients]
    assert float((means[0] - means[1]).norm()) == pytest.approx(0.002)
    moved = [released(PUBLISHED_WHOLE_BATCH_NORMALISER, g, like, directions=m) / n for g in gradients]
    assert float((moved[0] - moved[1]).norm()) == pytest.approx(1.998, abs=1e-3)
    for name in ("clip-after-sketch", "per-sample-normaliser"):
        sound = [released(FORMS[name], g, like, directions=m) / n for g in gradients]
        assert float((sound[0] - sound[1]).norm()) <= 0.002 * (1 + 1e-6)


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("sampler", [FullBatch(), Poisson(0.25)])
def test_every_form_trains_within_its_budget_and_its_constraint(form, sampler):
    x, y = problem()
    make = dp_comp_gd if isinstance(sampler, FullBatch) else dp_comp_minibatch
    model = zero_model()
    noise = {} if isinstance(sampler, FullBatch) else {"noise_multiplier": 20.0}
    trainer = trainer_of(make("l1:3", 15, form), model, sampler=sampler, n=200 * sampler.rate, steps=6, **noise)
    trainer.fit((x, y))
    assert 0 < trainer.epsilon() <= 1.0
    for one in (model, trainer.average.module):
        assert float(one.weight.detach().abs().sum()) <= 3 * (1 + 1e-6)
        assert torch.isfinite(one.weight).all()
    expansion = trainer.account.expansion
    assert (expansion is None) == form.route.clips_coordinates


def test_form_c_is_accounted_exactly_and_form_d_confesses_in_the_statement():
    x, y = problem()
    linear = trainer_of(dp_comp_gd("l1:3", 15, LINEAR_SKETCH), zero_model(), noise_multiplier=9.0, steps=3)
    linear.fit((x, y))
    assert float(linear.epsilon()) == pytest.approx(sketched_gaussian(9.0, 15, 3, 1e-5))
    published = trainer_of(
        dp_comp_gd("l1:3", 15, PUBLISHED_WHOLE_BATCH_NORMALISER), zero_model(), noise_multiplier=9.0, steps=3
    )
    published.fit((x, y))
    text = published.statement().text()
    assert "its stated sensitivity is false" in text
    assert "held to the l1 ball of radius 3" in text
    assert published.epsilon() > linear.epsilon()


def test_noise_is_added_in_as_many_dimensions_as_the_sketch_has():
    torch.manual_seed(0)
    method = dp_comp_gd("l2:1000", 6, LINEAR_SKETCH, last=True)
    moved = []
    for seed in range(5):
        model = zero_model(40)
        trainer_of(method, model, noise_multiplier=50.0, steps=1, seed=seed, n=1).fit(
            (torch.zeros(3, 40, dtype=D), torch.zeros(3))
        )
        moved.append(model.weight.detach()[0])
    # with zero gradients a step is pure noise in 6 coordinates, lifted by the pseudo-inverse of the sketch
    assert all(float(w.norm()) > 0 for w in moved)
    assert float(torch.stack(moved).norm(dim=1).mean()) == pytest.approx(50 * math.sqrt(6 * 6 / 40), rel=0.4)


@pytest.mark.parametrize(
    ("method", "sampler", "batch"),
    [(comp_sgd("l1:10", 25), FixedSize(1, 200), 1), (comp_minibatch("l1:10", 30), FixedSize(20, 200), 20),
     (comp_gd("l1:10", 30), FullBatch(), 200)],
    ids=lambda v: getattr(v, "name", v),
)  # fmt: skip
def test_methods_without_privacy_learn_and_promise_nothing(method, sampler, batch):
    x, y = problem(40)
    model = zero_model(40)
    trainer = trainer_of(
        method, model, lr=1.0 if batch == 1 else 4.0, steps=120 if batch == 1 else 60, sampler=sampler, n=batch
    )
    trainer.fit((x, y))
    assert trainer.epsilon() == math.inf
    statement = trainer.statement()
    assert not statement.guarantee
    assert "no noise was added" in statement.text()
    assert re.search(r"clip bound +none", statement.text())
    assert json.loads(statement.json())["max_grad_norm"] is None
    scores = trainer.average.module(x)[:, 0]
    assert float(((scores > 0) == (y == 1)).double().mean()) > 0.8


def test_without_a_sketch_it_is_a_projected_gradient_step():
    x, y = problem()
    model = zero_model()
    trainer_of(comp_gd("l1:0.3", None, last=True), model, lr=2.0, steps=1).fit((x, y))
    reference = zero_model()
    logistic(reference(x), y).mean().backward()
    expected = L1Ball(0.3).project(-2.0 * reference.weight.grad[0])
    torch.testing.assert_close(model.weight.detach()[0], expected, rtol=1e-6, atol=1e-9)


def test_a_constrained_step_fits_the_sketch_of_the_plain_one():
    x, y = problem(30)
    method, model = comp_gd("l2:100", 10, last=True), zero_model(30)
    trainer = trainer_of(method, model, lr=2.0, steps=1, n=200)
    trainer.fit((x, y))
    phi = trainer.engine.basis.dense()
    reference = zero_model(30)
    logistic(reference(x), y).mean().backward()
    displacement = phi @ (-2.0 * reference.weight.grad[0])
    torch.testing.assert_close(
        phi @ model.weight.detach()[0], displacement, rtol=0, atol=0.1 * float(displacement.norm())
    )


def test_the_result_is_the_average_of_the_iterates_weighted_by_their_steps_or_the_last():
    x, y = problem()
    model = zero_model()
    trainer = trainer_of(comp_gd("l1:5", None), model, steps=4)
    trainer.scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: 1.0 / (step + 1))
    trainer.scheduler_every = "step"
    weights, iterates = [1.0, 0.5, 1 / 3, 0.25], []
    for inputs, targets in trainer.batches((x, y)):
        trainer.step(inputs, targets)
        iterates.append(model.weight.detach().clone())
    expected = sum(a * w for a, w in zip(weights, iterates, strict=True)) / sum(weights)
    torch.testing.assert_close(trainer.average.module.weight.detach(), expected)
    assert trainer_of(comp_gd("l1:5", None, last=True), zero_model()).average is None


def test_training_starts_inside_the_set():
    model = nn.Linear(400, 1)
    trainer_of(comp_gd("l1:1", 10), model)
    assert float(sum(p.detach().abs().sum() for p in model.parameters())) <= 1 + 1e-5


def test_the_growing_sketch_runs():
    x, y = problem()
    trainer = trainer_of(dp_comp_gd("l1:1", Growing(L1Ball(1.0))), zero_model(), steps=3)
    trainer.fit((x, y))
    assert trainer.engine.basis.rank == 20  # as many directions as parameters


@pytest.mark.parametrize(
    ("make", "sampler", "batch"),
    [(comp_sgd, FixedSize(1, 200), 1), (comp_minibatch, FixedSize(20, 200), 20), (comp_gd, FullBatch(), 200)],
)
def test_methods_without_privacy_take_the_published_schedule(make, sampler, batch):
    x, y = problem(40)
    trainer = trainer_of(make("l1:0.5", Growing(L1Ball(0.5))), zero_model(40), steps=3, sampler=sampler, n=batch)
    ranks = []
    trainer.fit((x, y), on_step=lambda step: ranks.append(trainer.engine.basis.rank))
    assert ranks == [Growing(L1Ball(0.5)).at(step, 40) for step in range(3)]
    assert ranks[0] < ranks[-1]
    assert trainer.epsilon() == math.inf


def test_no_private_method_sketches_a_sum_in_a_number_of_directions_that_changes():
    schedule = Growing(L1Ball(1.0))
    for form in FORMS.values():
        for make in (dp_comp_gd, dp_comp_minibatch):
            if form.route.clips_coordinates:
                assert make("l1:1", schedule, form).expansion is None
            else:
                with pytest.raises(SettingError, match="a constant number of directions"):
                    make("l1:1", schedule, form)
    public = comp_gd("l1:1", schedule)
    with pytest.raises(SettingError, match="a constant number of directions"):
        dataclasses.replace(public, private=True)


def test_the_nuclear_ball_keeps_a_matrix_of_low_rank():
    x, _ = problem(12)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    model = zero_model(12, 3)
    trainer_of(comp_gd(NuclearBall(2.0, rows=3), 20, last=True), model, lr=5.0, steps=30).fit((x, y))
    values = torch.linalg.svdvals(model.weight.detach())
    assert float(values.sum()) <= 2.0 + 1e-6
    assert float(values[0]) > 0.5


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: comp_gd(None), "constraint"),
        (lambda: comp_gd("l1:5", 0), "rows"),
        (lambda: dp_comp_gd("l1:5", Growing(L1Ball(1.0)), LINEAR_SKETCH), "rows"),
        (lambda: Method("own", subspace=RandomMask(0.5), route=ClipThenSketch()), "route"),
        (lambda: Method("own", subspace=RandomMask(0.5), step=ConstrainedDescent(L2Ball(1.0))), "subspace"),
        (lambda: trainer_of(dp_comp_gd("l1:5"), zero_model(), sampler=Poisson(0.1)), "sampler"),
        (lambda: trainer_of(comp_gd("l1:5"), zero_model(), target_epsilon=1.0), "target_epsilon"),
        (lambda: trainer_of(comp_gd("l1:5"), zero_model(), noise_multiplier=1.0), "noise_multiplier"),
        (lambda: trainer_of(comp_gd(NuclearBall(1.0, 7)), zero_model()), "rows"),
        (lambda: ConstrainedDescent(L2Ball(1.0), accuracy=0.0), "accuracy"),
    ],
)
def test_bad_settings_are_refused_by_name(make, named):
    with pytest.raises(SettingError, match=named):
        make()


def test_only_a_plain_sgd_can_take_a_constrained_step():
    model = zero_model()
    for optimizer in (torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)):
        with pytest.raises(SettingError, match="optimizer"):
            ConstrainedDescent(L1Ball(1.0)).prepare(model, optimizer)


def test_losses_of_one_score_are_those_of_two():
    torch.manual_seed(0)
    score, y = torch.randn(50, 1, dtype=D), torch.randint(0, 2, (50,))
    two = torch.cat([torch.zeros_like(score), score], 1)
    torch.testing.assert_close(logistic(score, y), logistic(two, y))
    torch.testing.assert_close(hinge(score, y), hinge(two, y))
    far = huber(torch.tensor([[5.0], [0.5]]), torch.tensor([0.0, 0.0]))
    torch.testing.assert_close(far, torch.tensor([4.5, 0.125]))
    assert float(huber(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))) == 0.0
    assert set(LOSSES) == {"cross-entropy", "hinge", "huber"}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_command_line_trains_with_every_loss(loss, tmp_path, capsys):
    flags = [
        "--data",
        "digits",
        "--method",
        "dp-comp-gd",
        "--constraint",
        "l1:50",
        "--sketch-dimension",
        "60",
        "--epochs",
        "15",
    ]
    out = tmp_path / "run"
    assert main(["train", *flags, "--lr", "5", "--loss", loss, "--quiet", "--out", str(out)]) == 0
    text = (out / "statement.txt").read_text()
    assert "full batch" in text
    assert "Gaussian sketch, 60 directions, projected before clipping" in text
    assert "average of the iterates" in text
    assert float(re.search(r"accuracy +([\d.]+)", capsys.readouterr().out)[1]) > 30


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--method", "dp-comp-gd"], "constraint = None"),
        (["--method", "dp-comp-gd", "--constraint", "l1"], "l1:RADIUS"),
        (["--method", "dp-sgd", "--constraint", "l1:5"], "only, not to dp-sgd"),
        (["--method", "comp-gd", "--constraint", "l1:5", "--target-epsilon", "1"], "adds no noise"),
        (["--method", "comp-gd", "--constraint", "l1:5", "--max-grad-norm", "3"], "does not clip"),
        (["--method", "dp-comp-gd", "--constraint", "l1:5", "--sampler", "poisson"], "the full batch"),
        (["--method", "dp-comp-gd", "--constraint", "l1:5", "--optimizer", "adam"], "optimizer"),
    ],
)
def test_the_command_line_refuses_with_a_reason(flags, said, tmp_path, capsys):
    assert main(["train", "--data", "digits", *flags, "--quiet", "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


def test_the_command_line_says_that_comp_sgd_is_not_private(tmp_path, capsys):
    flags = [
        "--method",
        "comp-sgd",
        "--constraint",
        "l1:20",
        "--sketch-dimension",
        "30",
        "--epochs",
        "0.02",
        "--lr-schedule",
        "inverse-sqrt",
    ]
    assert main(["train", "--data", "digits", *flags, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert "NO GUARANTEE" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "statement.json").read_text())["epsilon"] is None
    assert GaussianSketch(30).name in (tmp_path / "run" / "statement.txt").read_text()
