"""Properties of every epsilon: monotone, never negative, never below the truth, and labelled."""

import copy
import json
import math
import pickle
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.accounting import Epsilon, FullBatch, Poisson, Shuffled, TruncatedPoisson, epsilon
from gnomon.accounting.bounds import bound
from gnomon.accounting.gaussian import GaussianComposition
from gnomon.errors import SettingError

RUN = {"noise_multiplier": 2.0, "steps": 100, "delta": 1e-5}
few = settings(max_examples=5, deadline=None)
sigmas, rates = st.floats(0.7, 50), st.floats(0.001, 0.5)
deltas, counts = st.floats(1e-8, 0.5), st.integers(1, 3000)


@few
@given(sigmas, rates, deltas, counts)
def test_epsilon_grows_with_steps_and_rate_and_falls_with_noise_and_delta(sigma, rate, delta, steps):
    def at(sigma=sigma, rate=rate, delta=delta, steps=steps):
        return epsilon(noise_multiplier=sigma, steps=steps, delta=delta, sample_rate=rate)

    slack = at() * 1.002 + 1e-4
    assert at(steps=2 * steps) * 1.002 + 1e-4 >= at()
    assert at(rate=min(1.0, 2 * rate)) * 1.002 + 1e-4 >= at()
    assert at(sigma=2 * sigma) <= slack
    assert at(delta=delta / 2) * 1.002 + 1e-4 >= at()
    assert at() >= 0


@few
@given(sigmas, rates, deltas, counts)
def test_the_tight_accountant_is_never_above_the_loose_ones(sigma, rate, delta, steps):
    run = {"noise_multiplier": sigma, "steps": steps, "delta": delta, "sample_rate": rate}
    tight, loose = epsilon(**run), epsilon(**run, accountant="rdp")
    assert tight <= loose * 1.002 + 1e-4
    assert loose <= epsilon(**run, accountant="rdp-classic") + 1e-3 or rate > 0.1


@few
@given(st.floats(0.1, 50), st.integers(1, 1000), deltas)
def test_without_sampling_the_exact_form_is_the_smallest(sigma, steps, delta):
    run = {"noise_multiplier": sigma, "steps": steps, "delta": delta, "sampler": FullBatch()}
    assert epsilon(**run) <= epsilon(**run, accountant="rdp") + 1e-9
    assert epsilon(**run) == epsilon(**run, accountant="gdp")
    assert epsilon(**run) == epsilon(**run | {"sampler": Poisson(1.0)})


@pytest.mark.parametrize("delta", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp-classic", "gdp"])
def test_epsilon_is_never_negative(delta, accountant):
    run = {"noise_multiplier": 5.0, "steps": 10, "delta": delta, "accountant": accountant}
    assert epsilon(**run, sample_rate=0.01) >= 0
    assert epsilon(**run, sampler=FullBatch()) >= 0


@pytest.mark.parametrize("sampler", [Poisson(0.1), FullBatch(), Shuffled(10), TruncatedPoisson(0.1, 20, 100)])
def test_no_noise_is_no_privacy_and_no_steps_cost_nothing(sampler):
    assert epsilon(**RUN | {"noise_multiplier": 0}, sampler=sampler) == math.inf
    assert epsilon(**RUN | {"steps": 0}, sampler=sampler) == 0
    assert epsilon(**RUN | {"steps": 0, "noise_multiplier": 0}, sampler=sampler) == 0


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [
        (1e-3, 0.01, 1000),
        (0.01, 0.01, 1000),
        (0.05, 0.5, 10_000),
        (1e5, 1e-6, 10**9),
        (0.5, 1e-6, 20),
        (1, 0.01, 10**9),
    ],
)
def test_extreme_settings_answer_soon(sigma, rate, steps, adjacency):
    start = time.process_time()
    found = epsilon(noise_multiplier=sigma, steps=steps, delta=1e-5, sample_rate=rate, adjacency=adjacency)
    assert 0 <= found < math.inf
    assert found.guarantee
    assert (found.accountant == "PLD") or found.note
    assert time.process_time() - start < 8


