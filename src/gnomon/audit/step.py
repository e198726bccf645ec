"""The audit of one training step.

The audit of a step has four parts: S measures the sensitivity with noise off, W tests the distribution of the noise,
E distinguishes two neighbouring data sets, and K looks for many canaries in one release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import linalg, stats
from torch import Tensor

from gnomon.audit import bounds
from gnomon.audit.attack_data import AttackData, Batch, NeighbouringPair, single_records
from gnomon.audit.findings import FALSE_ALARM_RATE, Finding, Scores, non_finite_values
from gnomon.audit.target import Target
from gnomon.errors import SettingError

SENSITIVITY_TOLERANCE = 1e-4
"""Rounding error allowed in the norm of a contribution, in units of the clip bound."""

UNCOVERED_TOLERANCE = 1e-3
"""Rounding error allowed outside the public subspace, relative to the norm of the release."""

ACCUMULATION_TOLERANCE = 0.05
"""Rounding error allowed between a batch and the sum of its records' contributions, in units of the clip bound."""

MAX_COMPARED_COORDINATES = 2048
"""Largest number of coordinates that are compared with each other; single coordinates are all tested."""

PHYSICAL_BATCHES = 4
"""Number of physical batches into which the canaries are split."""

MIN_ORTHOGONAL_PART = 0.8
"""A canary is scored if at least this fraction of its contribution is orthogonal to the other canaries'."""


class StepAudit:
    """Parts S, W, E and K of the audit of one target.

    The deterministic measurements are made once, in the constructor; `run` draws new releases on each call.

    Args:
        target: the step under audit.
        attack: the data sets of the attack.
        canaries: the largest number of canaries in part K.

    Raises:
        SettingError: two releases of the same data set without noise differ.

    >>> from gnomon.audit import Probe, ProbeAttackData, TrainerTarget, probe_loss
    >>> from gnomon.release import SeededNoise
    >>> from gnomon.training import Trainer
    >>> model, attack = Probe(8), ProbeAttackData(8, bound=1.0)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10,
    ...                   noise=SeededNoise(0), progress=False)
    >>> step = StepAudit(TrainerTarget(trainer, attack.example), attack, canaries=4)
    >>> findings, lower, _ = step.run(20, alpha=1e-3)
    >>> all(finding.ok for finding in findings), lower["S and W"] < 1
    (True, True)
    """

    def __init__(self, target: Target, attack: AttackData, canaries: int) -> None:
        self.target = target
        candidates = attack.canaries(target.whitening, canaries)
        refuse_randomness(target, candidates)
        self.sensitivities = measure_sensitivities(target, attack.pairs(target.whitening))
        self.worst = max(self.sensitivities, key=lambda measured: measured.norm)
        self.canaries = measure_canaries(target, candidates)
        self._deterministic = [
            sensitivity_finding(f"record ({self.worst.pair.name})", self.worst.norm, target),
            *non_finite_findings(self.sensitivities, target),
            accumulation_finding(target, attack.unequal_norms(target.whitening)),
        ]
        # For each data set: its noise-free sum, its records, and the number of physical batches.
        self._sums: dict[str, tuple[Tensor, Batch | None, int]] = {
            "empty": (target.whitening(target.releases(None, 1, noisy=False))[0], None, 1),
            "without": (self.worst.base_sum, self.worst.pair.base, 1),
            "with": (self.worst.base_sum + self.worst.change, self.worst.pair.with_canary, 1),
        }
        if self.canaries is not None:
            self._sums["canaries"] = self.canaries.sum, self.canaries.data, PHYSICAL_BATCHES

    def run(
        self, releases: int, alpha: float, exact: bool = True, bar: Any = None
    ) -> tuple[list[Finding], dict[str, float], dict[str, Scores]]:
        """Release every data set `releases` times and evaluate the releases.

        Args:
            releases: the number of releases of each data set.
            alpha: the probability with which each lower bound may exceed the true mu.
            exact: whether the noise must be exactly the declared one; otherwise it may be larger.
            bar: a progress bar, updated by `releases` for each data set.

        Returns:
            The findings, the lower bounds on mu by name, and the scores of parts E and K.
        """
        claim, whitening = self.target.claim, self.target.whitening
        findings = list(self._deterministic)
        if self.canaries is not None:
            findings.append(sensitivity_finding("canary", max(self.canaries.norms), self.target))
        observed: dict[str, Tensor] = {}
        for name, (noise_free, data, physical_batches) in self._sums.items():
            changes = self.target.releases(data, releases, physical_batches=physical_batches)
            observed[name] = whitening(changes)
            uncovered = float(whitening.uncovered_norms(changes).max())
            findings += noise_findings(
                name, observed[name] - noise_free, uncovered, claim.noise_multiplier, exact or data is None,
                whitening.tensor_sizes,
            )  # fmt: skip
            if bar is not None:
                bar.update(releases)
        noise = torch.cat([rows - self._sums[name][0] for name, rows in observed.items()])
        if failures := non_finite_values("all", noise):
            return findings + failures, {"S and W": bounds.LARGEST_MU}, {}
        scores = {"E": pair_scores(self.worst, observed["without"], observed["with"])}
        norm = max(0.0, self.worst.norm - rounding_error(self.target))
        lower = {
            "S and W": min(norm / max(bounds.sigma_upper_bound(noise, alpha), 1e-300), bounds.LARGEST_MU),
            "E, noncentral t": bounds.mu_by_noncentral_t(scores["E"].inside, scores["E"].outside, alpha),
            "E, threshold": bounds.mu_by_threshold(scores["E"].inside, scores["E"].outside, alpha),
        }
        if self.canaries is not None:
            scores["K"] = self.canaries.scores(observed["canaries"])
            lower["K, noncentral t"] = bounds.mu_by_noncentral_t(scores["K"].inside, scores["K"].outside, alpha)
        return findings + joint_noise_findings(noise, alpha, claim.noise_multiplier), lower, scores


