"""A Trainer used in unusual ways: nothing leaves without noise, and nothing is left uncounted."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from gnomon import Trainer, methods
from gnomon.accounting import Account, FixedSize, FullBatch, Poisson, Shuffled, TruncatedPoisson, composed
from gnomon.errors import SettingError, StateError
from gnomon.ledger import Ledger, LedgerError
from gnomon.release import SecureNoise, SeededNoise
from gnomon.training import NotPrivate, read_checkpoint, restore_checkpoint, save_checkpoint

LOSS = nn.CrossEntropyLoss(reduction="none")


def records(seed: int = 0, n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def trainer(model: nn.Module | None = None, **settings: Any) -> Trainer:
    model = model or nn.Linear(3, 2)
    usual: dict[str, Any] = {
        "expected_batch_size": 4, "noise_multiplier": 1.0, "target_delta": 1e-3, "steps": 10, "progress": False,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "noise": SeededNoise(0),
    }  # fmt: skip
    if "sampler" not in settings:
        usual["sample_rate"] = 0.1
    usual |= settings
    return Trainer(model, LOSS, usual.pop("optimizer"), **usual)


# -- what people have ------------------------------------------------------------------------------


X, Y = records()


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ((X.double(), Y), r"train and model.*shape \(batch, 3\), float64.*weights are float32; use inputs.float\(\)"),
        ((X.double().numpy(), Y.numpy()), r"float64.*use inputs.float\(\)"),
        ((X, Y.int()), r"the targets of train, which have type int32.*pass targets.long\(\)"),
        ((X, Y.float()), r"the targets of train, which have type float32.*pass targets.long\(\)"),
        (DataLoader(TensorDataset(X, Y), batch_size=4), "give loader.dataset"),
    ],
)
def test_records_of_another_kind_are_named_with_their_remedy_and_cost_nothing(train, words):
    one = trainer()
    with pytest.raises((ValueError, TypeError), match=words):
        one.fit(train)
    assert one.account.steps == 0


def test_small_whole_numbers_are_targets_where_the_loss_takes_them():
    model = nn.Linear(3, 1)
    loss = lambda outputs, targets: (outputs.squeeze(1) - targets).square()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    more = {"sample_rate": 0.1, "expected_batch_size": 4, "noise_multiplier": 1.0, "target_delta": 1e-3, "steps": 2}
    assert Trainer(model, loss, optimizer, progress=False, **more).fit((X, Y.int())).steps == 2


# -- nothing leaves without noise ------------------------------------------------------------------


def test_a_layer_that_was_replaced_is_noticed_before_anything_is_spent():
    one = trainer(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    one.model[2] = nn.Linear(4, 2)
    with pytest.raises(RuntimeError, match="replaced"):
        one.fit(records())
    assert one.account.steps == 0


def test_another_method_brings_its_own_basis():
    one = trainer(steps=4)
    batches = one.batches(records())
    one.step(*next(batches))
    one.method = methods.rsdp(rate=0.9)
    before = torch.cat([p.detach().flatten().clone() for p in one.model.parameters()])
    one.step(*next(batches))
    after = torch.cat([p.detach().flatten() for p in one.model.parameters()])
    assert 0 < int((before != after).sum()) < 8  # of 8 weights


@pytest.mark.parametrize("sampler", [FixedSize(50), TruncatedPoisson(0.1, 10, 20)])
def test_a_sampler_that_does_not_fit_the_data_is_named_before_the_run_is_entered(tmp_path, sampler):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    one = trainer(sampler=sampler, ledger=ledger, noise=SecureNoise())
    for attempt in (one.check, one.fit, one.fit, lambda data: next(one.batches(data))):
        with pytest.raises(SettingError, match="40 records"):
            attempt(records())
    assert not ledger.state().runs


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_frozen_table_that_looking_up_changes_is_refused(kind):
    table = kind(50, 4, max_norm=0.5).requires_grad_(False)
    with pytest.raises(NotPrivate, match="max_norm"):
        trainer(nn.Sequential(table, nn.Flatten(), nn.Linear(4, 2)))


class Counts(nn.Module):
    """Adds up what it sees, in a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen += x.detach().sum(0)
        return self.last(x)


def test_a_forward_pass_that_writes_into_a_frozen_parameter_is_refused_and_undone():
    model = Counts()
    with pytest.raises(NotPrivate, match="parameter 'seen'"):
        trainer(model).fit(records())
    assert not model.seen.any()


def test_what_a_backward_pass_left_behind_does_not_move_frozen_layers():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    x, y = records()
    LOSS(model(x), y).sum().backward()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    trainer(model).fit((x, y))
    assert torch.equal(model[0].weight, before)


