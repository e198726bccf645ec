"""The privacy claim as data: checked once, calibrated, varied, stored and read back."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

import gnomon
from gnomon import accounting, methods
from gnomon.constraints import L2Ball
from gnomon.errors import SettingError
from gnomon.release import SeededNoise
from gnomon.sampling import FixedSize, FullBatch, Poisson, Shuffled, TruncatedPoisson
from gnomon.training import Mechanism, Trainer

CLAIM = {"sampler": Poisson(0.1), "noise_multiplier": 2.0, "expected_batch_size": 32, "steps": 50, "delta": 1e-5}
PUBLIC = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(30).long()
PLAIN = methods.comp_sgd(L2Ball(1.0))
METHODS = [methods.dp_sgd(), methods.pcdp(PUBLIC, rank=3), methods.dp_lsgd(steps=3, lr=0.1), PLAIN]
SCHEMES = [
    Poisson(0.1), TruncatedPoisson(0.1, 60, 320), FullBatch(), Shuffled(10), FixedSize(32, 320)
]  # fmt: skip


def mechanism(**settings) -> Mechanism:
    return Mechanism(**(CLAIM | settings))


@pytest.mark.parametrize("sampler", SCHEMES, ids=lambda scheme: scheme.kind)
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_that_of_the_accounting(sampler, accountant):
    if isinstance(sampler, TruncatedPoisson) and accountant == "rdp":
        pytest.skip("RDP has no bound for truncated Poisson sampling")
    ours = mechanism(sampler=sampler, accountant=accountant).epsilon()
    theirs = accounting.epsilon(noise_multiplier=2.0, sampler=sampler, steps=50, delta=1e-5, accountant=accountant)
    assert ours == theirs
    assert ours.adjacency == theirs.adjacency


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("sampler", SCHEMES, ids=lambda scheme: scheme.kind)
def test_a_mechanism_survives_json(method, sampler):
    noise, target = (2.0, 5.0) if method.private else (0.0, None)
    original = mechanism(method=method, sampler=sampler, noise_multiplier=noise, target_epsilon=target)
    stored = json.loads(json.dumps(original.to_dict(), allow_nan=False))
    assert Mechanism.from_dict(stored, method) == original


def test_a_stored_mechanism_is_not_read_with_another_method():
    with pytest.raises(SettingError, match="the method that was described, 'dp-sgd"):
        Mechanism.from_dict(mechanism().to_dict(), methods.dp_lsgd())
    with pytest.raises(SettingError, match="the result of Account"):
        Mechanism.from_dict({"steps": 3})


def test_calibrated_noise_keeps_the_target_and_the_run_ends_with_it():
    settings = {name: value for name, value in CLAIM.items() if name != "noise_multiplier"}
    found = Mechanism.calibrated(target_epsilon=0.7, **settings)
    assert 0.69 < found.epsilon() <= 0.7
    assert found.last_step == found.max_steps == 50


def test_a_target_beside_the_noise_ends_the_run_at_the_target():
    found = Mechanism.from_settings(
        sample_rate=0.1, expected_batch_size=32, noise_multiplier=2.0, target_epsilon=0.5, target_delta=1e-5, steps=500
    )
    assert found.last_step < found.steps
    assert found.epsilon() <= 0.5 < found.epsilon(found.last_step + 1)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"), ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"expected_batch_size": 0}, "expected_batch_size"), ({"steps": 0}, "steps"), ({"delta": 1.0}, "delta"),
        ({"max_grad_norm": math.inf}, "max_grad_norm"), ({"accountant": "guess"}, "accountant"),
        ({"adjacency": "neighbourly"}, "adjacency"), ({"sampler": 0.1}, "sampler"),
        ({"method": methods.dp_comp_gd(L2Ball(1.0))}, "sampler"), ({"method": PLAIN}, "noise_multiplier"),
    ],
    ids=lambda part: part if isinstance(part, str) else next(iter(part)),
)  # fmt: skip
def test_a_wrong_value_is_named(wrong, name):
    with pytest.raises(SettingError, match=f"^{name} = "):
        mechanism(**wrong)


def test_a_mechanism_cannot_be_changed_but_varied():
    original = mechanism()
    with pytest.raises(dataclasses.FrozenInstanceError):
        original.noise_multiplier = 0.1
    quieter = dataclasses.replace(original, noise_multiplier=1.0)
    assert quieter.epsilon() > original.epsilon()


def test_another_method_must_cost_the_same():
    assert mechanism().with_method(methods.dp_lsgd()).method.name == "dp-lsgd"
    with pytest.raises(SettingError, match="cost"):
        mechanism(noise_multiplier=0.0).with_method(PLAIN)


def trained(**claim) -> tuple[Trainer, list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5),
        noise=SeededNoise(0), progress=False, **claim,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(1)
    trainer.fit((torch.randn(320, 4, generator=draw), torch.randint(0, 2, (320,), generator=draw)))
    return trainer, torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def test_a_trainer_takes_the_mechanism_or_its_settings_and_does_the_same():
    claim = mechanism(steps=5)
    by_object, weights = trained(mechanism=claim)
    by_settings, same = trained(
        sampler=Poisson(0.1), noise_multiplier=2.0, expected_batch_size=32, steps=5, target_delta=1e-5
    )
    assert weights == same
    assert by_object.mechanism == by_settings.mechanism == claim
    assert by_object.epsilon() == by_settings.epsilon() == claim.epsilon()
    with pytest.raises(SettingError, match="either mechanism or noise_multiplier"):
        trained(mechanism=claim, noise_multiplier=1.0)


def test_the_mechanism_is_offered_at_the_top():
    assert gnomon.Mechanism is Mechanism


def test_a_varied_mechanism_has_the_limit_of_its_own_noise():
    settings = {"sample_rate": 0.1, "expected_batch_size": 32, "target_delta": 1e-5, "steps": 500}
    original = Mechanism.from_settings(noise_multiplier=4.0, target_epsilon=0.5, **settings)
    quieter = dataclasses.replace(original, noise_multiplier=2.0)
    assert quieter.last_step < original.last_step
    assert max(quieter.epsilon(), original.epsilon()) <= 0.5


@pytest.mark.parametrize("setting", [{"max_grad_norm": 0.1}, {"accountant": "rdp"}, {"steps": 3}], ids=str)
def test_no_part_of_the_claim_is_given_beside_a_mechanism(setting):
    with pytest.raises(SettingError, match="either mechanism or"):
        trained(mechanism=mechanism(), **setting)


def test_an_engine_exchanges_methods_and_nothing_else_of_its_claim():
    trainer, _ = trained(mechanism=mechanism(steps=3))
    trainer.engine.exchange(methods.dp_lsgd())
    assert dataclasses.replace(trainer.mechanism, method=methods.dp_sgd()) == mechanism(steps=3)
    with pytest.raises(SettingError, match="cost the same"):
        trainer.engine.exchange(PLAIN)