@dataclass(frozen=True)
class Sensitivity:
    """The change of the noise-free sum that the canary of a pair causes."""

    pair: NeighbouringPair
    base_sum: Tensor
    """The sum without the canary, in white coordinates."""
    change: Tensor
    """The change in white coordinates, which the noise has to hide."""
    uncovered: float
    """The norm of the part of the change that no noise covers."""

    @property
    def norm(self) -> float:
        """The norm of the change in units of the clip bound; infinite if it is uncovered by noise or not finite."""
        norm = float(self.change.norm())
        covered = self.uncovered <= UNCOVERED_TOLERANCE * max(1.0, norm)
        return norm if covered and math.isfinite(norm) else math.inf


def refuse_randomness(target: Target, data: Batch) -> None:
    """Raise SettingError if two noise-free sums of the same data differ.

    The audit would mistake random differences for a record's contribution.
    """
    first, second = (target.releases(data, 1, noisy=False)[0] for _ in range(2))
    distance, norm = float(torch.dist(first, second)), float(first.norm())
    if distance > SENSITIVITY_TOLERANCE * max(1.0, norm):
        raise SettingError.with_message(
            f"the model or the loss draws random numbers: two sums of the same records without noise differ by "
            f"{distance:.2g} C. Only dropout modules are switched off for the audit; remove calls such as F.dropout or "
            "torch.rand from the forward pass",
            name="model",
        )


def measure_sensitivities(target: Target, pairs: list[NeighbouringPair]) -> list[Sensitivity]:
    """Return, for each pair, the difference of two sums with noise off (part S)."""
    base_sums: dict[int, Tensor] = {}  # several pairs share the data set without the canary
    measured = []
    for pair in pairs:
        if id(pair.base) not in base_sums:
            base_sums[id(pair.base)] = target.releases(pair.base, 1, noisy=False)
        base_sum = base_sums[id(pair.base)]
        change = target.releases(pair.with_canary, 1, noisy=False) - base_sum
        uncovered = float(target.whitening.uncovered_norms(change)[0])
        measured.append(Sensitivity(pair, target.whitening(base_sum)[0], target.whitening(change)[0], uncovered))
    return measured


def sensitivity_finding(what: str, norm: float, target: Target) -> Finding:
    """Test that no record moves the sum by more than the clip bound (part S)."""
    allowed = 1 + SENSITIVITY_TOLERANCE + rounding_error(target)
    return Finding("S", f"one {what} moves the sum by", norm, f"at most {allowed:.5g} C", norm <= allowed)


