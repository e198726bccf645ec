"""The audit of correct steps: the bound is tight, the verdict is consistent, and the Trainer stays unchanged."""

from __future__ import annotations

import json
import math
import time

import pytest
import torch
from scipy import stats
from torch import nn

import gnomon
from gnomon import Trainer
from gnomon.accounting import FixedSize, FullBatch, Poisson, Shuffled, TruncatedPoisson, epsilon
from gnomon.audit import (
    Claim,
    LowerBound,
    Probe,
    ProbeAttackData,
    RecordAttackData,
    Report,
    StepAudit,
    TrainerTarget,
    audit,
    check_sampling,
    one_run,
    probe_loss,
)
from gnomon.audit.onerun import draw_membership
from gnomon.audit.sampling import _poisson
from gnomon.audit.target import ZeroNoise
from gnomon.cli.main import main
from gnomon.errors import SettingError
from gnomon.figures.audit import audit_scores
from gnomon.methods import Method, dp_sgd, pcdp, rsdp
from gnomon.release import Door, SeededNoise
from gnomon.subspaces import PublicEigenspace
from gnomon.updates import gradients
from tests.audit import mutants

FEW_DRAWS = 100_000
"""Number of draws for tests that do not depend on the tails of the noise."""


def trainer_of(method=None, size: int = 64, kind: type[Trainer] = Trainer, **settings) -> Trainer:
    model = Probe(size)
    chosen = {"sampler": Poisson(0.01), "noise_multiplier": 1.4147, "steps": 1000, "noise": SeededNoise(0)} | settings
    return kind(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), method=method, expected_batch_size=16,
        target_delta=1e-5, progress=False, **chosen,
    )  # fmt: skip


def test_an_epsilon_of_one_is_found_to_be_at_least_nine_tenths(tmp_path):
    trainer = trainer_of(noise=None)
    report = audit(trainer)
    assert report.claim.epsilon == pytest.approx(1.0, abs=1e-3)
    assert 0.9 <= report.epsilon <= 1.0
    assert report.ok, report.table()
    assert report.sentence() in report.table()
    assert report.sentence().startswith("claimed epsilon 1.00, audited lower bound 0.9")
    assert report.sentence().endswith("at 99.9 % confidence: consistent")
    values = json.loads(report.json())
    assert values["consistent"]
    assert values["lower_bound"] == report.epsilon
    assert {one["part"] for one in values["findings"]} == {"S", "W", "Q"}
    assert {one["name"] for one in values["bounds"]} == {
        "S and W", "E, noncentral t", "E, threshold", "K, noncentral t",
    }  # fmt: skip
    audit_scores(report, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 10_000


def test_the_trainer_under_audit_is_left_as_it_was():
    trainer = trainer_of()
    before = [p.clone() for p in trainer.model.parameters()]
    report = audit(trainer, releases=20, canaries=4, draws=FEW_DRAWS)
    assert trainer.account.steps == 0
    assert all(torch.equal(p, q) for p, q in zip(before, trainer.model.parameters(), strict=True))
    assert "not private: seeded noise" in report.table()


def test_no_bound_exceeds_the_claim_in_honest_repetitions():
    # benchmarks/audit_repetitions.py repeats this more often
    attack = ProbeAttackData(32, 1.0, 4)
    step = StepAudit(TrainerTarget(trainer_of(size=32), attack.example), attack, canaries=8)
    for _ in range(5):
        findings, lower, _ = step.run(20, alpha=2.5e-4)
        assert max(lower.values()) <= step.target.claim.mu
        assert all(one.ok for one in findings), [str(one) for one in findings if not one.ok]


def doubled(model, loss, inputs, targets, layouts=None):
    """An update that is not a gradient: two local steps on a loss with constant gradient."""
    return gradients(model, lambda out, target: 2 * loss(out, target), inputs, targets, layouts=layouts)


PUBLIC = (torch.randn(60, 64, generator=torch.Generator().manual_seed(0)), torch.zeros(60))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (Method("local", update=doubled), {}),
        (dp_sgd(pre_noise=0.5), {}),
        (pcdp(PUBLIC, 16, pre_noise=0.5), {}),
        (dp_sgd(), {"max_physical_batch_size": 3}),
        (dp_sgd(), {"max_grad_norm": 0.01}),
        (pcdp(PUBLIC, 16, every=10, start=2, batch=30), {"max_grad_norm": 100.0}),
        (rsdp(0.5, cooling=True), {}),
        (Method("own", subspace=PublicEigenspace(PUBLIC, 0.9)), {}),
        (dp_sgd(), {"sampler": FullBatch(), "steps": 3}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else str(value)[:30],
)
def test_honest_methods_of_all_kinds_are_consistent(method, settings):
    trainer = trainer_of(method, **settings)
    attack = ProbeAttackData(64, trainer.mechanism.max_grad_norm, 4)
    step = StepAudit(TrainerTarget(trainer, attack.example), attack, canaries=4)
    findings, lower, _ = step.run(20, 2.5e-4, exact=method.pre_noise == 0)
    assert [str(one) for one in findings if not one.ok] == []
    assert 0.8 * step.target.claim.mu < lower["S and W"] <= step.target.claim.mu


def test_a_model_of_ones_own_is_attacked_with_its_records():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    trainer = Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.Adam(model.parameters()), sample_rate=0.05,
        expected_batch_size=8, noise_multiplier=2.0, target_delta=1e-5, steps=50, noise=SeededNoise(0), progress=False,
    )  # fmt: skip
    data = torch.randn(50, 5), torch.randint(0, 2, (50,))
    report = audit(trainer, data, releases=30, canaries=8, draws=FEW_DRAWS)
    assert report.ok, report.table()
    assert report.epsilon > 0.8 * report.claim.epsilon
    with pytest.raises(SettingError, match="data = None"):
        audit(trainer)


