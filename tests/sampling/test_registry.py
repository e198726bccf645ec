"""Every registered scheme can be written, read back, named in a statement, and built from declared numbers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import dp_accounting
import pytest
import torch
from torch import Tensor

from gnomon.accounting import Account, epsilon
from gnomon.errors import SettingError
from gnomon.randomness import NoiseSource
from gnomon.sampling import (
    FLAGS,
    SCHEMES,
    FixedSize,
    FullBatch,
    Poisson,
    Sampling,
    Shuffled,
    TruncatedPoisson,
    scheme_from_dict,
    scheme_from_name,
    scheme_to_dict,
)
from gnomon.statement import Statement, contradictions

EXAMPLES = [Poisson(0.025), Poisson(1.0), TruncatedPoisson(0.05, 90, 1000), FullBatch(), Shuffled(7), FixedSize(40)]


def test_the_examples_cover_every_registered_scheme():
    assert {type(sampler) for sampler in EXAMPLES} == set(SCHEMES.values()) == set(FLAGS.values())


@pytest.mark.parametrize("sampler", EXAMPLES)
def test_a_scheme_is_read_back_from_its_dict_and_from_its_name(sampler):
    assert scheme_from_dict(scheme_to_dict(sampler)) == sampler
    assert scheme_from_name(sampler.name) == sampler


@pytest.mark.parametrize("flag", FLAGS)
def test_a_scheme_is_built_from_a_declared_batch_size_and_number_of_records(flag):
    sampler, expected_batch_size = FLAGS[flag].for_batches(50, 1000)
    assert expected_batch_size == (1000 if flag == "full" else 50)
    assert sampler.epoch_steps == (1 if flag == "full" else 20)
    sampler.check_records(1000)


@pytest.mark.parametrize(
    "values", [{}, {"kind": "dice"}, {"kind": "poisson"}, {"kind": "poisson", "sample_rate": 0.1, "seed": 3}]
)
def test_values_that_describe_no_scheme_are_refused(values):
    with pytest.raises(SettingError, match="sampler"):
        scheme_from_dict(values)


def test_a_name_that_no_scheme_has_is_not_recognised():
    assert scheme_from_name("Poisson q = 0.025, at most 3") is None
    assert scheme_from_name("2 settings") is None


def test_a_subclass_is_not_written_under_the_kind_of_its_parent():
    @dataclass(frozen=True)
    class Biased(Poisson):
        """A sampler that may draw differently from Poisson."""

    with pytest.raises(SettingError, match="Biased"):
        scheme_to_dict(Biased(0.1))
    with pytest.raises(SettingError, match="Biased"):
        Account(Biased(0.1), 1.0).to_dict()


@dataclass(frozen=True)
class Repeated(Sampling):
    """The same batch in every step: a scheme that only this file knows."""

    kind: ClassVar[str] = "repeated"
    flag: ClassVar[str] = "repeated"
    name_pattern: ClassVar[str] = r"the first (?P<batch_size>\d+) records, no amplification"

    batch_size: int

    @property
    def name(self) -> str:
        return f"the first {self.batch_size} records, no amplification"

    @property
    def amplified(self) -> bool:
        return False

    @classmethod
    def for_batches(cls, batch_size: int, dataset_size: int) -> tuple[Self, float]:
        return cls(batch_size), batch_size

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        while True:
            yield torch.arange(min(records, self.batch_size))

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        return FullBatch().event(noise_multiplier, steps)


def test_a_new_scheme_is_one_class_and_one_registration(monkeypatch):
    monkeypatch.setitem(SCHEMES, Repeated.kind, Repeated)
    account = Account(Repeated(3), 2.0)
    account.charge(10)
    assert Account.from_dict(account.to_dict()).sampler == account.sampler == scheme_from_name(account.sampler.name)
    for accountant in ("pld", "rdp", "rdp-classic", "gdp"):
        run = {"noise_multiplier": 2.0, "steps": 10, "delta": 1e-5, "accountant": accountant}
        assert epsilon(**run, sampler=Repeated(3)) == epsilon(**run, sampler=FullBatch())
    statement = Statement.of(
        account.epsilon(1e-5), method="own", max_grad_norm=1.0, expected_batch_size=3, private_noise=True
    ).to_dict()
    assert contradictions(statement) == []
    assert len(contradictions(statement | {"epsilon": 0.1})) == 1


@pytest.mark.parametrize("accountant", ["rdp", "rdp-classic", "gdp"])
def test_only_steps_that_are_poisson_sampled_gaussians_have_a_renyi_bound(accountant):
    run = {"noise_multiplier": 2.0, "steps": 10, "delta": 1e-5, "accountant": accountant}
    with pytest.raises(SettingError, match=r"'pld'.*or choose adjacency = 'add-remove' or 'zero-out'"):
        epsilon(**run, sampler=Poisson(0.1), adjacency="replace-one")
    with pytest.raises(SettingError, match="'pld', the only accountant for truncated Poisson"):
        epsilon(**run, sampler=TruncatedPoisson(0.1, 20, 100))


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("gnomon.accounting", {"torch"}),
        ("gnomon.sampling", {"torch", "dp_accounting", "scipy"}),
        ("gnomon.cli.main", {"torch", "dp_accounting", "scipy"}),
        ("gnomon.runs.config", {"torch", "dp_accounting", "scipy"}),
    ],
)
def test_a_light_module_does_not_load_heavy_libraries(module, unwanted):
    code = f"import sys, {module}; print(*(name for name in {sorted(unwanted)!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
