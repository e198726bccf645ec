"""Large-sample tests of the noise: tails, scale, grid, and independence of the noise of two Trainers.

Part W of `StepAudit` observes the few coordinates of the audited method, which are too few to detect truncated tails or
a scale that is one per cent low. The tests of this module use the same Trainer class, noise source, noise multiplier,
clip bound and divisor on a probe that is wide enough to detect both, with empty batches. The probe has no subspace,
because the release draws noise in the same way for every method.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnomon.accounting import FullBatch
from gnomon.audit import bounds
from gnomon.audit.attack_data import Probe, probe_loss
from gnomon.audit.findings import FALSE_ALARM_RATE, Finding, non_finite_values
from gnomon.audit.target import TrainerTarget
from gnomon.methods import ProjectThenClip
from gnomon.methods.steps import Descent
from gnomon.release import NoiseSource
from gnomon.release.door import GRID_BITS
from gnomon.subspaces import Ambient
from gnomon.training import Trainer
from gnomon.updates import gradients

DRAWS = 2**25
"""Default number of draws. 19 of them are expected beyond five standard deviations, so truncation there is found."""

WIDTH = 2**18
"""Largest number of parameters of the probe."""

TAILS = (2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
"""Thresholds beyond which draws are counted, in standard deviations. They share the error probability of one test."""

TAIL_MARGIN = 2.0**-19
"""Margin added to each threshold, so that noise truncated there and then rounded to the grid is not counted."""

GRID_SAMPLE = 2**20
"""Approximate number of draws whose multiple of the grid step is determined, enough to detect earlier rounding."""

SOURCE_WIDTH, SOURCE_STEPS = 4096, 4
"""Parameters and steps of each Trainer in the comparison of noise sources."""


def check_noise_distribution(trainer: Trainer, draws: int = DRAWS) -> list[Finding]:
    """Draw at least `draws` normals through the release of a Trainer's step, and test their distribution.

    Each finding fails by chance with probability `FALSE_ALARM_RATE` at most.

    >>> from gnomon.release import SeededNoise
    >>> model = Probe(4)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10,
    ...                   noise=SeededNoise(0), progress=False)
    >>> [finding.what for finding in check_noise_distribution(trainer, 2**18) if not finding.ok]
    []
    """
    width = min(WIDTH, draws)
    steps = -(-draws // width)
    statistics = NoiseStatistics(trainer.account.noise_multiplier, trainer.mechanism.max_grad_norm)
    for row in noise_rows(trainer, width, steps, trainer.noise):
        if failures := non_finite_values("release", row):
            return failures
        statistics.add(row)
    return statistics.findings()


@dataclass
class NoiseStatistics:
    """Running statistics of noise: counts and the sum of squares.

    Rows of noise are given in units of the clip bound, as read from a float32 model. Before the division by the
    expected batch size they lie on the grid of the release; the multiple of the grid step can be determined from
    float32 if it is below 2^21.

    >>> statistics = NoiseStatistics(noise_multiplier=1.0, bound=1.0)
    >>> statistics.add(torch.tensor([0.5, -3.0 * 2.0**-20, 0.1], dtype=torch.float64))
    >>> statistics.count, statistics.placed, statistics.even, statistics.off_grid
    (3, 3, 2, 1)
    """

    noise_multiplier: float
    bound: float
    count: int = 0
    squares: float = 0.0
    beyond: list[int] = field(default_factory=lambda: [0] * len(TAILS))
    """Number of draws beyond each threshold in `TAILS`."""
    placed: int = 0
    """Number of draws whose multiple of the grid step was determined."""
    even: int = 0
    """Number of placed draws at an even multiple."""
    off_grid: int = 0
    """Number of draws that are not a multiple of the grid step."""

    @property
    def grid(self) -> float:
        """The distance between two neighbouring values that can be released, in units of the clip bound."""
        return 2.0 ** (math.floor(math.log2(self.noise_multiplier * self.bound)) - GRID_BITS) / self.bound

    def add(self, row: Tensor) -> None:
        """Add the noise of one step."""
        self.count += row.numel()
        self.squares += float(torch.linalg.vector_norm(row)) ** 2
        size = row.abs()
        far = size[size > self.noise_multiplier * TAILS[0]] / self.noise_multiplier
        for i, tail in enumerate(TAILS):
            self.beyond[i] += int((far > tail + TAIL_MARGIN).sum())
        if self.placed < GRID_SAMPLE:
            self._add_grid_positions(row / self.grid)

    def _add_grid_positions(self, multiples: Tensor) -> None:
        """Count positions on the grid, given as multiples of its step."""
        size = multiples.abs()
        nearest = multiples.round()
        distance = (multiples - nearest).abs_()
        # The cast to float32 and the division each err by 2^-24, far less than a grid step for small multiples.
        self.off_grid += int(((size < 2.0**18) & (distance > size * 2.0**-22 + 2.0**-20)).sum())
        exact = size < 2.0**21
        self.placed += int(exact.sum())
        self.even += int((exact & (nearest.remainder(2) == 0)).sum())

    def findings(self) -> list[Finding]:
        """Return the tests. Each fails by chance with probability `FALSE_ALARM_RATE` at most, all tails together."""
        scale = bounds.deviation(self.squares / self.noise_multiplier**2, self.count, FALSE_ALARM_RATE)
        findings = [Finding.of("W", "release: deviation / declared", scale)]
        for tail, count in zip(TAILS, self.beyond, strict=True):
            chance = math.erfc((tail + TAIL_MARGIN) / math.sqrt(2))
            band = bounds.occurrences(count, self.count, chance, FALSE_ALARM_RATE / len(TAILS))
            findings.append(Finding.of("W", f"release: draws beyond {tail:g} deviations", band))
        even = bounds.occurrences(self.even, self.placed, 0.5, FALSE_ALARM_RATE)
        return [
            *findings,
            Finding("W", "release: values off the grid", self.off_grid, "none", self.off_grid == 0),
            # A sum that was rounded to float32 first lies half-way between two multiples too often, and is then rounded
            # to the even one.
            Finding.of("W", "release: even multiples of the grid", even),
        ]


def check_independent_sources(trainer: Trainer) -> list[Finding]:
    """Test that the noise of a Trainer and of two newly created Trainers is independent.

    A seeded source is not secret, and equal seeds give equal noise: for seeded noise nothing is tested.

    >>> model = Probe(4)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10, progress=False)
    >>> [finding.ok for finding in check_independent_sources(trainer)]
    [True]
    """
    if not trainer.noise.private:
        return []
    streams = [
        row for noise in (trainer.noise, None, None) for row in noise_rows(trainer, SOURCE_WIDTH, SOURCE_STEPS, noise)
    ]
    cosine = bounds.largest_cosine(torch.stack(streams), FALSE_ALARM_RATE)
    return [Finding.of("W", "sources: cosine of two Trainers' noise", cosine)]


def noise_rows(trainer: Trainer, width: int, steps: int, noise: NoiseSource | None) -> Iterator[Tensor]:
    """Yield the noise of each step on a probe of `width` parameters, in units of the clip bound.

    If `noise` is None, the Trainer that makes the steps creates its own noise source.
    """
    model = Probe(width)
    method = dataclasses.replace(
        trainer.method, update=gradients, subspace=Ambient(), route=ProjectThenClip(), step=Descent(), average=False,
        full_batch=False,
    )  # fmt: skip
    mechanism = dataclasses.replace(
        trainer.mechanism,
        method=method,
        sampler=FullBatch(),
        steps=steps,
        target_epsilon=None,
        adjacency=None,
        accountant="pld",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    probe_trainer = type(trainer)(model, probe_loss, optimizer, mechanism=mechanism, noise=noise, progress=False)
    return TrainerTarget(probe_trainer, (torch.zeros(1, width), torch.zeros(1))).each(None, steps)