def non_finite_findings(sensitivities: list[Sensitivity], target: Target) -> list[Finding]:
    """Test that a record with a non-finite update contributes nothing, alone and in a batch (part S)."""
    non_finite = [measured for measured in sensitivities if not measured.pair.finite]
    if not non_finite:
        return []
    alone = max((measured.norm for measured in non_finite if measured.pair.base is None), default=0.0)
    in_batch = max((measured.norm for measured in non_finite if measured.pair.base is not None), default=0.0)
    allowed = SENSITIVITY_TOLERANCE + rounding_error(target)  # batches of different sizes may add in different orders
    return [
        Finding("S", "non-finite record alone moves the sum by", alone, "exactly 0 C", alone == 0),
        Finding(
            "S", "non-finite record in a batch moves it by", in_batch, f"at most {allowed:.2g} C", in_batch <= allowed
        ),
    ]


def accumulation_finding(target: Target, batch: Batch) -> Finding:
    """Test that a batch in several physical batches is the sum of its records' single contributions (part S).

    A record alone is a single physical batch, so a clip weight that belongs to a record of another physical batch is
    detected, in whichever order the records come.
    """
    empty = target.releases(None, 1, noisy=False)
    separate = sum((target.releases(record, 1, noisy=False) - empty for record in single_records(batch)), empty)
    together = target.releases(batch, 1, noisy=False, physical_batches=PHYSICAL_BATCHES)
    distance = float(target.whitening(together - separate).norm())
    allowed = ACCUMULATION_TOLERANCE + (len(batch[0]) + 2) * rounding_error(target)
    what = f"{len(batch[0])} records, together and alone, differ by"
    return Finding("S", what, distance, f"at most {allowed:.2g} C", distance <= allowed)


def rounding_error(target: Target) -> float:
    """Return a bound on the rounding error of a difference of two sums: they lie on a grid of 2^-20 sigma."""
    return 2.0**-20 * target.claim.noise_multiplier * float(target.whitening.parameters) ** 0.5


def noise_findings(
    name: str,
    noise: Tensor,
    uncovered: float,
    declared: float,
    exact: bool = True,
    tensor_sizes: Mapping[str, int] | None = None,
) -> list[Finding]:
    """Test that the noise of one data set's releases has the declared distribution (part W).

    Args:
        name: the data set.
        noise: releases minus the noise-free sum, in white coordinates, (N, d).
        uncovered: the largest norm of a release outside the public subspace.
        declared: the declared standard deviation.
        exact: whether the noise must be exactly the declared one. If not, for instance with noise before clipping,
            only too little noise fails.
        tensor_sizes: the number of coordinates of each parameter tensor, where coordinates are parameters.
    """
    if failures := non_finite_values(name, noise):
        return failures
    compared = compared_coordinates(noise)
    tests = {
        "deviation / declared": bounds.scale(noise, FALSE_ALARM_RATE, declared),
        "deviation of each coordinate": bounds.coordinates(noise, FALSE_ALARM_RATE, declared),
        "singular values": bounds.singular_values(compared, FALSE_ALARM_RATE, declared),
    }
    if tensor_sizes is not None and len(tensor_sizes) > 1:
        worst, band = bounds.blocks(noise, tensor_sizes, FALSE_ALARM_RATE, declared)
        tests[f"deviation of {worst}"] = band
    if not exact:
        tests = {what: bounds.Band(band.smallest, band.largest, band.low, math.inf) for what, band in tests.items()}
    tests["cosine of two coordinates"] = bounds.largest_cosine(compared.T, FALSE_ALARM_RATE)
    findings = [Finding.of("W", f"{name}: {what}", band) for what, band in tests.items()]
    if exact:
        sample = compared.flatten()[: 10**5].numpy() / declared
        p = float(stats.kstest(sample, "norm").pvalue)
        findings.append(
            Finding("W", f"{name}: normal distribution, p", p, f"at least {FALSE_ALARM_RATE:g}", p >= FALSE_ALARM_RATE)
        )
    longest = float(noise.norm(dim=1).max())
    ok = uncovered <= UNCOVERED_TOLERANCE * max(1.0, longest)
    allowed = f"at most {UNCOVERED_TOLERANCE:g} of it"
    return [*findings, Finding("W", f"{name}: outside the subspace", uncovered, allowed, ok)]


