"""The bounds hold as often as they say, and are not looser than they need to be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gnomon.audit import bounds

ALPHA, TIMES = 0.05, 400


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rarely(violations: int, times: int = TIMES, alpha: float = ALPHA) -> bool:
    return bool(stats.binomtest(violations, times, alpha, alternative="greater").pvalue > 1e-4)


def often_enough(violations: int, times: int = TIMES, alpha: float = ALPHA) -> bool:
    return bool(stats.binomtest(violations, times, alpha, alternative="less").pvalue > 1e-4)


@pytest.mark.parametrize("mu", [0.1, 0.7, 3.0])
@pytest.mark.parametrize("size", [10, 200])
def test_the_noncentral_t_bound_is_exact(mu, size):
    table = normals(TIMES, 2, size, seed=size)
    over = sum(bounds.mu_by_noncentral_t(a + mu, b, ALPHA) > mu for a, b in table)
    assert rarely(over)
    if mu * math.sqrt(size / 2) > 2:  # else the bound is zero, rightly
        assert often_enough(over)


def test_the_noncentral_t_bound_agrees_with_scipy():
    a, b = normals(2, 30)
    a = a + 1.0
    nu = bounds.mu_by_noncentral_t(a, b, 0.01) / math.sqrt(2 / 30)
    t = stats.ttest_ind(a.numpy(), b.numpy()).statistic
    assert stats.nct.sf(t, 58, nu) == pytest.approx(0.01, rel=1e-4)


def test_bounds_have_an_answer_where_there_is_no_noise_and_where_there_is_no_shift():
    still = torch.zeros(20, dtype=torch.float64)
    assert bounds.mu_by_noncentral_t(still + 1, still, 0.01) == bounds.LARGEST_MU
    assert bounds.mu_by_noncentral_t(still, still, 0.01) == 0
    assert bounds.mu_by_noncentral_t(still - 1, still, 0.01) == 0
    assert bounds.mu_by_threshold(still, still, 0.01) == 0
    assert bounds.mu_by_threshold(still + 1, still, 0.01) > 0


def test_the_threshold_bound_holds():
    table = normals(TIMES, 2, 300)
    assert rarely(sum(bounds.mu_by_threshold(a + 1, b, ALPHA) > 1 for a, b in table))
    far = [bounds.mu_by_threshold(a + 3, b, ALPHA) for a, b in table[:20]]
    assert 2 < np.mean(far) < 3


def test_the_bound_on_the_deviation_is_exact():
    under = sum(bounds.sigma_upper_bound(rows, ALPHA) < 1 for rows in normals(TIMES, 20, 5))
    assert rarely(under)
    assert often_enough(under)


@pytest.mark.parametrize("size", [3, 20, 60])
def test_the_law_of_normals_is_accepted_and_a_tenth_of_it_is_not(size):
    rows = normals(200, size, seed=size)
    for test in (bounds.singular_values, bounds.scale, bounds.coordinates):
        assert test(rows, 1e-6).ok
        assert test(2.5 * rows, 1e-6, declared=2.5).ok
        assert not test(rows / 10, 1e-6).ok
    assert bounds.largest_cosine(rows.T, 1e-6).ok


@pytest.mark.parametrize("right", [60, 80, 100])
def test_the_one_run_bound_is_clopper_pearson_without_delta(right):
    p = stats.beta.ppf(ALPHA, right, 100 - right + 1)
    expected = max(0.0, math.log(p / (1 - p)))
    assert bounds.one_run_epsilon(right, 100, 1000, 1e-300, ALPHA) == pytest.approx(expected, abs=1e-6)


def test_the_one_run_bound_grows_with_right_guesses_and_falls_with_delta():
    found = [bounds.one_run_epsilon(v, 200, 1000, 1e-5, ALPHA) for v in range(100, 201, 10)]
    assert found == sorted(found)
    assert bounds.one_run_epsilon(180, 200, 1000, 1e-3, ALPHA) < bounds.one_run_epsilon(180, 200, 1000, 1e-6, ALPHA)


def test_the_one_run_bound_holds_for_randomised_response():
    # each guess is right with probability e^eps / (1 + e^eps): the worst that pure privacy allows
    epsilon, draw = 1.0, np.random.default_rng(0)
    right = draw.binomial(200, 1 / (1 + math.exp(-epsilon)), TIMES)
    over = sum(bounds.one_run_epsilon(int(v), 200, 200, 1e-6, ALPHA) > epsilon for v in right)
    assert rarely(over)
    assert often_enough(over)


def test_the_band_of_a_deviation_is_exact():
    squares = normals(TIMES, 50).square().sum(1)
    outside = sum(not bounds.deviation(float(one), 50, ALPHA).ok for one in squares)
    assert rarely(outside)
    assert often_enough(outside)


@pytest.mark.parametrize(("trials", "probability"), [(20, 0.01), (1000, 0.5), (10**6, 5e-6)])
def test_the_band_of_a_count_leaves_no_more_than_alpha_outside(trials, probability):
    band = bounds.occurrences(0, trials, probability, ALPHA)
    law = stats.binom(trials, probability)
    assert law.cdf(band.low - 1) <= ALPHA / 2
    assert law.sf(band.high) <= ALPHA / 2
    # one count further in and it would be too narrow
    assert law.cdf(band.low) > ALPHA / 2
    assert law.sf(band.high - 1) > ALPHA / 2
