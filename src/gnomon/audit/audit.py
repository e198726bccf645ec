"""The audit of a Trainer's step: all parts, one verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from gnomon import validate
from gnomon.audit import bounds, parts
from gnomon.audit.bench import Batch, Bench, Probe, ProbeBench, RecordBench
from gnomon.audit.findings import Finding, LowerBound
from gnomon.audit.noise import DRAWS, noise_law, separate_sources
from gnomon.audit.onerun import OneRun, one_run, tossed
from gnomon.audit.repeatable import OFF
from gnomon.audit.report import Report
from gnomon.audit.sampling import sampling
from gnomon.audit.target import Target, TrainerTarget
from gnomon.errors import SettingError
from gnomon.training import Trainer

MOST_NUMBERS = 2**26
"""How many numbers the releases of one data set may hold: half a gigabyte."""

LEAST_RELEASES = 20
LEAST_DRAWS = 10_000

BOUNDS = 4
"""How many lower bounds share the error probability of an audit."""


def audit(
    trainer: Trainer,
    data: Any = None,
    *,
    canaries: int = 32,
    releases: int = 200,
    confidence: float = 0.999,
    draws: int = DRAWS,
    whole_run: int = 0,
    progress: bool = False,
) -> Report:
    """Attacks the step of a Trainer that has not started, and says what epsilon it has at least.

    Copies of the Trainer get data sets of the auditor's choice; the Trainer itself makes no step. They draw from its
    source of noise, so a seeded run goes on with other noise afterwards. On the `Probe`
    model the auditor writes every gradient down and the bound is tight; any other model is attacked with records of
    `data`. `releases` is how many steps each data set is released for, `draws` how many normals are drawn to look at
    the law of the noise in its tails. `whole_run=m` attacks a whole run of the
    method on a probe with m canaries as well, which takes as long as such a run.

    >>> from gnomon.audit import Probe, probe_loss
    >>> from gnomon.release import SeededNoise
    >>> model = Probe(32)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.01,
    ...                   expected_batch_size=16, noise_multiplier=1.4147, target_delta=1e-5, steps=1000,
    ...                   noise=SeededNoise(0), progress=False)
    >>> print(audit(trainer, releases=100).sentence())
    claimed epsilon 1.00, audited lower bound 0.96 at 99.9 % confidence: consistent
    """
    validate.whole("canaries", canaries)
    validate.whole("releases", releases, least=LEAST_RELEASES)
    validate.probability("confidence", confidence)
    validate.whole("draws", draws, least=LEAST_DRAWS)
    validate.whole("whole_run", whole_run, least=0)
    if isinstance(trainer.model, Probe):
        bench: Bench = ProbeBench(trainer.model.size, trainer.mechanism.max_grad_norm)
    elif data is None:
        raise SettingError("data", None, "records for the model, or a Trainer of gnomon.audit.Probe")
    else:
        bench = RecordBench(data)
    if whole_run:
        _run_size(trainer)  # these refuse before anything takes time
        tossed(trainer.mechanism.sampler, whole_run)
    started = time.monotonic()
    alpha = (1 - confidence) / (BOUNDS + bool(whole_run))
    target = TrainerTarget(trainer, bench.one)
    _refuse_too_many(target.view.parameters, releases)
    with tqdm(total=4 * releases, unit="release", disable=not progress, desc="audit", dynamic_ncols=True) as bar:
        step = StepAudit(target, bench, canaries)
        findings, lower, shown = step.run(releases, alpha, trainer.method.pre_noise == 0, bar)
    findings += noise_law(trainer, draws)
    findings += separate_sources(trainer)
    findings += sampling(type(trainer), target.claim, noise=trainer.noise)
    run: OneRun | None = None
    if whole_run:
        run = one_run(target.claim, method=trainer.method, canaries=whole_run, size=_run_size(trainer), alpha=alpha,
                      trainer=type(trainer), max_physical_batch_size=trainer.sampling.max_physical_batch_size,
                      noise=trainer.noise)  # fmt: skip
    return Report(
        target.claim,
        confidence,
        tuple(findings),
        tuple(LowerBound(name, mu, target.claim.epsilon_at(mu)) for name, mu in lower.items()),
        shown,
        run,
        trainer.method.describe(),
        tuple(_caveats(trainer, target)),
        time.monotonic() - started,
    )


def _refuse_too_many(parameters: int, releases: int) -> None:
    """All releases are held at once."""
    most = MOST_NUMBERS // parameters
    if most < LEAST_RELEASES:
        allowed = (
            f"one of at most {MOST_NUMBERS // LEAST_RELEASES} parameters, or gnomon.audit.Probe with the same method"
        )
        raise SettingError("model", f"one of {parameters} parameters", allowed)
    if releases > most:
        raise SettingError("releases", releases, f"at most {most} for a model of {parameters} parameters")


def _caveats(trainer: Trainer, target: TrainerTarget) -> Iterator[str]:
    if not trainer.noise.private:
        yield "not private: seeded noise. Whoever knows the seed can subtract the noise."
    if target.dropout:
        yield OFF


def _run_size(trainer: Trainer) -> int | None:
    """The size of the probe for a whole run; public records must fit it."""
    if trainer.method.public is None:
        return None
    if isinstance(trainer.model, Probe):
        return trainer.model.size
    allowed = "0 for a method with public records and a model of one's own, or a Trainer of gnomon.audit.Probe"
    raise SettingError("whole_run", trainer.method.name, allowed)


class StepAudit:
    """Parts S, W, E and K of one target. What is deterministic is measured once; `run` can be repeated.

    >>> from gnomon.audit import probe_loss
    >>> from gnomon.release import SeededNoise
    >>> model, bench = Probe(8), ProbeBench(8, bound=1.0)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10,
    ...                   noise=SeededNoise(0), progress=False)
    >>> findings, lower, _ = StepAudit(TrainerTarget(trainer, bench.one), bench, canaries=4).run(20, alpha=1e-3)
    >>> all(one.ok for one in findings), lower["S and W"] < 1
    (True, True)
    """

    def __init__(self, target: Target, bench: Bench, canaries: int) -> None:
        self.target = target
        some = bench.canaries(target.view, canaries)
        parts.refuse_randomness(target, some)
        self.moved = parts.moved(target, bench.pairs(target.view))
        self.worst = max(self.moved, key=lambda one: one.length)
        self.canaries = parts.canaries(target, some)
        self._fixed = [
            parts.sensitivity(f"record ({self.worst.pair.name})", self.worst.length, target),
            *parts.non_finite(self.moved, target),
            parts.accumulation(target, bench.unequal(target.view)),
        ]
        self._sums: dict[str, tuple[Tensor, Batch | None, int]] = {
            "nobody": (target.view(target.releases(None, 1, noisy=False))[0], None, 1),
            "without": (self.worst.before, self.worst.pair.without, 1),
            "with": (self.worst.before + self.worst.change, self.worst.pair.joined, 1),
        }
        if self.canaries is not None:
            self._sums["canaries"] = self.canaries.sum, self.canaries.data, parts.PARTS

    def run(
        self, releases: int, alpha: float, exact: bool = True, bar: Any = None
    ) -> tuple[list[Finding], dict[str, float], dict[str, parts.Scores]]:
        """Findings, lower bounds on mu, and scores. Each bound exceeds the truth with probability alpha at most."""
        claim, view = self.target.claim, self.target.view
        findings = list(self._fixed)
        if self.canaries is not None:
            findings.append(parts.sensitivity("canary", max(self.canaries.lengths), self.target))
        seen: dict[str, Tensor] = {}
        for name, (middle, data, cut) in self._sums.items():
            rows = self.target.releases(data, releases, parts=cut)
            seen[name] = view(rows)
            uncovered = float(view.outside(rows).max())
            findings += parts.law(
                name, seen[name] - middle, uncovered, claim.noise_multiplier, exact or data is None, view.tensors
            )
            if bar is not None:
                bar.update(releases)
        noise = torch.cat([rows - self._sums[name][0] for name, rows in seen.items()])
        if bad := parts.numberless("all", noise):
            return findings + bad, {"S and W": bounds.LARGEST_MU}, {}
        shown = {"E": parts.scores(self.worst, seen["without"], seen["with"])}
        length = max(0.0, self.worst.length - parts.rounding(self.target))
        lower = {
            "S and W": min(length / max(bounds.sigma_at_most(noise, alpha), 1e-300), bounds.LARGEST_MU),
            "E, noncentral t": bounds.mu_by_noncentral_t(shown["E"].inside, shown["E"].outside, alpha),
            "E, threshold": bounds.mu_by_threshold(shown["E"].inside, shown["E"].outside, alpha),
        }
        if self.canaries is not None:
            shown["K"] = self.canaries.scores(seen["canaries"])
            lower["K, noncentral t"] = bounds.mu_by_noncentral_t(shown["K"].inside, shown["K"].outside, alpha)
        return findings + parts.together(noise, alpha, claim.noise_multiplier), lower, shown