@pytest.mark.parametrize(("bound", "divisor"), [("0.01", 1000), ("0.001", 250), ("0.001", 1000), ("1e-6", 1000)])
def test_steps_that_are_small_beside_the_weights_are_read_with_all_digits(bound, divisor):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 3))
    trainer = Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.05,
        expected_batch_size=divisor, max_grad_norm=float(bound), noise_multiplier=1.0, target_delta=1e-5, steps=50,
        noise=SeededNoise(0), progress=False,
    )  # fmt: skip
    attack = RecordAttackData((torch.randn(50, 5), torch.arange(50) % 3), 8)
    findings, lower, _ = StepAudit(TrainerTarget(trainer, attack.example), attack, canaries=8).run(20, 2.5e-4)
    assert [str(one) for one in findings if not one.ok] == []
    assert max(lower.values()) <= 1


class Meddling(Trainer):
    """A Trainer that also adds the unclipped sum of a batch to the weights."""

    def _step(self, physical):
        inputs, targets = next(iter(physical))
        record = super()._step([(inputs, targets)])
        if len(inputs):
            with torch.no_grad():
                self.model.first.weight -= 0.1 * inputs.nan_to_num()[:, : self.model.first.in_features].sum(0)
        return record


def test_a_change_of_the_weights_beside_the_optimizer_is_seen():
    attack = ProbeAttackData(64, 1.0, 8)
    step = StepAudit(TrainerTarget(trainer_of(kind=Meddling), attack.example), attack, canaries=4)
    assert not all(one.ok for one in step.run(20, 2.5e-4)[0])


class MasksByHand(nn.Module):
    def forward(self, x):
        return x * (torch.rand_like(x) > 0.5)


def with_masks(*masks: nn.Module, method=None) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), *masks, nn.Linear(30, 2))
    return Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=1.0), method=method,
        sample_rate=0.05, expected_batch_size=8, noise_multiplier=2.0, target_delta=1e-5, steps=50,
        noise=SeededNoise(0), progress=False,
    )  # fmt: skip


