"""The Trainer: what it releases, counts, refuses and stops at."""

from __future__ import annotations

import functools
import json
import math
import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import gnomon
from gnomon.accounting import FullBatch, Poisson, Shuffled, TruncatedPoisson, epsilon
from gnomon.clipping import Automatic, PerLayer
from gnomon.errors import SettingError, StateError
from gnomon.ledger import Ledger
from gnomon.release import SecureNoise, SeededNoise
from gnomon.training import BudgetExhausted, evaluate
from tests import helpers
from tests.helpers import LOSS, data

trainer = functools.partial(helpers.trainer, max_grad_norm=0.5, sample_rate=0.5)


def weights(t: gnomon.Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in t.model.parameters()])


def test_a_noiseless_full_batch_step_is_the_clipped_mean_gradient():
    x, y = data(20)
    t = trainer(sample_rate=1.0, expected_batch_size=20, noise_multiplier=0.0, steps=1, max_grad_norm=0.3)
    before = weights(t)
    rows = []
    for i in range(20):
        loss = LOSS(t.model(x[i : i + 1]), y[i : i + 1]).sum()
        row = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(t.model.parameters()))])
        rows.append(row * min(1.0, 0.3 / float(row.norm())))
    t.fit((x, y))
    torch.testing.assert_close(weights(t), before - torch.stack(rows).sum(0) / 20)


def test_epsilon_is_that_of_the_steps_taken():
    t = trainer()
    assert t.epsilon() == 0
    t.fit(data())
    assert t.epsilon() == epsilon(noise_multiplier=1.0, sample_rate=0.5, steps=4, delta=1e-3)


@pytest.mark.parametrize("how", [{"target_epsilon": 1.0, "noise_multiplier": None}, {"noise_multiplier": 3.0}])
def test_the_history_never_shows_more_than_the_run_will_cost_and_ends_with_that(how):
    t = trainer(steps=40, target_delta=1e-5, **how)
    result = t.fit(data())
    shown = [row["epsilon"] for row in result.history]
    assert shown[-1] == float(result.epsilon)
    assert max(shown) == shown[-1] <= how.get("target_epsilon", math.inf)
    assert shown == sorted(shown)
    assert t.account.estimate(1e-5) > shown[-1], "or this shows nothing"


def test_noise_multiplier_zero_reports_an_infinite_epsilon_and_no_guarantee():
    t = trainer(noise_multiplier=0.0)
    t.fit(data())
    assert t.epsilon() == math.inf
    assert not t.statement().guarantee
    assert json.loads(t.statement().json())["epsilon"] is None
    assert "NO GUARANTEE" in t.statement().text()


def test_seeded_noise_is_stamped_as_not_private_and_repeats():
    first, second = trainer(noise=SeededNoise(3)), trainer(noise=SeededNoise(3))
    first.fit(data())
    second.fit(data())
    assert torch.equal(weights(first), weights(second))
    assert not first.statement().guarantee
    assert "seeded noise" in first.statement().text()


def test_secure_noise_does_not_repeat_whatever_the_seeds():
    runs = []
    for _ in range(2):
        t = trainer(noise=SecureNoise())
        t.fit(data())
        runs.append(weights(t))
    assert not torch.equal(*runs)


def test_target_epsilon_is_met_and_used():
    t = trainer(noise_multiplier=None, target_epsilon=2.0, steps=10)
    t.fit(data())
    assert 1.95 < t.epsilon() <= 2.0


def test_training_stops_before_a_step_it_cannot_pay():
    t = trainer(noise_multiplier=1.0, target_epsilon=3.0, steps=500)
    result = t.fit(data())
    assert result.stopped == "budget"
    assert 0 < result.steps < 500
    assert t.epsilon() <= 3.0
    one_more = epsilon(noise_multiplier=1.0, sample_rate=0.5, steps=result.steps + 1, delta=1e-3)
    assert one_more > 3.0


def test_a_loop_of_ones_own_ends_with_the_plan():
    t = trainer()
    for inputs, targets in t.batches(data()):
        found = t.step(inputs, targets)
        assert {"unprotected/loss", "unprotected/clipped", "unprotected/batch"} <= set(found)
        assert all(name.startswith("unprotected/") for name in found)
    assert t.account.steps == 4


