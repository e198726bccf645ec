"""Fair clipping, and clipping of update and loss together, keep the clip bound for any losses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.accounting import epsilon
from gnomon.clipping import Automatic, EmbeddingAndResidual, Fair, Flat, UpdateAndLoss
from gnomon.clipping.rules import total
from gnomon.errors import SettingError
from gnomon.release import Door, SeededNoise
from gnomon.subspaces.basis import in_coordinates

few = settings(max_examples=60, deadline=None, derandomize=True)
norms = st.sampled_from([0.0, 1e-310, 1e-8, 0.3, 1.0, 7.0, 1e30, 1e300])
losses = st.sampled_from([-1e30, -9.0, 0.0, 0.1, 2.3, 50.0, 1e30])


@few
@given(
    rows=st.lists(st.tuples(norms, losses), min_size=1, max_size=4),
    strength=st.sampled_from([0.0, 0.1, 1.0, 100.0]),
    reference=st.sampled_from([None, 0.0, 2.3, 1e6]),
    inner=st.sampled_from([Flat(), Automatic()]),
)
def test_no_loss_makes_a_sample_count_more_than_the_bound(rows, strength, reference, inner):
    table = torch.tensor([[norm, norm / 3] for norm, _ in rows], dtype=torch.float64)
    rule = Fair(strength, reference, 3.0, inner).for_losses(torch.tensor([loss for _, loss in rows]))
    weights = rule.weights(table, 0.5)
    assert torch.isfinite(weights).all()
    assert (weights >= 0).all()
    assert (total(weights * table) <= 0.5 * (1 + 1e-9)).all()


def test_the_published_factor_would_be_negative_and_too_long_where_ours_is_zero():
    loss, reference, norm = 0.1, 2.3, 1.0  # lambda = 1, C = 0.1
    assert abs(1 + 1.0 * (loss - reference)) * norm > 0.1
    rule = Fair(1.0, reference).for_losses(torch.tensor([loss]))
    assert float(rule.weights(torch.tensor([[norm]], dtype=torch.float64), 0.1)) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_sample_with_a_non_finite_loss_cannot_exceed_the_bound_at_the_door(bad):
    door = Door({"coordinates": torch.zeros(2)}, 1.0, 0.0, 1.0, SeededNoise(0))
    updates = in_coordinates(torch.tensor([[30.0, 40.0]]), torch.tensor([bad]))
    door.admit(updates, Fair(1.0, 0.5))
    released = door.release()["coordinates"]
    assert torch.isfinite(released).all()
    assert float(released.norm()) <= 1 + 1e-6


def test_a_larger_loss_counts_more_before_clipping():
    door = Door({"coordinates": torch.zeros(1)}, 10.0, 0.0, 1.0, SeededNoise(0))
    admitted = door.admit(in_coordinates(torch.ones(3, 1), torch.tensor([0.0, 1.0, 2.0])), Fair(0.5, 1.0, 2.0))
    assert admitted.weights.squeeze(1).tolist() == [0.5, 1.0, 1.5]


@few
@given(norm=norms, loss=st.floats(0, 1), ratio=st.sampled_from([0.5, 1.0, 2.5, 10.0]))
def test_update_and_loss_together_stay_within_the_joint_bound(norm, loss, ratio):
    rule = UpdateAndLoss(ratio)
    table = torch.tensor([[norm, norm, loss / ratio]], dtype=torch.float64)
    joint = rule.joint(1.0)
    weights = rule.weights(table, joint)
    assert float(total(weights * table)) <= joint * (1 + 1e-9)
    assert float(weights[0, -1]) == 1.0, "the loss itself is not scaled"


def test_one_release_of_both_costs_what_the_joint_multiplier_says():
    sigma, sigma_loss = 2.0, 5.0
    joint = sigma / UpdateAndLoss(sigma_loss / sigma).joint(1.0)
    assert joint == pytest.approx((sigma**-2 + sigma_loss**-2) ** -0.5)
    spent = epsilon(noise_multiplier=joint, sample_rate=0.05, steps=776, delta=1e-5)
    assert float(spent) == pytest.approx(3.552, abs=0.005)  # a release of the gradients alone costs 3.216


@pytest.mark.parametrize("settings", [{"strength": -1.0}, {"most": 0.0}, {"reference": math.nan}])
def test_impossible_settings_are_refused_by_name(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        Fair(**settings)


def test_the_fair_rule_counts_inside_two_parts_of_an_update():
    rule = EmbeddingAndResidual(0.5, Fair(0.5, 1.0)).for_losses(torch.tensor([0.0, 5.0]))
    norms = torch.full((2, 3), 0.01, dtype=torch.float64)
    low, high = rule.weights(norms, 1.0)
    assert (high > low).all()