FEW = (torch.randn(50, 5, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 2)


@pytest.mark.parametrize("method", [dp_sgd(), pcdp((torch.randn(40, 5), torch.arange(40) % 2), 8)])
def test_a_sound_model_with_dropout_is_consistent_and_the_report_says_what_was_off(method):
    trainer = with_masks(nn.Dropout(0.5), nn.RReLU(), nn.AlphaDropout(0.2), method=method)
    report = audit(trainer, FEW, releases=20, canaries=8, draws=FEW_DRAWS)
    assert report.ok, report.table()
    assert "dropout was switched off" in report.table()
    assert trainer.model[2].p == 0.5
    assert "dropout" not in audit(with_masks(), FEW, releases=20, canaries=8, draws=FEW_DRAWS).table()


def test_a_clipping_bug_beside_dropout_is_still_caught(monkeypatch):
    monkeypatch.setattr("gnomon.training.engine.Door", mutants.NoClipping)
    assert not audit(with_masks(nn.Dropout(0.5)), FEW, releases=20, canaries=8, draws=FEW_DRAWS).ok


def test_a_model_that_draws_by_itself_is_refused_not_called_violated():
    with pytest.raises(SettingError, match="draws random numbers"):
        audit(with_masks(MasksByHand()), FEW, releases=20, canaries=8, draws=FEW_DRAWS)


@pytest.mark.parametrize(
    "setting", [{"canaries": 0}, {"releases": 5}, {"confidence": 1.0}, {"draws": 100}, {"whole_run": -1}]
)
def test_settings_that_cannot_be_used_are_refused(setting):
    with pytest.raises(SettingError, match=next(iter(setting))):
        audit(trainer_of(), **setting)


def test_a_model_too_large_to_audit_is_named_with_the_way_out():
    model = nn.Linear(2000, 2000)
    large = Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1),
        sampler=FullBatch(), expected_batch_size=4, noise_multiplier=5.0, target_delta=1e-5, steps=2, progress=False,
    )  # fmt: skip
    for releases in (200, 20):
        with pytest.raises(SettingError, match=r"gnomon\.audit\.Probe"):
            audit(large, (torch.randn(4, 2000), torch.arange(4)), releases=releases)


def test_rounding_of_large_noise_is_not_taken_for_a_contribution():
    model = nn.Linear(20, 50)
    sound = Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1),
        sampler=FullBatch(), expected_batch_size=40, noise_multiplier=20_000.0, target_delta=1e-5, steps=3000,
        progress=False,
    )  # fmt: skip
    x = torch.randn(40, 20, generator=torch.Generator().manual_seed(0))
    found = audit(sound, (x, torch.arange(40)), releases=60, canaries=4, draws=FEW_DRAWS)
    assert max(one.mu for one in found.bounds) < found.claim.mu
    assert found.sentence().endswith("consistent")


def test_the_claim_of_a_run_that_stops_at_its_budget_is_what_it_spends():
    model = Probe(8)
    run = Trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sampler=Poisson(0.1), expected_batch_size=16,
        noise_multiplier=2.0, target_epsilon=1.0, target_delta=1e-5, steps=5000, progress=False,
    )  # fmt: skip
    claim = Claim.of(run)
    assert claim.steps == run.mechanism.last_step < 5000
    assert 0.9 < claim.epsilon <= 1.0


def test_a_whole_run_with_too_few_canaries_for_its_batches_is_refused_at_once():
    started = time.monotonic()
    with pytest.raises(SettingError, match="whole_run"):
        audit(trainer_of(sampler=FixedSize(64)), whole_run=100)
    assert time.monotonic() - started < 5


# -- the sampler ---------------------------------------------------------------------------------------


class Shuffling(Trainer):
    """Uses blocks of a shuffled order, and claims Poisson sampling."""

    def _draws(self, loader):
        return gnomon.data.positions(Shuffled(10), len(loader), self.noise)


class Sticky(Trainer):
    """Uses every batch for two steps."""

    def _draws(self, loader):
        inner = super()._draws(loader)
        return (batch for batch in inner for _ in range(2))


class Often(Trainer):
    """Samples every record 5 % more often than declared."""

    def _draws(self, loader):
        return gnomon.data.positions(Poisson(1.05 * self.mechanism.sampler.rate), len(loader), self.noise)


class Favourite(Trainer):
    """Puts one record into every batch."""

    def _draws(self, loader):
        inner = super()._draws(loader)
        return (torch.cat([batch[batch != 0], torch.zeros(1, dtype=torch.long)]) for batch in inner)


