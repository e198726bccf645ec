"""The noise of a step, drawn by the million: tails, scale, grid, and whether two Trainers share a stream.

The tests of part W in `parts` look at the few coordinates of the audited method, where a cut in the tails or a scale
that is one per cent low cannot show. Here the same Trainer class, noise source, noise multiplier, clip bound and
divisor make steps on a probe that is wide enough to show both, with nobody taking part. The probe has no subspace:
the door draws noise in the same way for every method.
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
from gnomon.audit.bench import Probe, probe_loss
from gnomon.audit.findings import Finding
from gnomon.audit.parts import LAW, numberless
from gnomon.audit.target import TrainerTarget
from gnomon.methods import ProjectThenClip
from gnomon.methods.steps import Descent
from gnomon.release import NoiseSource
from gnomon.release.door import GRID_BITS
from gnomon.subspaces import Ambient
from gnomon.training import Trainer
from gnomon.updates import gradients

DRAWS = 2**25
"""How many normals are drawn: 19 of them are expected beyond five deviations, and a cut there shows."""

WIDTH = 2**18
"""How many parameters the probe has, at most."""

TAILS = (2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
"""Where tails are counted, in deviations. The error probability of one test is shared by all."""

BESIDE = 2.0**-19
"""Tails are counted this far beyond, so that noise cut exactly there and then rounded to the grid is not among them."""

LEGIBLE = 2**20
"""Of about so many draws it is told which multiple of the grid they are: rounding before the grid shows in fewer."""

NARROW, STEPS = 4096, 4
"""Parameters and steps of each Trainer whose stream is compared with another's."""


def noise_law(trainer: Trainer, draws: int = DRAWS) -> list[Finding]:
    """Draws so many normals through the door of a Trainer's step, and tests their law.

    >>> from gnomon.release import SeededNoise
    >>> model = Probe(4)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10,
    ...                   noise=SeededNoise(0), progress=False)
    >>> [one.what for one in noise_law(trainer, 2**18) if not one.ok]
    []
    """
    width = min(WIDTH, draws)
    steps = -(-draws // width)
    tally = NoiseStatistics(trainer.account.noise_multiplier, trainer.mechanism.max_grad_norm)
    for row in rows(trainer, width, steps, trainer.noise):
        if bad := numberless("door", row):
            return bad
        tally.add(row)
    return tally.findings()


@dataclass
class NoiseStatistics:
    """What is kept of many draws: counts, and the sum of squares.

    Rows are noise in units of the clip bound, as a float32 model shows it. Before the division by the expected batch
    size they lie on the grid of the door, and which multiple of it a value is can be told from up to 2^21 of them.

    >>> tally = NoiseStatistics(noise_multiplier=1.0, bound=1.0)
    >>> tally.add(torch.tensor([0.5, -3.0 * 2.0**-20, 0.1], dtype=torch.float64))
    >>> tally.count, tally.legible, tally.even, tally.off_grid
    (3, 3, 2, 1)
    """

    noise_multiplier: float
    bound: float
    count: int = 0
    squares: float = 0.0
    beyond: list[int] = field(default_factory=lambda: [0] * len(TAILS))
    legible: int = 0
    even: int = 0
    off_grid: int = 0

    @property
    def grid(self) -> float:
        """The distance of two values that the door can release, in units of the clip bound."""
        return 2.0 ** (math.floor(math.log2(self.noise_multiplier * self.bound)) - GRID_BITS) / self.bound

    def add(self, row: Tensor) -> None:
        """Takes note of the noise of one step."""
        self.count += row.numel()
        self.squares += float(torch.linalg.vector_norm(row)) ** 2
        size = row.abs()
        far = size[size > self.noise_multiplier * TAILS[0]] / self.noise_multiplier
        for i, tail in enumerate(TAILS):
            self.beyond[i] += int((far > tail + BESIDE).sum())
        if self.legible < LEGIBLE:
            self._place(row / self.grid)

    def _place(self, multiples: Tensor) -> None:
        """Takes note of where values lie on the grid, given as multiples of its step."""
        size = multiples.abs()
        nearest = multiples.round()
        apart = (multiples - nearest).abs_()
        # a cast to float32 and the division err by 2^-24 each; close to zero that is far less than a grid step
        self.off_grid += int(((size < 2.0**18) & (apart > size * 2.0**-22 + 2.0**-20)).sum())
        legible = size < 2.0**21
        self.legible += int(legible.sum())
        self.even += int((legible & (nearest.remainder(2) == 0)).sum())

    def findings(self) -> list[Finding]:
        """The tests, each of which fails by chance with probability `LAW` at most, the tails together."""
        declared = self.noise_multiplier**2
        found = [
            Finding.of("W", "door: deviation / declared", bounds.deviation(self.squares / declared, self.count, LAW))
        ]
        for tail, count in zip(TAILS, self.beyond, strict=True):
            chance = math.erfc((tail + BESIDE) / math.sqrt(2))
            band = bounds.occurrences(count, self.count, chance, LAW / len(TAILS))
            found.append(Finding.of("W", f"door: draws beyond {tail:g} deviations", band))
        even = bounds.occurrences(self.even, self.legible, 0.5, LAW)
        return [
            *found,
            Finding("W", "door: values off the grid", self.off_grid, "none", self.off_grid == 0),
            # a sum that was rounded to float32 before lies half-way between two multiples too often, and goes to the
            # even one
            Finding.of("W", "door: even multiples of the grid", even),
        ]


def separate_sources(trainer: Trainer) -> list[Finding]:
    """Compares the noise of a Trainer with that of two others made afresh: nobody's stream is another's.

    A seeded source is nobody's secret, and its stream is the seed's: nothing is compared there.

    >>> model = Probe(4)
    >>> trainer = Trainer(model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.1,
    ...                   expected_batch_size=16, noise_multiplier=1.0, target_delta=1e-5, steps=10, progress=False)
    >>> [one.ok for one in separate_sources(trainer)]
    [True]
    """
    if not trainer.noise.private:
        return []
    streams = [row for noise in (trainer.noise, None, None) for row in rows(trainer, NARROW, STEPS, noise)]
    return [Finding.of("W", "sources: likeness of two Trainers' noise", bounds.likeness(torch.stack(streams), LAW))]


def rows(trainer: Trainer, width: int, steps: int, noise: NoiseSource | None) -> Iterator[Tensor]:
    """The noise of some steps on a probe of so many parameters, in units of the clip bound.

    Without a source, the Trainer that makes the steps gets one of its own.
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
        max_steps=None,
        adjacency=None,
        accountant="pld",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    wide = type(trainer)(model, probe_loss, optimizer, mechanism=mechanism, noise=noise, progress=False)
    return TrainerTarget(wide, (torch.zeros(1, width), torch.zeros(1))).each(None, steps)
