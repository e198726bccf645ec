"""Schemes of one's own: accounted for with their sensitivity, and audited against what is accounted for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gnomon.accounting import Account, composed, epsilon
from gnomon.audit.claim import Claim
from gnomon.audit.sampling import check_sampling
from gnomon.errors import SettingError
from gnomon.sampling import DrawLaw, FullBatch, Poisson
from gnomon.training import Trainer


@dataclass(frozen=True)
class FixedAsPoisson(Poisson):
    """The classic accounting bug: batches of a fixed size, accounted for as Poisson sampling."""

    def draw(self, records, randomness):
        while True:
            yield randomness.uniform(records).argsort()[: round(self.sample_rate * records)]

    def draw_law(self):
        return DrawLaw(batch_size=100, records=1000)


@dataclass(frozen=True)
class ShuffledAsPoisson(Poisson):
    """Shuffled epochs, accounted for as Poisson sampling."""

    def draw(self, records, randomness):
        while True:
            yield from randomness.uniform(records).argsort().tensor_split(round(1 / self.sample_rate))

    def draw_law(self):
        return DrawLaw(epoch=10)


@pytest.mark.parametrize("scheme", [FixedAsPoisson, ShuffledAsPoisson])
def test_a_scheme_cannot_excuse_its_draw_by_a_law_of_its_own(scheme):
    findings = check_sampling(Trainer, Claim(1.0, scheme(0.1), 100, 1e-5))
    assert not all(finding.ok for finding in findings)
    assert all(finding.ok for finding in check_sampling(Trainer, Claim(1.0, Poisson(0.1), 100, 1e-5)))


@dataclass(frozen=True)
class Twice(FullBatch):
    """Every record can displace another one in every step."""

    def sensitivity(self, adjacency):
        return 2.0


@dataclass(frozen=True)
class PoissonTwice(Poisson):
    def sensitivity(self, adjacency):
        return 2.0


def test_the_sensitivity_of_a_scheme_counts_among_other_runs_too():
    account, halved = Account(Twice(), 2.0), Account(FullBatch(), 1.0)
    for one in (account, halved):
        one.charge(10)
    assert composed([account], 1e-5) == pytest.approx(float(account.epsilon(1e-5)), rel=1e-6)
    other = Account(Poisson(0.01), 5.0)
    other.charge(10)
    assert composed([account, other], 1e-5) == composed([halved, other], 1e-5)


def test_an_amplified_scheme_whose_sensitivity_no_event_counts_is_refused():
    with pytest.raises(SettingError, match="sensitivity of its own"):
        Account(PoissonTwice(0.05), 2.0)
    with pytest.raises(SettingError, match="sensitivity of its own"):
        epsilon(noise_multiplier=2.0, steps=500, delta=1e-5, sampler=PoissonTwice(0.05))