@pytest.mark.parametrize("sampler", [Poisson(0.1), Poisson(0.004), Poisson(1.0), FullBatch(), Shuffled(7),
                                     TruncatedPoisson(0.05, 120, 1000), TruncatedPoisson(0.1, 100, 1000),
                                     FixedSize(64, 1000), FixedSize(1), FixedSize(2000, 3000),
                                     FixedSize(5, 5)])  # fmt: skip
def test_honest_samplers_pass(sampler):
    assert [one.what for one in check_sampling(Trainer, Claim(1.0, sampler, 100, 1e-5)) if not one.ok] == []


@pytest.mark.parametrize(("q", "steps", "records"), [(1e-5, 300, 4000), (3e-4, 300, 1000), (0.01, 50, 200)])
def test_tests_of_the_sampler_fail_no_more_often_than_they_say(q, steps, records):
    draw = torch.Generator().manual_seed(0)
    tables = ((torch.rand(steps, records, generator=draw) < q).double() for _ in range(100))
    low: dict[str, int] = {}
    for one in (one for table in tables for one in _poisson(table, q)):
        low[one.what] = low.get(one.what, 0) + (one.value <= 0.05)
    assert all(stats.binomtest(count, 100, 0.05, alternative="greater").pvalue > 1e-4 for count in low.values()), low


@pytest.mark.parametrize("kind", [Sticky, Favourite])
def test_other_samplers_are_caught_at_small_rates(kind):
    assert not all(one.ok for one in check_sampling(kind, Claim(1.0, Poisson(2.56e-4), 100, 1e-5)))


def test_randomness_of_the_trainer_is_that_of_its_copies():
    used = []

    class Watching(Trainer):
        def __init__(self, *given, **settings):
            super().__init__(*given, **settings)
            used.append(settings.get("noise"))

    trainer = trainer_of(kind=Watching, sampler=FullBatch(), steps=3)
    audit(trainer, releases=20, canaries=4, draws=FEW_DRAWS, whole_run=20)
    noisy = [one for one in used if not isinstance(one, ZeroNoise)]
    assert noisy
    assert all(one is trainer.noise for one in noisy)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Shuffling, "variance of the batch size"),
        (Sticky, "records in consecutive steps"),
        (Often, "participations in total"),
        (Favourite, "participations of each record"),
    ],
)
def test_other_samplers_than_the_declared_one_are_caught(kind, what):
    found = check_sampling(kind, Claim(1.0, Poisson(0.1), 100, 1e-5))
    assert any(what in one.what and not one.ok for one in found), [str(one) for one in found]


class WithReplacement(Trainer):
    """Draws records with replacement."""

    def _draws(self, loader):
        return ((len(loader) * self.noise.uniform(64)).long() for _ in range(self.mechanism.steps))


class PoissonAllTheSame(Trainer):
    """Draws batches of random size, and claims a fixed size."""

    def _draws(self, loader):
        return gnomon.data.positions(Poisson(0.064), len(loader), self.noise)


class FirstHalf(Trainer):
    """Never samples the second half of the records."""

    def _draws(self, loader):
        return gnomon.data.positions(self.mechanism.sampler, len(loader) // 2, self.noise)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (WithReplacement, "no record twice in a batch"),
        (PoissonAllTheSame, "largest batch"),
        (FirstHalf, "most and least sampled record"),
        (Sticky, "records in consecutive steps"),
    ],
)
def test_batches_that_are_not_fixed_as_declared_are_caught(kind, what):
    found = check_sampling(kind, Claim(1.0, FixedSize(64, 1000), 100, 1e-5))
    assert any(what in one.what and not one.ok for one in found), [str(one) for one in found]


# -- a whole run ---------------------------------------------------------------------------------------


def test_a_whole_run_is_consistent_and_a_broken_one_is_not(monkeypatch):
    claim = Claim(7.0, Poisson(0.2), 60, 1e-5)  # every canary is sure to be drawn
    honest = one_run(claim, canaries=200, alpha=1e-3)
    assert honest.epsilon <= claim.epsilon
    monkeypatch.setattr("gnomon.training.engine.Door", mutants.NoClipping)
    broken = one_run(claim, canaries=200, alpha=1e-3)
    assert broken.correct > honest.correct
    assert broken.epsilon > claim.epsilon