def test_a_step_without_a_drawn_batch_is_refused():
    t = trainer()
    x, y = data()
    with pytest.raises(RuntimeError, match=r"trainer\.batches"):
        t.step(x, y)
    assert t.account.steps == 0


def test_no_more_batches_are_drawn_than_the_budget_pays_for():
    t = trainer(noise_multiplier=None, target_epsilon=2.0, steps=2)
    batches = list(t.batches(data()))
    assert len(batches) == 2
    for inputs, targets in batches:
        t.step(inputs, targets)
    assert list(t.batches(data())) == []
    with pytest.raises(BudgetExhausted, match="2 steps"):
        t._step([data()])
    assert t.account.steps == 2


def test_empty_batches_are_noise_and_are_counted():
    t = trainer(sample_rate=1e-9, expected_batch_size=1e-9 * 60, steps=3)
    before = weights(t)
    result = t.fit(data())
    assert result.steps == 3
    assert not torch.equal(weights(t), before)


def test_physical_batches_change_nothing_but_memory():
    runs = []
    for size in (None, 7, 1):
        torch.manual_seed(0)
        t = trainer(nn.Linear(4, 2).double(), noise=SeededNoise(5), max_physical_batch_size=size)
        x, y = data()
        t.fit((x.double(), y))
        runs.append(weights(t))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(runs[0], runs[2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_non_finite_sample_equals_a_removed_one(bad):
    x, y = data(20)
    spoiled = x.clone()
    spoiled[7, 2] = bad
    runs = []
    for inputs, targets in (
        (spoiled, y),
        (torch.cat([x[:7], x[8:]]), torch.cat([y[:7], y[8:]])),
    ):
        t = trainer(sampler=FullBatch(), sample_rate=None, noise=SeededNoise(0), expected_batch_size=20, steps=2)
        t.fit((inputs, targets))
        runs.append(weights(t))
    assert torch.isfinite(runs[0]).all()
    if not math.isfinite(bad):
        torch.testing.assert_close(*runs)


def test_samples_that_are_not_finite_are_told_to_the_data_holder_and_are_no_clipped_ones():
    x, y = data(20)
    spoiled = x.clone()
    spoiled[[3, 7], 2] = torch.tensor([math.nan, math.inf])
    keep = [i for i in range(20) if i not in (3, 7)]
    found = []
    for inputs, targets in ((spoiled, y), (x[keep], y[keep])):
        t = trainer(sampler=FullBatch(), sample_rate=None, noise=SeededNoise(0), max_grad_norm=1e6, steps=1)
        found.append(t.fit((inputs, targets)).history[0])
    assert [one["unprotected/left_out"] for one in found] == [0.1, 0.0]
    assert [one["unprotected/batch"] for one in found] == [20, 18]
    assert [one["unprotected/clipped"] for one in found] == [0.0, 0.0]
    assert found[0]["unprotected/loss"] == pytest.approx(found[1]["unprotected/loss"])


def test_a_record_that_is_left_out_equals_one_that_is_not_finite_and_is_drawn_and_paid_for_all_the_same(tmp_path):
    x, y = data()
    spoiled = x.clone()
    spoiled[[3, 40]] = math.nan
    public = x[[3, 40]].double(), torch.zeros(2)  # known by their inputs
    left, same = (trainer(leave_out=those, noise=SeededNoise(0), steps=20) for those in (public, None))
    left.fit((x, y))
    same.fit((spoiled, y))
    torch.testing.assert_close(weights(left), weights(same))
    assert left.admission.left_out == 2
    nobody, none = (trainer(leave_out=those, noise=SeededNoise(0)) for those in ((x, y), None))
    nobody.fit((x, y))
    none.fit((torch.full_like(x, math.nan), y))
    torch.testing.assert_close(weights(nobody), weights(none))
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for leave_out in (None, public, (x, y)):
        trainer(leave_out=leave_out, ledger=ledger).fit((x, y))
    assert len(ledger.state().datasets) == 1
    assert {run.reserved for run in ledger.state().runs.values()} == {4}
    ledger.close()


def test_public_records_that_are_not_left_out_are_refused_still():
    x, y = data()
    method = gnomon.methods.pcdp((x[:8], y[:8]), rank=2)
    with pytest.raises(ValueError, match="4 of 8 public records"):
        trainer(method=method, leave_out=(x[:4], y[:4])).fit((x, y))


def test_the_divisor_is_the_declared_one_whatever_the_number_of_records():
    moved = []
    for n in (20, 40):
        x, y = data(n)
        t = trainer(sampler=FullBatch(), sample_rate=None, noise_multiplier=0.0, expected_batch_size=10, steps=1)
        before = weights(t)
        t.fit((x[:20].repeat(n // 20, 1), y[:20].repeat(n // 20)))
        moved.append(weights(t) - before)
    torch.testing.assert_close(2 * moved[0], moved[1])


@pytest.mark.parametrize(
    "sampler",
    [Poisson(0.3), TruncatedPoisson(0.3, 30, 60), FullBatch(), Shuffled(3)],
    ids=["poisson", "truncated", "full", "shuffled"],
)
def test_every_sampler_trains_and_is_named_in_the_statement(sampler):
    t = trainer(sampler=sampler, sample_rate=None)
    t.fit(data())
    assert t.statement().sampler == sampler.name
    assert t.account.steps == 4


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_any_optimizer_and_scheduler_work(optimizer):
    model = nn.Linear(4, 2)
    made = optimizer(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5)
    t = trainer(model, optimizer=made, scheduler=scheduler, scheduler_every="step")
    t.fit(data())
    assert made.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)


def test_the_moving_average_follows_the_weights():
    t = trainer(ema_decay=0.5)
    before = weights(t)
    t.fit(data())
    averaged = torch.cat([p.detach().flatten() for p in t.average.module.parameters()])
    assert not torch.equal(averaged, weights(t))
    assert (averaged - weights(t)).norm() < (before - weights(t)).norm()


def test_the_moving_average_may_warm_up():
    t = trainer(ema_decay=0.9999, ema_schedule="warm-up")
    expected, rates = weights(t), [1 / 1, 9 / 11, 9 / 12, 9 / 13]  # the first step replaces the initial weights
    for step, (batch, rate) in enumerate(zip(t.batches(data()), rates, strict=True)):
        t.step(*batch)
        expected = expected + rate * (weights(t) - expected)
        assert int(t.average.n_averaged) == step + 1
    averaged = torch.cat([p.detach().flatten() for p in t.average.module.parameters()])
    torch.testing.assert_close(averaged, expected)


def test_a_schedule_of_the_moving_average_needs_an_average():
    with pytest.raises(SettingError, match="ema_schedule = 'warm-up' is invalid; expected constant without ema_decay"):
        trainer(ema_schedule="warm-up")
    with pytest.raises(SettingError, match="ema_schedule = 'fast' is invalid; expected one of constant, warm-up"):
        trainer(ema_decay=0.9, ema_schedule="fast")


@pytest.mark.parametrize("clip", [Automatic(), PerLayer()])
def test_clip_rules_are_chosen_by_the_method(clip):
    t = trainer(method=gnomon.methods.dp_sgd(clip=clip))
    t.fit(data())
    assert clip.name in t.statement().method


class Pairs(Dataset):
    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int):
        return self.x[i], int(self.y[i])


def test_any_dataset_gives_what_tensors_give():
    one, two = trainer(noise=SeededNoise(2)), trainer(noise=SeededNoise(2))
    one.fit(data())
    two.fit(Pairs())
    torch.testing.assert_close(weights(one), weights(two))


def test_gradients_do_not_stay_on_parameters():
    t = trainer()
    t.fit(data())
    assert all(p.grad is None for p in t.model.parameters())


def test_a_model_is_scored_every_few_epochs_and_at_the_end():
    t = trainer(steps=10)  # two steps an epoch
    history = t.fit(data(), (data()[0] + 1, data()[1]), evaluate_every=2).history
    assert ["validation/accuracy" in row for row in history] == [False, True, False, True, True]
    with pytest.raises(SettingError, match="evaluate_every"):
        trainer().fit(data(), data(), evaluate_every=0)


def test_scores_of_training_records_are_marked_as_unprotected():
    x, y = data()
    for validation in ((x, y), (x[5:9].clone(), y[5:9]), (torch.cat([x[:4], x[:1] + 1]), y[:5])):
        t = trainer(steps=4)
        last = t.fit((x, y), validation).history[-1]
        assert {"unprotected/validation/accuracy", "unprotected/validation/loss"} <= set(last)
        assert not any(key.startswith("validation/") for key in last)
        assert any("NOT protected" in note for note in t.statement().caveats)
    other = trainer(steps=4)
    assert "validation/accuracy" in other.fit((x, y), (torch.cat([x[:4], x + 1]), torch.cat([y[:4], y]))).history[-1]
    assert not any("Scores" in note for note in other.statement().caveats)


def test_other_people_with_the_same_few_features_are_no_training_records():
    x = torch.randint(0, 2, (400, 4), generator=torch.Generator().manual_seed(0)).float()
    y = (x.sum(1) > 2).long()
    for kept in (slice(300), slice(0, None, 2)):
        held = slice(300, None) if kept.step is None else slice(1, None, 2)
        t = trainer(steps=4)
        assert "validation/accuracy" in t.fit((x[kept], y[kept]), (x[held], y[held])).history[-1]
        assert not any("Scores" in note for note in t.statement().caveats)


def test_scores_of_training_records_are_not_forgotten_by_a_later_fit():
    x, y = data()
    t = trainer(steps=4)
    t.fit((x, y), (x, y), on_epoch=lambda record: os.kill(os.getpid(), signal.SIGINT))
    assert "validation/accuracy" in t.fit((x, y), (x + 1, y)).history[-1]
    assert any("Scores" in note for note in t.statement().caveats)


def test_history_has_epsilon_and_validation_and_marks_what_is_unprotected():
    t = trainer(steps=4)
    result = t.fit(data(), validation=(data(10)[0] + 1, data(10)[1]))
    assert len(result.history) == 2
    assert {"step", "epoch", "epsilon", "seconds", "validation/accuracy", "validation/loss"} <= set(result.history[0])
    assert result.history[-1]["epsilon"] == pytest.approx(float(result.epsilon), rel=0.05)
    private = [k for k in result.history[0] if "loss" in k or "clipped" in k]
    assert all(k.startswith(("unprotected/", "validation/")) for k in private)


def test_ctrl_c_stops_between_steps_and_keeps_what_was_done():
    t = trainer(steps=50)
    result = t.fit(data(), on_epoch=lambda record: os.kill(os.getpid(), signal.SIGINT))
    assert result.stopped == "interrupted"
    assert 0 < result.steps < 50
    assert t.epsilon() == epsilon(noise_multiplier=1.0, sample_rate=0.5, steps=result.steps, delta=1e-3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_shuffled_epoch_that_was_interrupted_goes_on_where_it_stopped():
    seen: list[torch.Tensor] = []
    t = trainer(sampler=Shuffled(6), sample_rate=None, steps=6)
    x, y = data()
    numbered = torch.cat([x, torch.arange(60.0)[:, None]], 1)[:, 1:]  # the last column tells the record
    for count in (2, 4):
        for inputs, targets in t.batches((numbered, y)):
            t.step(inputs, targets)
            seen.append(inputs[:, -1])
            if len(seen) == count:
                break
        if count == 2:
            assert t.account.steps == 2
    for inputs, targets in t.batches((numbered, y)):
        t.step(inputs, targets)
        seen.append(inputs[:, -1])
    assert sorted(torch.cat(seen).tolist()) == list(range(60))


def test_one_trainer_accounts_for_one_data_set():
    t = trainer()
    t.fit(data())
    with pytest.raises(StateError, match="one data set"):
        t.fit(data(40))


BAD = [
    ("sample_rate", 0.0),
    ("sample_rate", 1.5),
    ("sample_rate", math.nan),
    ("target_delta", 0.0),
    ("target_delta", 1.0),
    ("target_delta", math.nan),
    ("noise_multiplier", -1.0),
    ("noise_multiplier", math.nan),
    ("noise_multiplier", math.inf),
    ("max_grad_norm", 0.0),
    ("max_grad_norm", math.inf),
    ("max_grad_norm", math.nan),
    ("expected_batch_size", 0),
    ("expected_batch_size", math.nan),
    ("target_epsilon", math.nan),
    ("target_epsilon", -1.0),
    ("steps", 0),
    ("steps", 2.5),
    ("max_physical_batch_size", 0),
    ("ema_decay", 1.0),
    ("scheduler_every", "week"),
    ("accountant", "guess"),
    ("adjacency", "neighbourly"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_settings_are_refused_by_name_value_and_remedy(name, value):
    with pytest.raises(SettingError) as error:
        trainer(**{name: value})
    assert name in str(error.value)
    assert repr(value) in str(error.value)
    assert "expected" in str(error.value)


def test_an_unreachable_target_is_refused():
    with pytest.raises(SettingError, match="target_epsilon"):
        trainer(noise_multiplier=None, target_epsilon=1e-9, target_delta=1e-9)
    with pytest.raises(SettingError, match="one step already costs more"):
        trainer(noise_multiplier=0.5, target_epsilon=0.01)


def test_a_delta_of_one_over_n_is_warned_of():
    with pytest.warns(UserWarning, match="target_delta"):
        trainer(target_delta=1 / 60)


def test_neither_or_both_of_two_alternatives_are_refused():
    for settings in (
        {"noise_multiplier": None},
        {"steps": None},
        {"epochs": 3},
        {"sample_rate": None},
        {"sampler": Poisson(0.5)},
    ):
        with pytest.raises(SettingError):
            trainer(**settings)


def test_empty_data_is_refused():
    with pytest.raises(ValueError, match="train is empty"):
        trainer().fit((torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)))


def test_unreadable_data_is_refused():
    with pytest.raises(TypeError, match="torch Dataset"):
        trainer().fit(iter([1, 2, 3]))
    with pytest.raises(ValueError, match=r"different lengths \(.*give one target for each input"):
        trainer().fit((torch.zeros(3, 4), torch.zeros(2, dtype=torch.long)))


def test_a_mean_reduced_loss_is_converted_with_a_warning_not_mis_scaled():
    with pytest.warns(UserWarning, match="reduction='none'"):
        converted = trainer(loss=nn.CrossEntropyLoss(), noise=SeededNoise(0))
    plain = trainer(noise=SeededNoise(0))
    converted.fit(data())
    plain.fit(data())
    assert torch.equal(weights(converted), weights(plain))


def test_evaluate_converts_a_loss_that_reduces_and_refuses_one_that_it_cannot():
    model, x = nn.Linear(3, 2), torch.randn(200, 3)
    y = (x[:, 0] > 0).long()
    plain = evaluate(model, nn.CrossEntropyLoss(reduction="none"), (x, y))
    with pytest.warns(UserWarning, match="reduction='none'"):
        assert evaluate(model, nn.CrossEntropyLoss(), (x, y)) == plain
    with pytest.raises(ValueError, match="one value per sample"):
        evaluate(model, lambda outputs, targets: nn.functional.cross_entropy(outputs, targets), (x, y))


@pytest.mark.parametrize("own", [False, True], ids=["fit", "own loop"])
def test_a_scheduler_by_epoch_moves_once_an_epoch_in_fit_and_in_a_loop_of_ones_own(own):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    t = gnomon.Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), optimizer,
        sample_rate=0.25, expected_batch_size=10, noise_multiplier=1.0, target_delta=1e-3, steps=10,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), progress=False,
    )  # fmt: skip
    data = torch.randn(40, 4), torch.arange(40) % 2
    if own:
        for batch in t.batches(data):
            t.step(*batch)
    else:
        t.fit(data)
    assert t.account.steps == 10
    assert optimizer.param_groups[0]["lr"] == 0.25  # two whole epochs of four steps


def test_validation_items_that_are_no_pairs_are_named_before_anything_is_spent():
    model = nn.Linear(4, 2)
    t = gnomon.Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=1.0),
        sample_rate=0.25, expected_batch_size=10, noise_multiplier=1.0, target_delta=1e-3, steps=10, progress=False,
    )  # fmt: skip
    x, y = torch.randn(40, 4), torch.arange(40) % 2
    with pytest.raises(TypeError, match="items of validation"):
        t.fit((x, y), validation=torch.utils.data.TensorDataset(x, y, y))
    assert t.account.steps == 0


def test_a_small_epsilon_is_not_written_as_zero():
    t = trainer(steps=4, noise_multiplier=5e4, target_delta=1e-9)
    t.fit(data())
    assert 0 < t.epsilon() < 5e-4
    assert "epsilon = 0.000" not in t.statement().text()
