"""Clip rules keep the clip bound for any norms that a model can produce."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnomon.clipping import PSAC, RULES, Automatic, Flat, Normalised, PerLayer
from gnomon.clipping.rules import total
from gnomon.errors import SettingError

few = settings(max_examples=60, deadline=None, derandomize=True)
rules = st.sampled_from(
    [Flat(), Automatic(), Automatic(5.0), Normalised(), Normalised(1e-9), PSAC(), PSAC(1e-9), PerLayer()]
)
bounds = st.sampled_from([1e-6, 0.01, 1.0, 3.0, 1e6])
usable = st.sampled_from([0.0, 5e-324, 1e-310, 1e-200, 1e-30, 1e-8, 0.3, 1.0, 7.0, 1e8, 1e30, 1e154, 1e300])
broken = st.sampled_from([math.inf, math.nan])


@st.composite
def tables(draw: st.DrawFn, entry: st.SearchStrategy[float]) -> Tensor:
    """Draw the norms of a batch by block, (B, blocks)."""
    size, blocks = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rows = [[draw(entry) for _ in range(blocks)] for _ in range(size)]
    return torch.tensor(rows, dtype=torch.float64)


@few
@given(norms=tables(usable | broken | st.floats(0, 1e300)), rule=rules, bound=bounds)
def test_no_rule_lets_a_sample_count_more_than_the_bound(norms, rule, bound):
    weights = rule.weights(norms, bound)
    assert weights.shape in ((len(norms), 1), norms.shape)
    assert torch.isfinite(weights).all()
    assert (weights >= 0).all()
    finite = torch.isfinite(norms).all(1)
    weighted = total((weights * norms)[finite])
    assert (weighted <= bound * (1 + 1e-6)).all(), (norms, weights)


@few
@given(norms=tables(usable), rule=rules, bound=bounds, bad=broken, data=st.data())
def test_a_sample_with_a_non_finite_norm_weighs_exactly_nothing(norms, rule, bound, bad, data):
    expected = rule.weights(norms, bound)
    row = data.draw(st.integers(0, len(norms) - 1))
    norms = norms.clone()
    norms[row, data.draw(st.integers(0, norms.shape[1] - 1))] = bad
    weights = rule.weights(norms, bound)
    assert (weights[row] == 0).all()
    others = torch.arange(len(norms)) != row
    assert torch.equal(weights[others], expected[others])


@few
@given(norms=tables(usable), bound=bounds)
def test_flat_clipping_leaves_short_gradients_alone_and_puts_long_ones_on_the_ball(norms, bound):
    length, weights = total(norms), Flat().weights(norms, bound)
    assert (weights[length <= bound] == 1).all()
    torch.testing.assert_close((weights * length)[length > bound], torch.full_like(length, bound)[length > bound])


@few
@given(norms=tables(usable), bound=bounds)
def test_per_layer_clipping_leaves_a_short_block_alone(norms, bound):
    weights = PerLayer().weights(norms, bound)
    assert weights.shape == norms.shape
    assert (weights[norms <= bound / norms.shape[1] ** 0.5 * (1 - 1e-12)] == 1).all()


@few
@given(norms=tables(usable), rule=rules, bound=bounds, data=st.data())
def test_a_weight_depends_on_its_own_sample_only(norms, rule, bound, data):
    order = torch.tensor(data.draw(st.permutations(range(len(norms)))))
    together = rule.weights(norms, bound)
    assert torch.equal(rule.weights(norms[order], bound), together[order])
    alone = torch.cat([rule.weights(norms[i : i + 1], bound) for i in range(len(norms))])
    assert torch.equal(alone, together)


@few
@given(norms=tables(usable), rule=rules)
def test_an_empty_batch_has_no_weights(norms, rule):
    assert len(rule.weights(norms[:0], 1.0)) == 0


@few
@given(values=st.lists(usable, min_size=1, max_size=5))
def test_the_norm_over_blocks_neither_overflows_nor_vanishes(values):
    norm = total(torch.tensor([values], dtype=torch.float64)).item()
    assert norm == pytest.approx(math.hypot(*values), rel=1e-12, abs=5e-324)


@pytest.mark.parametrize("make", [Automatic, Normalised, PSAC])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, "1", True])
def test_a_stabiliser_must_be_a_positive_number(make, value):
    with pytest.raises(SettingError, match="finite number above 0"):
        make(value)


def test_every_named_rule_can_be_built_without_settings():
    assert {name: type(kind()) for name, kind in RULES.items()} == RULES
