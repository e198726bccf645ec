"""The joint epsilon of several runs on the same records."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.accounting import (
    Account,
    FullBatch,
    LinearSketch,
    Poisson,
    Shuffled,
    TruncatedPoisson,
    composed,
    epsilon,
    filtered,
)
from gnomon.accounting.joint import passes


def account(sampler, sigma, steps, adjacency=None):
    made = Account(sampler, sigma, adjacency)
    if steps:
        made.charge(steps)
    return made


def test_equal_settings_cost_what_one_long_run_costs():
    parts = [account(Poisson(0.05), 2.0, n) for n in (16, 16, 70)]
    whole = epsilon(noise_multiplier=2.0, sample_rate=0.05, steps=102, delta=1e-5)
    assert composed(parts, 1e-5) == whole
    assert filtered(parts, 1e-5) == whole


def test_different_settings_agree_with_equal_ones_in_the_limit():
    almost = [account(Poisson(0.05), 2.0, 100), account(Poisson(0.05), 2.0 + 1e-9, 100)]
    whole = epsilon(noise_multiplier=2.0, sample_rate=0.05, steps=200, delta=1e-5)
    assert composed(almost, 1e-5) == pytest.approx(float(whole), rel=2e-3)
    assert composed(almost, 1e-5) >= whole * (1 - 1e-6)


@settings(max_examples=4, deadline=None)
@given(st.floats(1.5, 8.0), st.floats(1.5, 8.0), st.floats(0.05, 0.3), st.integers(1, 60), st.integers(1, 60))
def test_the_filter_is_never_below_the_tight_composition_and_both_above_each_part(a, b, rate, few, many):
    parts = [account(Poisson(rate), a, few), account(Poisson(rate), b, many)]
    tight, loose = composed(parts, 1e-5), filtered(parts, 1e-5)
    assert tight <= loose * (1 + 1e-9)
    for part in parts:
        assert tight >= part.epsilon(1e-5) * (1 - 1e-3)
    assert passes(parts, float(loose) * (1 + 1e-9), 1e-5)
    assert not passes(parts, float(loose) * 0.98, 1e-5)


def test_without_sampling_noise_adds_up_exactly():
    parts = [account(FullBatch(), 3.0, 9), account(FullBatch(), 4.0, 16)]  # 9/9 + 16/16 = 2
    assert composed(parts, 1e-5) == pytest.approx(
        float(epsilon(noise_multiplier=1.0, sampler=FullBatch(), steps=2, delta=1e-5)), rel=1e-9
    )
    assert filtered(parts, 1e-5) == composed(parts, 1e-5)


def test_a_shuffled_run_counts_its_epochs_whole():
    one = account(Shuffled(10), 5.0, 11)
    assert composed([one, account(FullBatch(), 5.0, 1, "zero-out")], 1e-5) == epsilon(
        noise_multiplier=5.0, sampler=FullBatch(), steps=3, delta=1e-5
    )


def test_mixed_adjacencies_are_read_under_one_that_all_can_claim():
    mixed = [account(Poisson(0.1), 2.0, 50), account(Shuffled(10), 5.0, 20)]
    assert composed(mixed, 1e-5).adjacency == "zero-out"
    replaced = [account(Poisson(0.1), 2.0, 50, "replace-one"), account(Poisson(0.1), 3.0, 50)]
    assert composed(replaced, 1e-5).adjacency == "replace-one"
    assert composed(replaced, 1e-5) > composed(replaced, 1e-5, "add-remove")
    alone = epsilon(noise_multiplier=2.0, sample_rate=0.1, steps=50, delta=1e-5, adjacency="replace-one")
    assert composed(replaced, 1e-5) > alone
    assert filtered(replaced, 1e-5) >= composed(replaced, 1e-5)


def test_truncated_batches_compose_and_the_filter_stays_above():
    parts = [account(TruncatedPoisson(0.05, 90, 1000), 3.0, 100), account(Poisson(0.05), 3.0, 100)]
    plain = [account(Poisson(0.05), 3.0, 100), account(Poisson(0.05), 3.0, 100)]
    assert composed(parts, 1e-5) >= composed(plain, 1e-5) * (1 - 1e-3)
    assert filtered(parts, 1e-5) >= composed(parts, 1e-5)


def test_a_run_without_noise_makes_everything_infinite_and_nothing_costs_nothing():
    assert composed([account(Poisson(0.1), 0.0, 1), account(Poisson(0.1), 9.0, 1)], 1e-5) == math.inf
    assert filtered([account(Poisson(0.1), 0.0, 1), account(Poisson(0.1), 9.0, 1)], 1e-5) == math.inf
    assert composed([], 1e-5) == 0
    assert filtered([account(Poisson(0.1), 0.0, 0)], 1e-5) == 0


@pytest.mark.parametrize("delta", [1e-12, 1e-3, 0.5])
def test_any_delta_is_answered(delta):
    parts = [account(Poisson(0.1), 1.0, 50), account(Poisson(0.01), 0.7, 50)]
    assert 0 <= composed(parts, delta) <= filtered(parts, delta) < math.inf


def test_a_sketched_sum_costs_at_least_what_it_costs_alone_and_more_than_an_unsketched_one():
    other, plain = account(Poisson(0.01), 2.0, 10), account(FullBatch(), 4.0, 50)
    sketched = Account(FullBatch(), 4.0, expansion=LinearSketch(20))
    sketched.charge(50)
    assert composed([sketched], 1e-5) == sketched.epsilon(1e-5)
    for answer in (composed, filtered):
        together = answer([sketched, other], 1e-5, "zero-out")
        assert together > sketched.epsilon(1e-5)
        assert together > answer([plain, other], 1e-5, "zero-out")
    assert not passes([sketched, other], float(filtered([plain, other], 1e-5, "zero-out")), 1e-5, "zero-out")


def test_two_runs_with_one_sketch_compose_exactly():
    halves = []
    for _ in range(2):
        halves.append(Account(FullBatch(), 4.0, expansion=LinearSketch(20)))
        halves[-1].charge(25)
    whole = Account(FullBatch(), 4.0, expansion=LinearSketch(20))
    whole.charge(50)
    assert composed(halves, 1e-5) == pytest.approx(float(whole.epsilon(1e-5)), rel=1e-9)
