"""What a sketch of the whole sum costs: the law of kappa, the limits of the exact accountant, the published formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from gnomon.accounting import (
    Account,
    FixedSize,
    FullBatch,
    LinearSketch,
    NormalisedSketch,
    Poisson,
    epsilon,
    kappa,
    noise_multiplier,
    published_noise,
)
from gnomon.accounting.gaussian import exact
from gnomon.accounting.sketch import SHARE, lemma_constant, sketched_gaussian
from gnomon.errors import SettingError


@pytest.mark.parametrize("m", [2, 5, 20])
def test_the_condition_number_of_two_directions_has_its_law(m):
    rng = np.random.default_rng(0)
    values = np.linalg.svd(rng.standard_normal((20_000, m, 2)), compute_uv=False)
    found = values[:, 0] / values[:, 1]
    for chance in (0.5, 0.1, 0.01):
        x = kappa(m, chance)
        assert (2 * x / (x**2 + 1)) ** (m - 1) == pytest.approx(chance)
        assert np.mean(found > x) == pytest.approx(chance, abs=4 * math.sqrt(chance / 20_000))


@pytest.mark.parametrize(("m", "expected"), [(5, 200), (10, 15.4), (20, 5.08), (50, 2.52), (100, 1.88), (1000, 1.21)])
def test_kappa_at_one_in_a_hundred_million(m, expected):
    assert kappa(m, 1e-8) == pytest.approx(expected, rel=3e-3)


def test_normalised_sketches_differ_by_at_most_the_condition_number():
    rng = np.random.default_rng(1)

    def seen(phi, g):
        return np.linalg.norm(g) * phi @ g / np.linalg.norm(phi @ g)

    for _ in range(2000):
        m, d = int(rng.integers(2, 8)), 12
        phi, g = rng.standard_normal((m, d)) / math.sqrt(m), rng.standard_normal(d)
        other = g + rng.standard_normal(d) * 10.0 ** rng.uniform(-6, 1)
        basis = np.linalg.qr(np.stack([g, other], 1))[0]
        stretch = np.linalg.svd(phi @ basis, compute_uv=False)
        gap = np.linalg.norm(seen(phi, g) - seen(phi, other))
        assert gap <= stretch[0] / stretch[1] * np.linalg.norm(g - other) * (1 + 1e-6)


@pytest.mark.parametrize("m", [1, 3, 10, 50])
def test_lemma_4_s_constant_is_the_mean_of_the_inner_product(m):
    rng = np.random.default_rng(2)
    v, g = rng.standard_normal(6), rng.standard_normal(6)
    phi = rng.standard_normal((20_000, m, 6)) / math.sqrt(m)
    seen = phi @ g
    products = np.einsum("tm,tm->t", phi @ v, seen) * np.linalg.norm(g) / np.linalg.norm(seen, axis=1)
    error = products.std() / math.sqrt(len(products))
    assert products.mean() == pytest.approx(lemma_constant(m) * float(v @ g), abs=4 * error)
    assert math.sqrt(m / (m + 1)) <= lemma_constant(m) <= 1


@pytest.mark.parametrize(
    ("m", "steps", "expected"), [(20, 1, 1.304), (20, 10, 1.152), (20, 100, 1.134), (100, 10, 1.136)]
)
def test_the_exact_sketch_accountant_gives_known_values(m, steps, expected):
    assert sketched_gaussian(math.sqrt(steps) / 0.3, m, steps, 1e-5) == pytest.approx(expected, abs=1e-3)


def test_many_directions_or_many_steps_cost_what_no_sketch_costs():
    plain = exact(1 / 0.3, 1, 1e-5)
    assert sketched_gaussian(1 / 0.3, 10**7, 1, 1e-5) == pytest.approx(plain, rel=1e-3)
    assert sketched_gaussian(math.sqrt(10**6) / 0.3, 10, 10**6, 1e-5) == pytest.approx(plain, rel=1e-3)
    costs = [sketched_gaussian(1 / 0.3, m, 1, 1e-5) for m in (1, 3, 10, 100, 1000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] > plain
    rough = sketched_gaussian(1 / 0.3, 10, 1, 1e-5, coarser=10.0)
    assert costs[2] <= rough <= 1.02 * costs[2]


@pytest.mark.parametrize(("sigma", "m", "steps", "delta"), [(2.0, 5, 1, 1e-5), (8.0, 20, 30, 1e-6), (0.7, 3, 1, 1e-3)])
def test_delta_at_the_exact_epsilon_is_met_by_integration(sigma, m, steps, delta):
    eps = sketched_gaussian(sigma, m, steps, delta)
    # an independent way: the mean over a uniform grid of quantiles and a fine tail
    u = (np.arange(400_000) + 0.5) / 400_000
    tail = np.logspace(-14, math.log10(u[0]), 4000)
    weights = np.concatenate([np.diff(np.concatenate([[0], tail])), np.full(len(u) - 1, 1 / 400_000)])
    x = stats.chi2.isf(np.concatenate([tail, u[1:]]), m * steps)
    mu = np.sqrt(x / m) / sigma
    losses = special.ndtr(-eps / mu + mu / 2) - np.exp(eps + special.log_ndtr(-eps / mu - mu / 2))
    found = float(weights @ losses)
    assert found == pytest.approx(delta, rel=0.02)
    assert found <= delta * 1.005


def test_simulated_losses_of_sketched_releases_stay_within_delta():
    """The privacy loss of two adaptive steps, simulated from the mechanism itself."""
    rng = np.random.default_rng(3)
    sigma, m, steps, delta, n = 1.5, 3, 2, 0.02, 200_000
    eps = sketched_gaussian(sigma, m, steps, delta)
    loss = np.zeros(n)
    for _ in range(steps):
        shift = rng.standard_normal((n, m)) / math.sqrt(m)  # Phi x for a unit vector x
        y = shift + sigma * rng.standard_normal((n, m))
        loss += ((y**2).sum(1) - ((y - shift) ** 2).sum(1)) / (2 * sigma**2)
    found = np.maximum(0, 1 - np.exp(eps - loss)).mean()
    assert found == pytest.approx(delta, rel=0.05)


def test_the_account_uses_the_exact_form_for_full_batches_and_a_stretch_for_sampled_ones():
    full = epsilon(noise_multiplier=5.0, steps=10, delta=1e-5, sampler=FullBatch(), expansion=LinearSketch(20))
    assert full.accountant == "exact sketched Gaussian"
    assert float(full) == pytest.approx(sketched_gaussian(5.0, 20, 10, 1e-5))
    stretch = LinearSketch(20).factor(SHARE * 1e-5 / 10)
    sampled = epsilon(noise_multiplier=5.0, steps=10, delta=1e-5, sample_rate=0.1, expansion=LinearSketch(20))
    plain = epsilon(noise_multiplier=5.0 / stretch, steps=10, delta=(1 - SHARE) * 1e-5, sample_rate=0.1)
    assert float(sampled) == float(plain)
    assert stretch == pytest.approx(math.sqrt(stats.chi2.isf(1e-7, 20) / 20))


def test_the_published_normaliser_costs_kappa_and_says_so():
    found = epsilon(noise_multiplier=9.0, steps=10, delta=1e-5, sampler=FullBatch(), expansion=NormalisedSketch(50))
    assert float(found) == pytest.approx(exact(9.0 / kappa(50, 1e-7), 10, 0.9e-5))
    assert "its stated sensitivity is false" in found.note
    replaced = epsilon(
        noise_multiplier=9.0, steps=10, delta=1e-5, sampler=FullBatch(), adjacency="replace-one",
        expansion=NormalisedSketch(50),
    )  # fmt: skip
    assert float(replaced) == pytest.approx(exact(4.5 / kappa(50, 1e-7), 10, 0.9e-5))


@pytest.mark.parametrize("sampler", [FullBatch(), Poisson(0.05)])
@pytest.mark.parametrize("expansion", [LinearSketch(30), NormalisedSketch(30)])
def test_calibration_meets_its_target(sampler, expansion):
    settings = {"steps": 20, "delta": 1e-5, "sampler": sampler, "expansion": expansion, "accountant": "rdp"}
    sigma = noise_multiplier(target_epsilon=1.0, **settings)
    assert 0.99 <= epsilon(noise_multiplier=sigma, **settings) <= 1.0


def test_an_account_remembers_its_sketch():
    account = Account(FixedSize(5, 100), 3.0, expansion=NormalisedSketch(30))
    account.charge(4)
    again = Account.from_dict(account.to_dict())
    assert again.epsilon(1e-5) == account.epsilon(1e-5) > Account(FixedSize(5, 100), 3.0).epsilon(1e-5)
    assert account.affordable(float(account.epsilon(1e-5)) * 1.0001, 1e-5) == 4


def test_fixed_batches_claim_no_amplification_and_refuse_add_remove():
    found = epsilon(noise_multiplier=4.0, steps=10, delta=1e-5, sampler=FixedSize(1, 1000))
    assert float(found) == pytest.approx(exact(4.0, 10, 1e-5))
    with pytest.raises(SettingError, match="adding a record changes which records are drawn"):
        epsilon(noise_multiplier=4.0, steps=10, delta=1e-5, sampler=FixedSize(1), adjacency="add-remove")


def test_the_published_formula_warns_and_is_too_little_for_few_directions():
    settings = {"lipschitz": 1.0, "records": 1000, "steps": 100, "epsilon": 1.0, "delta": 1e-5}
    with pytest.warns(UserWarning, match="no guarantee"):
        sigma = published_noise(**settings)
    assert sigma**2 == pytest.approx(32 * 100 * math.log(1e5) / 1e6)
    with pytest.warns(UserWarning, match="no guarantee"):
        sampled = published_noise(batch_size=50, **settings)
    assert sampled**2 == pytest.approx(256 * 100 * math.log(1e5) * math.log(2.5 * 100 * 50 / (1e-5 * 1000)) / 1e6)
    # in units of 1/n: what replace-one costs when the normaliser's factor is counted
    true = {m: float(epsilon(noise_multiplier=sigma * 1000, steps=100, delta=1e-5, sampler=FullBatch(),
                             adjacency="replace-one", expansion=NormalisedSketch(m))) for m in (20, 100)}  # fmt: skip
    assert true[20] > 1.0 > true[100]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LinearSketch(0), "directions"),
        (lambda: NormalisedSketch(1), "directions"),
        (lambda: kappa(1, 0.1), "directions"),
        (lambda: FixedSize(0), "batch_size"),
    ],
)
def test_bad_settings_are_refused_by_name(make, named):
    with pytest.raises(SettingError, match=named):
        make()
