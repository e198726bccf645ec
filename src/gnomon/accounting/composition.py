"""The facts about a run that its epsilon depends on."""

from __future__ import annotations

from dataclasses import dataclass

import dp_accounting

from gnomon.accounting.sketch import Expansion
from gnomon.sampling.adjacency import Adjacency, sensitivity
from gnomon.sampling.scheme import Sampling


@dataclass(frozen=True)
class GaussianComposition:
    """Settings that have been checked, and the two forms in which accountants take them.

    >>> from gnomon.sampling.shuffled import Shuffled
    >>> run = GaussianComposition(Shuffled(40), noise_multiplier=2.0, steps=1200, delta=1e-5, adjacency="replace-one")
    >>> run.uses, run.multiplier
    (30, 1.0)
    """

    sampler: Sampling
    noise_multiplier: float
    steps: int
    delta: float
    adjacency: Adjacency
    expansion: Expansion | None = None
    """How a sketch of the sum can stretch what one record changes; None if it cannot."""

    @property
    def uses(self) -> int:
        """How many of the steps can read one record, at most."""
        return self.sampler.uses(self.steps)

    @property
    def multiplier(self) -> float:
        """Noise in units of what one record that is in the batch can move."""
        return self.noise_multiplier / sensitivity(self.adjacency)

    def event(self, multiplier: float) -> dp_accounting.DpEvent:
        """All steps together, with the given noise multiplier, for dp-accounting."""
        return self.sampler.event(multiplier, self.steps)
