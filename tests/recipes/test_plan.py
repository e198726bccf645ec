"""Recipes: formulas, the choice of features, and plans that train."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gnomon
from gnomon import DataError, SettingError
from gnomon.accounting import epsilon
from gnomon.data import Records, load, public_private
from gnomon.data.sources.columns import Column
from gnomon.features import Facts, Pretrained, WhitenedPatches
from gnomon.ledger import Ledger
from gnomon.recipes import RECIPES, Budget, best, check_public, choose, schedule
from gnomon.release import SeededNoise
from gnomon.sampling import FullBatch


@pytest.fixture(scope="module")
def digits():
    source = load("digits")
    return source, public_private(source.train, private=1300, public=100)


def plan_of(split, epsilon=1.0, **settings):
    given = {"shape": (1, 8, 8), "classes": 10, "records": 1300, "features": "scaled", "distortion": "strokes",
             "progress": False} | settings  # fmt: skip
    return best(split.public, target_epsilon=epsilon, **given)


def accuracy_of(trainer, plan, test):
    return gnomon.evaluate(trainer.final, trainer.loss, plan.records(test, private=False))["accuracy"]


# -- formulas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.01, 0.38, 1.0, 8.0])
def test_one_release_with_the_noise_of_a_budget_costs_the_budget(target):
    budget = Budget(10_000, target, 1e-5)
    spent = float(epsilon(noise_multiplier=budget.noise, sampler=FullBatch(), steps=1, delta=1e-5))
    assert spent <= target
    assert spent == pytest.approx(target, rel=1e-3)


def test_the_plan_of_a_schedule_costs_the_budget_whatever_the_number_of_steps(digits):
    _, split = digits
    for target in (0.1, 1.0, 20.0):
        plan = plan_of(split, target)
        mechanism = plan.mechanism(plan.model())
        assert float(mechanism.epsilon()) <= target
        assert mechanism.noise_multiplier == pytest.approx(plan.budget.noise * math.sqrt(plan.schedule.steps), rel=1e-3)


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("target", [0.001, 0.38, 8.0])
def test_noise_in_the_final_weights_does_not_depend_on_the_number_of_steps(start, target):
    budget = Budget(10_000, target, 1e-5)
    for step in (5.0, 50.0, 500.0):
        chosen = schedule(budget, step, clip=0.5, start=start)
        each = chosen.lr * chosen.max_grad_norm * budget.noise * math.sqrt(chosen.steps) / budget.records
        assert each * math.sqrt(chosen.steps) == pytest.approx(chosen.final_noise, rel=1e-3)


def test_a_public_start_is_spared_noise_where_the_budget_is_small():
    small, large = Budget(10_000, 0.01, 1e-5), Budget(10_000, 1.0, 1e-5)
    assert small.final_noise(start=True) < 0.2
    assert small.final_noise(start=False) == large.final_noise(start=False) < large.final_noise(start=True)


def test_more_records_or_budget_mean_more_directions_and_less_regularisation():
    small, large = Budget(10_000, 1.0, 1e-5), Budget(50_000, 3.0, 1e-5)
    assert small.signal < large.signal
    assert small.directions < large.directions
    assert small.lam > large.lam


@pytest.mark.parametrize(("name", "value"), [("records", 0), ("epsilon", -1.0), ("delta", 1.5)])
def test_a_budget_out_of_range_is_refused(name, value):
    with pytest.raises(SettingError):
        Budget(**{"records": 100, "epsilon": 1.0, "delta": 1e-5, name: value})


# -- the choice of features ---------------------------------------------------------------------------


def facts(shape, public=0, **more):
    """Return public facts with some public records of no content."""
    records = Records(torch.zeros(public, *shape), torch.zeros(public)) if public else None
    return Facts(shape, records, **more)


def test_features_follow_from_the_kind_of_data():
    assert choose("best", facts((1, 28, 28), 100)).features == "scattering+patches"
    assert choose("best", facts((1, 28, 28), 100), distortion="strokes").features == "scattering"
    assert choose("best", facts((1, 28, 28))).features == "scattering"
    assert choose("best", facts((1, 8, 8), 100)).features == "scattering"  # too small for patches
    assert choose("best", facts((3, 32, 32), 100)).features.startswith("patches")
    assert choose("best", facts((3, 32, 32))).features == "scattering"  # patches need public images
    assert choose("best", facts((30,), 100)).features == "scaled"
    assert choose("best", facts((80,), tokens=65)).features == "context"
    assert choose("best", facts((3,), columns={"age": Column(0)})).features == "binned"


def test_a_recipe_without_public_records_starts_from_zero():
    for choice in (choose("best", facts((1, 28, 28))), choose("no-public", facts((1, 28, 28), 100))):
        assert not choice.start
        assert not choice.whiten
        assert choice.copies == 1
    with pytest.raises(SettingError, match="no public records"):
        choose("cold", facts((1, 28, 28)))


def test_a_table_ignores_public_records_unless_the_user_chooses_the_features():
    table = facts((3,), 100, columns={"age": Column(0)})
    assert not choose("best", table).whiten
    assert choose("best", table, features="scaled").whiten


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(SettingError, match=", ".join(RECIPES)):
        choose("worst", facts((1, 28, 28)))


# -- plans --------------------------------------------------------------------------------------------


def test_the_recipe_beats_its_public_start_at_epsilon_one(digits):
    source, split = digits
    plan = plan_of(split, 1.0)
    start = gnomon.evaluate(plan.model(), plan.loss, plan.records(source.test, private=False))["accuracy"]
    scores = []
    for seed in range(3):
        trainer = gnomon.Trainer.from_recipe(plan, noise=SeededNoise(seed), progress=False)
        trainer.fit(plan.records(split.private))
        scores.append(accuracy_of(trainer, plan, source.test))
    assert sum(scores) / 3 > start


@pytest.mark.parametrize("target", [0.001, 0.03, 50.0])
def test_the_recipe_does_not_fall_below_its_public_start_at_extreme_budgets(digits, target):
    source, split = digits
    plan = plan_of(split, target)
    start = gnomon.evaluate(plan.model(), plan.loss, plan.records(source.test, private=False))["accuracy"]
    scores = []
    for seed in range(3):
        trainer = gnomon.Trainer.from_recipe(plan, noise=SeededNoise(seed), progress=False)
        trainer.fit(plan.records(split.private))
        scores.append(accuracy_of(trainer, plan, source.test))
    assert sum(scores) / 3 > start - 0.01


def test_features_of_digits_are_worth_more_than_their_pixels(digits):
    source, split = digits
    plan = plan_of(split, 1.0, features=None, distortion="strokes")
    assert plan.choice.features == "scattering"
    trainer = gnomon.Trainer.from_recipe(plan, noise=SeededNoise(0), progress=False)
    trainer.fit(plan.records(split.private))
    assert accuracy_of(trainer, plan, source.test) > 0.95  # DP-SGD has 90 %


def test_the_statement_names_the_map_and_where_its_statistics_came_from(digits):
    _, split = digits
    plan = plan_of(split, 1.0)
    trainer = gnomon.Trainer.from_recipe(plan, noise=SeededNoise(0), notes=["mine"], progress=False)
    caveats = " ".join(trainer.statement().caveats)
    assert "whitening by" in caveats
    assert "statistics of 100 public records" in caveats
    assert "NOT protected" in caveats
    assert "mine" in caveats


def test_features_and_raw_records_are_one_data_set_in_the_ledger(digits, tmp_path):
    _, split = digits
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for target in (0.5, 1.0):  # two whitenings, so the features differ
        plan = plan_of(split, target)
        trainer = gnomon.Trainer.from_recipe(plan, ledger=ledger, progress=False)
        trainer.fit(plan.records(split.private))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    raw = gnomon.Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1), sample_rate=0.1,
        expected_batch_size=130, noise_multiplier=5.0, target_delta=1e-5, steps=3, ledger=ledger, progress=False,
    )  # fmt: skip
    raw.fit(split.private)
    total = raw.ledger_session.total(1e-5)
    assert total is not None
    assert total.runs == 3


def test_bytes_and_numbers_are_one_data_set_in_the_ledger(digits, tmp_path):
    _, split = digits
    ledger = Ledger(tmp_path / "ledger.sqlite")
    pixels = (split.private.inputs * 16).round() * 15
    images = {"bytes": pixels.to(torch.uint8), "numbers": pixels / 255}
    for inputs in images.values():
        plan = plan_of(split, 1.0, recipe="no-public")
        trainer = gnomon.Trainer.from_recipe(plan, ledger=ledger, progress=False)
        trainer.fit(plan.records((inputs, split.private.targets)))
    assert trainer.ledger_session.total(1e-5).runs == 2


def test_public_records_among_the_private_ones_are_refused(digits):
    _, split = digits
    plan = plan_of(split)
    leaked = Records(
        torch.cat([split.private.inputs, split.public.inputs[:2]]),
        torch.cat([split.private.targets, split.public.targets[:2]]),
    )
    with pytest.raises(DataError, match="2 of 100 public records"):
        plan.records(leaked)


def test_a_users_own_network_takes_the_place_of_the_features(digits):
    source, split = digits
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten())
    features = Pretrained(network, name="a random network", trained_on="nothing", shape=(1, 8, 8))
    plan = plan_of(split, 3.0, features=features)
    trainer = gnomon.Trainer.from_recipe(plan, noise=SeededNoise(0), progress=False)
    trainer.fit(plan.records(split.private))
    assert accuracy_of(trainer, plan, source.test) > 0.8
    assert "a random network" in " ".join(trainer.statement().caveats)


def test_the_predictor_takes_inputs_as_they_are(digits):
    source, split = digits
    plan = plan_of(split, 3.0)
    trainer = gnomon.Trainer.from_recipe(plan, noise=SeededNoise(0), progress=False)
    trainer.fit(plan.records(split.private))
    predictor = plan.predictor(trainer.final)
    features = plan.records(source.test, private=False).inputs
    assert torch.allclose(predictor(source.test.inputs), trainer.final(features), atol=1e-2)  # features are float16


def test_every_reason_names_a_setting_and_its_value(digits):
    _, split = digits
    plan = plan_of(split)
    settings = {reason.setting for reason in plan.reasons}
    assert {"rho", "features", "whitening-directions", "whitening-lam", "epochs", "lr", "max-grad-norm"} <= settings
    assert all(reason.value and reason.why for reason in plan.reasons)
    assert len(plan.explain().splitlines()) == len(plan.reasons)


# -- bad public records -------------------------------------------------------------------------------


def test_ten_public_records_and_a_missing_class_are_warned_of(digits):
    _, split = digits
    few = Records(split.public.inputs[:10], split.public.targets[:10] % 9)
    warnings = check_public(few, (1, 8, 8), 10)
    assert any("10 public records are few" in text for text in warnings)
    assert any("no public record of class 9" in text for text in warnings)
    plan = best(few, shape=(1, 8, 8), classes=10, records=1300, target_epsilon=3.0, progress=False)
    assert plan.features.whitening.k == plan.features.whitening.rank == 199  # ten images, twenty copies of each
    assert plan.warnings == tuple(warnings)


@pytest.mark.parametrize(
    ("public", "problem"),
    [
        ((torch.rand(20, 1, 9, 9), torch.arange(20) % 10), r"shape \(1, 9, 9\)"),
        ((torch.rand(20, 1, 8, 8), torch.arange(20)), "class 10"),
        ((torch.rand(20, 1, 8, 8), torch.zeros(20).long()), "one class"),
        ((torch.rand(1, 1, 8, 8), torch.zeros(1).long()), "are 1"),
        ((torch.rand(20, 1, 8, 8), torch.arange(20) % 10 / 1.0), "type torch.float32"),
        ((torch.rand(20, 1, 8, 8), torch.eye(20).long()), r"shape \(20, 20\)"),
        ((torch.rand(20, 1, 8, 8), ["a"] * 20), "no numbers"),
        ((torch.full((20, 1, 8, 8), math.nan), torch.arange(20) % 10), "not finite in 20"),
        ((torch.ones(20, 1, 8, 8), torch.arange(20) % 10), "the same for every record"),
    ],
)
def test_public_records_that_do_not_fit_are_refused(public, problem):
    with pytest.raises(DataError, match=problem):
        best(public, shape=(1, 8, 8), classes=10, records=100, target_epsilon=1.0, progress=False)


def test_constant_public_images_are_refused_by_name():
    with pytest.raises(DataError, match="constant"):
        WhitenedPatches(torch.ones(100, 3, 32, 32))
    public = (torch.ones(100, 3, 32, 32), torch.arange(100) % 10)
    with pytest.raises(DataError, match="constant"):
        best(public, shape=(3, 32, 32), classes=10, records=100, target_epsilon=1.0, progress=False)


def test_a_private_record_with_nan_is_named_and_nothing_is_spent(digits):
    _, split = digits
    plan = plan_of(split)
    inputs = split.private.inputs.clone()
    inputs[7, 0, 0, 0] = math.nan
    with pytest.raises(DataError, match="record 7"):
        plan.records(Records(inputs, split.private.targets))


def test_fewer_records_than_directions_train(digits):
    source, split = digits
    plan = plan_of(split, 8.0, records=20)
    trainer = gnomon.Trainer.from_recipe(plan, noise=SeededNoise(0), progress=False)
    trainer.fit(plan.records(split.private[:20]))
    assert accuracy_of(trainer, plan, source.test) > 0.5