def test_what_a_backward_pass_left_behind_does_not_move_a_constrained_model():
    model = nn.Linear(3, 2, bias=False)
    held = methods.dp_comp_gd("l1:0.001", sketch=None)
    one = trainer(model, method=held, sampler=FullBatch(), expected_batch_size=40)
    x, y = records()
    LOSS(model(x), y).sum().backward()
    one.fit((x, y))
    assert float(model.weight.detach().abs().sum()) <= 0.0011


class Late(nn.Module):
    """Begins to remember its inputs after the check."""

    def __init__(self, write) -> None:
        super().__init__()
        self.layer, self.write, self.late = nn.Linear(3, 2), write, False
        self.register_buffer("memory", torch.zeros(3))
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x):
        if self.late:
            self.write(self, x.detach())
        return self.layer(x)


@pytest.mark.parametrize(
    "write",
    [
        lambda m, x: m.memory.copy_(x.sum(0)),
        lambda m, x: setattr(m, "memory", x.sum(0)),
        lambda m, x: m.memory.data.copy_(x.sum(0)),
        lambda m, x: m.memory.add_(1),
        lambda m, x: m.register_buffer("new", x.sum(0)),
        lambda m, x: m.frozen.copy_(x.sum(0)),
        lambda m, x: m.frozen.data.copy_(x.sum(0)),
        lambda m, x: m.layer.weight.data.add_(x.sum(0)),
    ],
    ids=["in place", "another", "behind the version", "counter", "new", "frozen", "frozen, behind it", "weight"],
)
def test_what_a_step_writes_into_the_model_is_refused_before_its_release(write):
    one = trainer(Late(write), sample_rate=0.9)
    batches = one.batches(records())
    one.step(*next(batches))
    one.model.late = True
    weights = one.model.layer.weight.detach().clone()
    with pytest.raises(NotPrivate, match=r"memory|new|frozen|weight"):
        one.step(*next(batches))
    assert one.account.steps == 1
    assert torch.equal(weights, one.model.layer.weight)
    assert one.model.memory.tolist() == one.model.frozen.tolist() == [0, 0, 0]


def test_what_a_step_writes_into_a_large_parameter_behind_its_version_is_refused():
    one = trainer(Late(lambda m, x: m.large.data[5].add_(x[0, 0])), sample_rate=0.9)
    one.model.large = nn.Parameter(torch.randn(2**14 + 1), requires_grad=False)
    batches = one.batches(records())
    one.step(*next(batches))
    one.model.late = True
    with pytest.raises(NotPrivate, match="large"):
        one.step(*next(batches))


def test_a_parameter_that_is_not_a_number_is_no_reason_to_stop():
    one = trainer(Late(lambda m, x: None))
    one.model.frozen.data.fill_(math.nan)
    assert one.fit(records()).steps == 10


def test_a_part_of_the_model_called_loss_and_the_loss_are_two():
    class Own(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))

    model = Own()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([3.0, 4.0]), reduction="none")
    one = Trainer(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1), sample_rate=0.1, expected_batch_size=4,
        noise_multiplier=1.0, target_delta=1e-3, steps=3, progress=False,
    )  # fmt: skip
    assert one.fit(records()).steps == 3
    assert model.loss.weight.tolist() == [1, 2]
    assert loss.weight.tolist() == [3, 4]