def test_rounding_never_hides_a_cost_behind_enormous_noise():
    run = {"noise_multiplier": 1e5, "steps": 10**9, "delta": 1e-5, "sample_rate": 0.01}
    truth = epsilon(**run, accountant="gdp")
    assert truth > 0
    assert epsilon(**run) >= truth
    assert epsilon(**run, accountant="rdp") >= truth


def test_a_tiny_delta_falls_back_to_a_looser_bound_and_says_so():
    found = epsilon(noise_multiplier=2.0, steps=3200, delta=1e-12, sample_rate=0.025)
    assert found.accountant == "RDP"
    assert "looser" in found.note


def test_the_limit_is_labelled_as_no_guarantee():
    found = epsilon(**RUN, sample_rate=0.01, accountant="gdp")
    assert not found.guarantee
    assert "not a bound" in found.note
    assert "not a guarantee" in repr(found)
    assert epsilon(**RUN, sampler=FullBatch(), accountant="gdp").guarantee


def test_an_epsilon_is_a_float_that_can_be_stored_and_copied():
    found = epsilon(**RUN, sample_rate=0.01)
    assert json.loads(json.dumps(found)) == found == float(str(found))
    for twin in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert isinstance(twin, Epsilon)
        assert repr(twin) == repr(found)
        assert twin.steps == 100


def test_a_partial_epoch_counts_as_a_whole_one():
    def at(steps):
        return epsilon(**RUN | {"steps": steps}, sampler=Shuffled(40))

    assert at(1) == at(40) < at(41) == at(80)
    assert at(80) == epsilon(**RUN | {"steps": 2}, sampler=FullBatch())


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp-classic"])
def test_replace_one_without_sampling_is_half_the_noise(accountant):
    run = {"steps": 10, "delta": 1e-5, "sampler": FullBatch(), "accountant": accountant}
    assert epsilon(noise_multiplier=4.0, adjacency="replace-one", **run) == epsilon(noise_multiplier=2.0, **run)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": math.inf},
        {"steps": -1},
        {"steps": 1.5},
        {"steps": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": -1e-5},
        {"delta": math.nan},
        {"sample_rate": 0.0},
        {"sample_rate": 1.1},
        {"sample_rate": math.nan},
        {"accountant": "prv"},
        {"adjacency": "both"},
        {"accountant": "rdp", "adjacency": "replace-one"},
        {"accountant": "gdp", "adjacency": "replace-one"},
    ],
)
def test_bad_values_are_refused_by_name(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        epsilon(**RUN | {"sample_rate": 0.01} | wrong)


def test_a_refusal_names_what_works():
    with pytest.raises(SettingError, match="'zero-out' or 'replace-one'"):
        epsilon(**RUN, sampler=Shuffled(10), adjacency="add-remove")
    with pytest.raises(SettingError, match="'pld'"):
        epsilon(**RUN, sampler=TruncatedPoisson(0.1, 20, 100), accountant="rdp")
    with pytest.raises(SettingError, match="sample_rate"):
        epsilon(**RUN)
    with pytest.raises(SettingError, match="not both"):
        epsilon(**RUN, sample_rate=0.1, sampler=FullBatch())


@pytest.mark.parametrize("bad", [lambda: Shuffled(0), lambda: TruncatedPoisson(0.1, 0, 10), lambda: Poisson(2)])
def test_bad_samplers_are_refused(bad):
    with pytest.raises(SettingError):
        bad()


def test_the_epsilon_of_a_mutable_sampler_is_not_cached():
    class Mine(Poisson):
        """A sampler whose fields can be assigned."""

        __setattr__ = object.__setattr__

    sampler = Mine(0.1)
    run = GaussianComposition(sampler, 2.0, 50, 1e-5, "add-remove")
    before = bound("pld", run).value
    sampler.sample_rate = 0.2
    assert bound("pld", run).value > 1.5 * before
