"""Bad input, end to end: what a user can get wrong, and what happens then. The table is in docs/robustness.md."""

from __future__ import annotations

import functools
import math
import re
import time
import warnings

import pytest
import torch
from torch import nn

from gnomon.accounting import FullBatch, epsilon, noise_multiplier
from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.release import SeededNoise
from tests import helpers
from tests.helpers import LOSS, ROOT

data = functools.partial(helpers.data, count=40)
trainer = functools.partial(
    helpers.trainer, sampler=FullBatch(), expected_batch_size=40, noise_multiplier=30.0, target_delta=1e-5, steps=3
)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# -- records -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30, 3.4e38])
@pytest.mark.parametrize("share", [1, 20, 40])
def test_bad_pixels_leave_a_finite_model_however_many_records_have_them(bad, share):
    x, y = data()
    x[:share, 1] = bad
    t = trainer()
    result = t.fit((x, y))
    assert torch.isfinite(flat(t.model)).all()
    assert result.steps == 3


def test_a_label_out_of_range_is_an_error_before_anything_is_released(tmp_path):
    x, y = data()
    y[5] = 7
    ledger = Ledger(tmp_path / "ledger.sqlite")
    t = trainer(ledger=ledger)
    before = flat(t.model).clone()
    # ValueError if it is among the few records, drawn at random, on which the loss is tried first
    with pytest.raises((IndexError, RuntimeError, ValueError), match=r"7|bounds|outside"):
        t.fit((x, y))
    assert torch.equal(flat(t.model), before)
    assert t.account.steps == 0
    assert all(run.reserved == 0 for run in ledger.state().runs.values())


def test_one_class_trains():
    x, y = data()
    t = trainer()
    t.fit((x, y * 0))
    assert torch.isfinite(flat(t.model)).all()


@pytest.mark.parametrize(
    "wrong",
    [(torch.zeros(40, 3), torch.zeros(40).long()), (torch.zeros(40, 4), torch.zeros(39).long())],
    ids=["columns", "targets"],
)
def test_wrong_shapes_are_an_error_that_costs_nothing(wrong, tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    t = trainer(ledger=ledger)
    with pytest.raises((RuntimeError, ValueError), match=r"shape|agree|different lengths"):
        t.fit(wrong)
    assert t.account.steps == 0
    assert ledger.state().runs == {}


class Picky(nn.Module):
    """Fails on what a record holds, and says what that is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        if bool((x == 1234).any()):
            raise RuntimeError(f"cannot take {x.max().item()}")
        return self.layer(x)


def test_an_error_of_the_first_forward_pass_does_not_quote_a_record():
    with pytest.raises(ValueError, match="train and model do not fit together: the model Picky") as caught:
        trainer(Picky()).fit((torch.full((40, 4), 1234.0), torch.zeros(40).long()))
    assert "1234" not in str(caught.value)
    assert "RuntimeError; its text is withheld because it may quote a record" in str(caught.value)


def test_an_empty_data_set_is_refused_and_costs_nothing(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with pytest.raises(ValueError, match="train is empty"):
        trainer(ledger=ledger).fit((torch.zeros(0, 4), torch.zeros(0).long()))
    assert ledger.state().runs == {}


# -- parameters ----------------------------------------------------------------------------------------


class Partly(nn.Module):
    """One part unused, one frozen, one shared."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.shared.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 2)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.frozen(torch.tanh(self.again(torch.tanh(self.shared(x))))))


def test_unused_parameters_get_noise_alone_frozen_ones_nothing_and_shared_ones_their_whole_gradient():
    x, y = data()
    t = trainer(Partly(), noise=SeededNoise(0), noise_multiplier=1e-6, max_grad_norm=1e3, steps=1)
    model = t.model
    loss = LOSS(model(x), y).sum() / 40
    expected = torch.autograd.grad(loss, [model.shared.weight, model.head.weight])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    t.fit((x, y))
    moved = {name: before[name] - p.detach() for name, p in model.named_parameters()}
    torch.testing.assert_close(moved["shared.weight"], expected[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(moved["head.weight"], expected[1], rtol=1e-3, atol=1e-3)
    assert not moved["frozen.weight"].any()
    deviation = 1e-6 * 1e3 / 40
    assert 0.3 * deviation < float(moved["unused.weight"].std()) < 3 * deviation


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_gives_the_step_of_the_unreduced_one(reduction):
    ends = []
    for loss in (LOSS, nn.CrossEntropyLoss(reduction=reduction)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            t = trainer(loss=loss, noise=SeededNoise(0), max_grad_norm=0.3)
        t.fit(data())
        ends.append(flat(t.model))
    torch.testing.assert_close(*ends)


# -- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.5, 1 / 40])
def test_a_large_delta_is_warned_of_and_never_gives_a_negative_epsilon(delta):
    with pytest.warns(UserWarning, match="somebody's record outright"):
        t = trainer(target_delta=delta)
    t.fit(data())
    assert t.epsilon() >= 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("target_delta", 0.0), ("target_delta", 1.0), ("target_delta", -1.0), ("noise_multiplier", -1.0),
     ("noise_multiplier", math.nan), ("max_grad_norm", 0.0), ("max_grad_norm", math.inf),
     ("max_grad_norm", math.nan), ("target_epsilon", math.nan), ("target_epsilon", 0.0)],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused_by_name_value_and_remedy(name, value):
    with pytest.raises(SettingError, match=f"{name} = .*; expected"):
        trainer(**{name: value})


def test_no_noise_is_an_infinite_epsilon_and_no_guarantee():
    t = trainer(noise_multiplier=0.0)
    t.fit(data())
    assert t.epsilon() == math.inf
    assert "NO GUARANTEE" in t.statement().text()


def test_hardly_any_noise_is_answered_soon_with_an_enormous_epsilon():
    began = time.process_time()
    found = epsilon(noise_multiplier=1e-3, sample_rate=0.25, steps=100, delta=1e-5)
    assert 1e6 < found < math.inf
    assert found.guarantee
    assert time.process_time() - began < 20


@pytest.mark.parametrize("target", [1e-3, 1e4])
def test_extreme_targets_are_met_soon(target):
    began = time.process_time()
    sigma = noise_multiplier(target_epsilon=target, sample_rate=0.25, steps=100, delta=1e-5)
    spent = epsilon(noise_multiplier=sigma, sample_rate=0.25, steps=100, delta=1e-5)
    assert 0.99 * target < spent <= target
    assert time.process_time() - began < 60


# -- the table -----------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "robustness.md"


def test_every_row_of_the_table_names_a_test_that_exists():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`" in line]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "\n".join(rows))
    assert len(named) >= 25
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