def test_a_loss_that_fails_for_another_reason_than_the_type_of_targets_says_its_own():
    model = nn.Linear(3, 1)
    one = Trainer(
        model, lambda outputs, targets: nn.functional.binary_cross_entropy(outputs[:, 0], targets, reduction="none"),
        torch.optim.SGD(model.parameters(), lr=0.1), sample_rate=0.1, expected_batch_size=4, noise_multiplier=1.0,
        target_delta=1e-3, steps=3, progress=False,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        one.fit((10 * X, Y.float()))


class Packed(nn.Module):
    """Sequences with their lengths, as recurrent layers of torch like them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 2, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.lstm(packed)[1][0][0]


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 2)), torch.full((40, 2), 12),
         r"int64.*outside a table of the model such as nn.Embedding; use a larger table"),
        (Packed(), (torch.randn(40, 5, 3), torch.full((40,), 5)), "PackedSequence; use a tensor of padded sequences"),
    ],
    ids=["token", "packed"],
)  # fmt: skip
def test_inputs_that_a_layer_cannot_take_are_told_the_remedy(model, inputs, words):
    with pytest.raises(ValueError, match=words):
        trainer(model).fit((inputs, Y))


def test_a_buffer_that_is_written_to_and_stays_the_same_is_no_reason_to_stop():
    one = trainer(Late(lambda m, x: m.memory.copy_(m.memory.clone())))
    one.model.late = True
    assert one.fit(records()).steps == 10


def test_statistics_frozen_by_mode_stay_frozen_after_a_look_at_held_out_records():
    model = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(),
                          nn.Linear(3, 2))  # fmt: skip
    model.train()[1].eval()
    one = trainer(model, sample_rate=0.9)
    batches = one.batches(records())
    one.step(*next(batches))
    model.eval()
    model.train()  # thaws the statistics as well
    with pytest.raises(NotPrivate, match="running_mean"):
        one.step(*next(batches))
    assert model[1].running_mean.tolist() == [0]
    with pytest.raises(NotPrivate, match="running_mean"):  # another call looks again
        one.check(records())


def test_a_loss_that_begins_to_remember_is_refused_before_its_release():
    class Counting(nn.CrossEntropyLoss):
        late = False

        def forward(self, outputs, targets):
            if self.late:
                self.counts += torch.bincount(targets, minlength=2)
            return super().forward(outputs, targets)

    loss, model = Counting(reduction="none"), nn.Linear(3, 2)
    loss.register_buffer("counts", torch.zeros(2))
    one = Trainer(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1), sample_rate=0.9, expected_batch_size=4,
        noise_multiplier=1.0, target_delta=1e-3, steps=3, progress=False,
    )  # fmt: skip
    batches = one.batches(records())
    one.step(*next(batches))
    loss.late = True
    with pytest.raises(NotPrivate, match=r"loss\.counts"):
        one.step(*next(batches))


def test_what_is_exchanged_inside_a_loop_is_refused_until_it_was_checked():
    one = trainer(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    batches = one.batches(records())
    one.step(*next(batches))
    usual = one.loss, one.method, one.model[1]
    one.loss = lambda outputs, targets: LOSS(outputs - outputs.mean(0), targets)
    with pytest.raises(RuntimeError, match="the loss was replaced"):
        one.step(*next(batches))
    with pytest.raises(NotPrivate):
        one.batches(records()).__next__()
    one.loss, one.method = usual[0], methods.pcdp(public=records(), rank=2)
    with pytest.raises(RuntimeError, match="public records of method 'pcdp"):
        one.step(*next(batches))
    one.method, one.model[1] = usual[1], nn.Tanh()
    with pytest.raises(RuntimeError, match="a module of the model was replaced"):
        one.step(*next(batches))
    one.step(*next(one.batches(records())))
    assert one.account.steps == 2


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4, affine=False), nn.EmbeddingBag(4, 4, max_norm=1.0)])
def test_modules_put_in_after_the_check_are_looked_at(norm):
    one = trainer(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    one.check(records())
    one.model[1] = norm.requires_grad_(False)
    with pytest.raises(NotPrivate, match="module '1' is"):
        one.fit(records())


def test_freezing_and_thawing_between_steps_is_refused():
    one = trainer(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    batches = one.batches(records())
    one.step(*next(batches))
    one.model[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="frozen, unfrozen"):
        one.step(*next(batches))


def test_an_example_of_one_record_does_not_switch_the_check_off():
    class Mixing(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input - input.mean(0))

    x, y = records()
    one = trainer(Mixing(3, 2), example=(x[:1], y[:1]))
    with pytest.raises(NotPrivate):
        one.fit((x, y))


# -- nothing is left uncounted ---------------------------------------------------------------------


def uses(seen: list[torch.Tensor]) -> int:
    """How often the record that was used most often was used."""
    rows = torch.cat(seen)[:, 0]
    return int(torch.unique(rows, return_counts=True)[1].max())


def test_a_shuffled_epoch_that_an_error_cut_short_is_counted_as_begun():
    seen: list[torch.Tensor] = []
    one = trainer(sampler=Shuffled(10), steps=10)
    real, left = one._step, [4]

    def failing(physical: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError
        batch = list(physical)
        seen.extend(inputs for inputs, _ in batch)
        return real(batch)

    one._step = failing  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        one.fit(records())
    one.fit(records())
    assert one.account.steps == 10
    assert uses(seen) == one.account.sampler.uses(one.account.steps) == 1


def test_a_shuffled_batch_that_is_left_out_is_not_overlooked():
    one = trainer(sampler=Shuffled(10), steps=20)
    batches = one.batches(records())
    late = next(batches)
    one.step(*next(batches))
    assert one.account.steps == 2
    with pytest.raises(RuntimeError, match="a shuffled one before the next"):
        one.step(*late)
    one.fit(records())
    assert one.account.steps == 20, "19 releases and the batch that was left out"


def test_a_shuffled_epoch_is_not_begun_anew_by_handing_over_the_records_in_another_order():
    x, y = records()
    one = trainer(sampler=Shuffled(10), steps=20)
    first = one.batches((x, y))
    one.step(*next(first))
    one.step(*next(one.batches((x.clone(), y))))  # the same order goes on
    with pytest.raises(StateError, match="2 steps into a shuffled epoch of 10"):
        next(one.batches((x.flip(0), y.flip(0))))
    for _ in range(8):
        one.step(*next(first))
    second = one.batches((x.flip(0), y.flip(0)))  # an epoch may begin with any order
    one.step(*next(second))
    with pytest.raises(StateError, match="1 steps into"):
        next(first)
    assert one.account.steps == 11


def test_other_items_need_another_trainer_inside_a_shuffled_epoch():
    items = list(zip(*records(), strict=True))
    one = trainer(sampler=Shuffled(10), steps=20)
    one.step(*next(one.batches(Subset(items, range(40)))))
    with pytest.raises(StateError, match="make another Trainer"):
        next(one.batches(Subset(items, range(39, -1, -1))))


def test_other_records_need_another_trainer(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    one = trainer(ledger=ledger, noise=SecureNoise())
    one.step(*next(one.batches(records(0))))
    with pytest.raises(LedgerError, match="other records"):
        one.fit(records(1))
    x, y = records(0)
    more = torch.cat([x, torch.randn(1, 3)])[1:], y  # one has gone, one has come
    one.fit(more)
    assert len(ledger.state().datasets) == 2
    ledger.shut()


def test_a_restored_run_goes_on_with_its_own_records(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    first, second = (trainer(ledger=ledger, noise=SecureNoise(), steps=40) for _ in range(2))
    first.step(*next(first.batches(records(0))))
    save_checkpoint(first, tmp_path)
    restore_checkpoint(second, read_checkpoint(tmp_path), records(0))
    with pytest.raises(LedgerError, match="other records"):
        second.fit(records(1))
    ledger.shut()


def test_more_records_than_declared_are_refused_where_full_batches_are_accounted():
    sampler = TruncatedPoisson(0.1, max_batch_size=8, dataset_size=30)
    with pytest.raises(SettingError, match="at least the 40 records"):
        trainer(sampler=sampler).fit(records())
    trainer(sampler=TruncatedPoisson(0.1, max_batch_size=8, dataset_size=40)).fit(records())


def test_a_planned_run_keeps_its_price():
    one = trainer()
    for name, value in (("noise_multiplier", 9.0), ("sampler", Poisson(0.01)), ("adjacency", "zero-out")):
        with pytest.raises(AttributeError):
            setattr(one.account, name, value)
    with pytest.raises(AttributeError):
        one.account = Account(Poisson(0.1), 9.0)
    for owner in (one, one.engine):
        with pytest.raises(AttributeError):
            owner.mechanism = dataclasses.replace(one.mechanism, noise_multiplier=9.0)
    with pytest.raises(SettingError, match="noise"):
        one.noise = SecureNoise()
    with pytest.raises(SettingError, match="cost the same"):
        one.method = methods.comp_sgd("l1:5")
    one.method = methods.rsdp()


def test_an_adjacency_that_a_sampling_refuses_is_refused_in_a_sum_too():
    account = Account(Shuffled(10), 1.0)
    account.charge(10)
    with pytest.raises(SettingError, match="adjacency"):
        composed([account], 1e-5, "add-remove")


# -- what cannot work is said before anything is spent ---------------------------------------------


def test_optimizers_schedulers_and_validation_sets_that_cannot_work_are_named_first():
    model = nn.Linear(3, 2)
    with pytest.raises(SettingError, match="LBFGS"):
        trainer(model, optimizer=torch.optim.LBFGS(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SettingError, match="ReduceLROnPlateau"):
        trainer(model, optimizer=optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    one = trainer()
    with pytest.raises(TypeError, match="validation holds 1 things"):
        one.fit(records(), validation=(records()[0],))
    assert one.account.steps == 0


def test_a_large_delta_is_warned_of_for_every_sampling():
    for sampler in (Shuffled(10), FixedSize(4, 40), Poisson(0.1)):
        with pytest.warns(UserWarning, match="40"):
            trainer(sampler=sampler, target_delta=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer(sampler=sampler, target_delta=1e-3)


def test_an_average_bears_a_warm_up_from_zero():
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    held = methods.dp_comp_gd("l1:5", sketch=None)
    one = trainer(model, method=held, optimizer=optimizer, scheduler=warm, scheduler_every="step", sampler=FullBatch())
    one.fit(records())
    assert torch.isfinite(model.weight).all()


def test_a_sampler_of_one_s_own_is_named(tmp_path):
    class Own(Poisson):
        pass

    with pytest.raises(SettingError, match="Own"):
        Account(Own(0.1), 1.0).to_dict()
