"""The audit of a Trainer: all parts of the audit and one verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tqdm.auto import tqdm

from gnomon import validate
from gnomon.audit.attack_data import AttackData, Probe, ProbeAttackData, RecordAttackData
from gnomon.audit.findings import LowerBound
from gnomon.audit.noise import DRAWS, check_independent_sources, check_noise_distribution
from gnomon.audit.onerun import OneRun, draw_membership, one_run
from gnomon.audit.report import Report
from gnomon.audit.sampling import check_sampling
from gnomon.audit.step import StepAudit
from gnomon.audit.target import TrainerTarget
from gnomon.errors import SettingError
from gnomon.training import Trainer

MAX_VALUES = 2**26
"""Largest number of values in the releases of one data set: 512 MiB in float64."""

MIN_RELEASES = 20
MIN_DRAWS = 10_000

BOUNDS = 4
"""Number of lower bounds that share the error probability of an audit."""

DROPOUT_CAVEAT = (
    "dropout was switched off in the audited copies and is not covered by the audit; its masks do not depend on the "
    "records, and updates are clipped after dropout"
)


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
    """Attack the step of a Trainer that has not started, and return a lower bound on its epsilon.

    Copies of the Trainer train on data sets of the auditor's choice; the Trainer itself makes no step, and nothing is
    charged. The copies draw from its noise source, so a seeded run continues with different noise after an audit. With
    the `Probe` model the auditor chooses every gradient and the bound is tight; any other model is attacked with
    records of `data`.

    Args:
        trainer: the Trainer under audit.
        data: records for the model; not needed for a `Probe`.
        canaries: the largest number of canaries in one release.
        releases: the number of releases of each data set.
        confidence: the confidence of the lower bound.
        draws: the number of normals that are drawn to test the tails of the noise distribution.
        whole_run: if positive, also attack a complete run of the method on a probe with this many canaries, which takes
            as long as such a run.
        progress: whether to show a progress bar.

    Returns:
        The report. Its lower bound on epsilon exceeds the true epsilon with probability `1 - confidence` at most.

    Raises:
        SettingError: a setting is invalid, or the model is too large to audit or draws random numbers itself.

    >>> import torch
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
    validate.whole("releases", releases, least=MIN_RELEASES)
    validate.probability("confidence", confidence)
    validate.whole("draws", draws, least=MIN_DRAWS)
    validate.whole("whole_run", whole_run, least=0)
    if isinstance(trainer.model, Probe):
        attack: AttackData = ProbeAttackData(trainer.model.size, trainer.mechanism.max_grad_norm)
    elif data is None:
        raise SettingError("data", None, "records for the model, or a Trainer of gnomon.audit.Probe")
    else:
        attack = RecordAttackData(data)
    if whole_run:  # raise errors about the whole run before anything takes time
        _whole_run_size(trainer)
        draw_membership(trainer.mechanism.sampler, whole_run)
    started = time.monotonic()
    alpha = (1 - confidence) / (BOUNDS + bool(whole_run))
    target = TrainerTarget(trainer, attack.example)
    _check_memory(target.whitening.parameters, releases)
    with tqdm(total=4 * releases, unit="release", disable=not progress, desc="audit", dynamic_ncols=True) as bar:
        step = StepAudit(target, attack, canaries)
        findings, lower, scores = step.run(releases, alpha, trainer.method.pre_noise == 0, bar)
    findings += check_noise_distribution(trainer, draws)
    findings += check_independent_sources(trainer)
    findings += check_sampling(type(trainer), target.claim, noise=trainer.noise)
    run: OneRun | None = None
    if whole_run:
        run = one_run(
            target.claim,
            method=trainer.method,
            canaries=whole_run,
            size=_whole_run_size(trainer),
            alpha=alpha,
            trainer=type(trainer),
            max_physical_batch_size=trainer.sampling.max_physical_batch_size,
            noise=trainer.noise,
        )
    return Report(
        target.claim,
        confidence,
        tuple(findings),
        tuple(LowerBound(name, mu, target.claim.epsilon_at(mu)) for name, mu in lower.items()),
        scores,
        run,
        trainer.method.describe(),
        tuple(_caveats(trainer, target)),
        time.monotonic() - started,
    )


def _check_memory(parameters: int, releases: int) -> None:
    """Raise SettingError if the releases of one data set, which are held together, would take too much memory."""
    most = MAX_VALUES // parameters
    if most < MIN_RELEASES:
        raise SettingError.with_message(
            f"a model of {parameters} parameters is too large to audit; use one of at most "
            f"{MAX_VALUES // MIN_RELEASES} parameters, or gnomon.audit.Probe with the same method",
            name="model",
        )
    if releases > most:
        raise SettingError(
            "releases",
            releases,
            f"at most {most} for a model of {parameters} parameters, or gnomon.audit.Probe with the same method",
        )


def _caveats(trainer: Trainer, target: TrainerTarget) -> Iterator[str]:
    if not trainer.noise.private:
        yield "not private: seeded noise. Whoever knows the seed can subtract the noise."
    if target.dropout:
        yield DROPOUT_CAVEAT


def _whole_run_size(trainer: Trainer) -> int | None:
    """Return the number of parameters of the probe for a whole run, which public records must match; None if free."""
    if trainer.method.public is None:
        return None
    if isinstance(trainer.model, Probe):
        return trainer.model.size
    raise SettingError.with_message(
        f"whole_run cannot be used with {trainer.method.name} and a model of your own: the public records do not fit "
        "the probe. Set whole_run = 0, or audit a Trainer of gnomon.audit.Probe",
        name="whole_run",
    )