# -- the claim and the records -------------------------------------------------------------------------


def test_the_claimed_epsilon_is_that_of_the_run_s_accountant():
    claims = {name: Claim.of(trainer_of(accountant=name)) for name in ("pld", "rdp", "gdp")}
    for name, claim in claims.items():
        assert claim.epsilon == epsilon(noise_multiplier=1.4147, sampler=Poisson(0.01), steps=1000, delta=1e-5,
                                        accountant=name)  # fmt: skip
        assert claim.epsilon_at(claim.mu) == claims["pld"].epsilon
    assert claims["gdp"].epsilon < claims["pld"].epsilon < claims["rdp"].epsilon
    proved = (LowerBound("S and W", 0.7, 0.98),)
    assert Report(claims["rdp"], 0.999, (), proved).ok
    assert Report(claims["gdp"], 0.999, (), proved).failed == ["lower bound S and W"]


@pytest.mark.parametrize("label", [0, 1])
def test_records_of_one_class_are_no_error(label):
    attack = RecordAttackData((torch.randn(20, 5), torch.full((20,), label)), 4)
    assert all(int(pair.canary[1].min()) >= 0 for pair in attack.pairs(None))
    data = torch.randn(20, 5), torch.full((20,), label)
    report = audit(with_masks(), data, releases=20, canaries=4, draws=FEW_DRAWS)
    assert report.ok, report.table()


# -- the command ---------------------------------------------------------------------------------------

QUICK = ["audit", "--quiet", "--releases", "20", "--canaries", "4", "--noise-multiplier", "4", "--epochs", "1",
         "--draws", "100000"]  # fmt: skip


def test_the_command_says_consistent_and_leaves_table_json_and_picture(tmp_path, capsys):
    assert main([*QUICK, "--out", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.rstrip().endswith("99.9 % confidence: consistent")
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"audit.txt", "audit.json", "audit.png"}
    assert json.loads((tmp_path / "a" / "audit.json").read_text())["consistent"]
    assert main([*QUICK, "--out", str(tmp_path / "a")]) == 2
    assert "overwrite" in capsys.readouterr().err


def test_the_command_says_violated_and_exits_with_one(monkeypatch, capsys):
    monkeypatch.setattr("gnomon.training.engine.Door", mutants.LessNoise)
    assert main([*QUICK, "--method", "pcdp", "--subspace-scope", "per-tensor", "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert values["sentence"].endswith("VIOLATED")
    assert values["lower_bound"] > values["claim"]["epsilon"]


def test_the_command_audits_fixed_batches(capsys):
    assert main([*QUICK, "--sampler", "fixed"]) == 0
    assert "largest batch" in capsys.readouterr().out


def test_the_command_audits_named_models_on_data(capsys):
    assert main([*QUICK, "--model", "logistic", "--confidence", "0.99"]) == 0
    assert "at 99 % confidence: consistent" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--confidence", "2"], ["--canaries", "0"], ["--model", "resnet19"]])
def test_the_command_names_a_wrong_setting(flags, capsys):
    assert main([*QUICK, *flags]) == 2
    assert flags[0].removeprefix("--") in capsys.readouterr().err


class NotANumber(Door):
    """A release with a value that is not a number."""

    def release(self):
        released = super().release()
        next(iter(released.values())).view(-1)[0] = math.nan
        return released


def test_a_release_that_is_not_a_number_is_a_finding_and_no_crash(monkeypatch, tmp_path):
    monkeypatch.setattr("gnomon.training.engine.Door", NotANumber)
    model = Probe(8)
    trainer = Trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1, expected_batch_size=16,
        noise_multiplier=1.0, target_delta=1e-5, steps=10, noise=SeededNoise(0), progress=False,
    )  # fmt: skip
    report = audit(trainer, releases=20, draws=FEW_DRAWS, progress=False)
    assert not report.ok
    assert "non-finite values" in str(report)
    audit_scores(report, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").exists()


def test_more_canaries_than_declared_records_are_refused_at_once():
    with pytest.raises(SettingError, match=r"whole_run = 100.*dataset_size = 20 is invalid"):
        draw_membership(TruncatedPoisson(0.1, 10, 20), 100)