def joint_noise_findings(noise: Tensor, alpha: float, declared: float) -> list[Finding]:
    """Test the noise of all releases together: no draw is used twice, and there is not too little noise (part W).

    The second test has the confidence of a lower bound: its upper bound on the standard deviation, together with the
    sensitivity of part S, gives the lower bound on mu.
    """
    largest = bounds.sigma_upper_bound(noise, alpha) / declared
    cosine = bounds.largest_cosine(compared_coordinates(noise), FALSE_ALARM_RATE)
    return [
        Finding.of("W", "all: cosine of two steps", cosine),
        Finding("W", "all: upper bound on the deviation", largest, "at least 1 of declared", largest >= 1),
    ]


def compared_coordinates(noise: Tensor) -> Tensor:
    """Return all coordinates, or a new random choice of `MAX_COMPARED_COORDINATES` of them."""
    if noise.shape[1] <= MAX_COMPARED_COORDINATES:
        return noise
    generator = torch.Generator()
    generator.seed()
    return noise[:, torch.randperm(noise.shape[1], generator=generator)[:MAX_COMPARED_COORDINATES]]


def pair_scores(sensitivity: Sensitivity, without: Tensor, with_canary: Tensor) -> Scores:
    """Project releases on both data sets, in white coordinates, on the change that the canary causes (part E)."""
    norm = float(sensitivity.change.norm())
    direction = sensitivity.change / norm if norm > 0 else sensitivity.change
    return Scores((with_canary - sensitivity.base_sum) @ direction, (without - sensitivity.base_sum) @ direction)


@dataclass(frozen=True)
class Canaries:
    """Records whose contributions are orthogonal enough to be detected separately in one release (part K)."""

    data: Batch
    norms: list[float]
    """The norm of each candidate's contribution when it is alone, in units of the clip bound."""
    directions: Tensor
    """Orthonormal directions of the canaries, (K, d), in white coordinates."""
    shifts: Tensor
    """The component of each canary along its own direction, (K,)."""
    blank_directions: Tensor
    """As many directions that are orthogonal to all canaries."""
    sum: Tensor
    """The noise-free sum of all canaries."""

    def scores(self, releases: Tensor) -> Scores:
        """Return the scores of all canaries in each release; the observer knows every other record."""
        noise = releases - self.sum
        inside = noise @ self.directions.T + self.shifts
        return Scores(inside.flatten(), (noise @ self.blank_directions.T).flatten())


def measure_canaries(target: Target, candidates: Batch) -> Canaries | None:
    """Measure each candidate alone with noise off, and keep those that have a direction of their own.

    Returns:
        The canaries, or None if a contribution is not finite or no candidate has a direction of its own.
    """
    empty = target.whitening(target.releases(None, 1, noisy=False))[0]
    contributions = torch.stack(
        [target.whitening(target.releases(record, 1, noisy=False))[0] - empty for record in single_records(candidates)]
    )
    if not bool(torch.isfinite(contributions).all()):
        return None
    factor, triangle, order = linalg.qr(contributions.T.numpy(), mode="economic", pivoting=True)
    orthogonal = np.abs(np.diag(triangle))
    count = int((orthogonal >= MIN_ORTHOGONAL_PART * max(orthogonal[0], 1e-12)).sum())
    count = min(count, target.whitening.size // 2)
    if count == 0:
        return None
    chosen = torch.from_numpy(np.array(order[:count]))
    signs = np.sign(np.diag(triangle)[:count])
    directions = torch.from_numpy((factor[:, :count] * signs).T.copy())
    generator = torch.Generator().manual_seed(1)
    blank = torch.randn(count, target.whitening.size, generator=generator, dtype=torch.float64)
    blank = torch.linalg.qr((blank - blank @ directions.T @ directions).T).Q.T
    data = candidates[0][chosen], candidates[1][chosen]
    together = target.whitening(target.releases(data, 1, noisy=False, physical_batches=PHYSICAL_BATCHES))[0]
    norms = contributions.norm(dim=1).tolist()
    return Canaries(data, norms, directions, torch.from_numpy(orthogonal[:count]), blank, together)
