"""The account of a run counts, prices and serialises its steps."""

import json

import pytest

from gnomon.accounting import Account, FullBatch, Poisson, Shuffled, TruncatedPoisson, epsilon
from gnomon.errors import SettingError


def test_charges_add_up_to_the_epsilon_of_the_whole():
    account = Account(Poisson(0.025), 4.0)
    assert account.epsilon(1e-5) == 0
    for _ in range(3):
        account.charge()
    account.charge(97)
    assert account.steps == 100
    assert account.epsilon(1e-5) == epsilon(noise_multiplier=4.0, steps=100, delta=1e-5, sample_rate=0.025)


def test_epsilon_is_cached():
    account = Account(Poisson(0.025), 4.0)
    account.charge(10)
    assert account.epsilon(1e-5) is account.epsilon(1e-5)


@pytest.mark.parametrize("sampler", [Poisson(0.05), FullBatch(), Shuffled(7), TruncatedPoisson(0.05, 90, 1000)])
def test_one_step_more_than_affordable_is_too_much(sampler):
    account = Account(sampler, 3.0)
    most = account.affordable(2.0, 1e-5)
    account.charge(most) if most else None
    assert account.epsilon(1e-5) <= 2.0
    account.charge()
    assert account.epsilon(1e-5) > 2.0


def test_nothing_is_affordable_without_noise():
    assert Account(Poisson(0.1), 0.0).affordable(1.0, 1e-5) == 0


@pytest.mark.parametrize("sampler", [Poisson(0.05), FullBatch(), Shuffled(7), TruncatedPoisson(0.05, 90, 1000)])
def test_an_account_survives_json(sampler):
    account = Account(sampler, 3.0, adjacency="zero-out")
    account.charge(12)
    twin = Account.from_dict(json.loads(json.dumps(account.to_dict())))
    assert twin.to_dict() == account.to_dict()
    assert twin.sampler == sampler
    assert twin.epsilon(1e-5) == account.epsilon(1e-5)
    assert json.loads(json.dumps(account.events())) == account.events()


def test_events_tell_what_was_released():
    account = Account(Poisson(0.05), 3.0)
    assert account.events() == []
    account.charge(5)
    assert account.events() == [
        {
            "sampler": "Poisson q = 0.05",
            "q": 0.05,
            "noise_multiplier": 3.0,
            "steps": 5,
            "adjacency": "add-remove",
        }
    ]


@pytest.mark.parametrize(
    "change", [{"steps": -1}, {"noise_multiplier": -1}, {"sampler": {"kind": "dice"}}, {"adjacency": "none"}]
)
def test_an_edited_account_is_refused(change):
    with pytest.raises(SettingError):
        Account.from_dict(Account(Poisson(0.05), 3.0).to_dict() | change)


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_a_charge_is_a_whole_number_of_steps(steps):
    with pytest.raises(SettingError):
        Account(Poisson(0.05), 3.0).charge(steps)


def test_an_account_that_cannot_be_answered_is_refused_at_the_start():
    with pytest.raises(SettingError, match="'pld'"):
        Account(Poisson(0.05), 3.0, adjacency="replace-one", accountant="rdp")
