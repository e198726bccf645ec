"""Poisson sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import dp_accounting

from gnomon import validate
from gnomon.sampling.scheme import Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class Poisson(Sampling):
    """Every record joins a step on its own with probability `sample_rate`.

    Empty batches are released too, as pure noise. Zero-out costs the same as add-remove.

    >>> Poisson(0.025).name
    'Poisson q = 0.025'
    """

    kind: ClassVar[str] = "poisson"

    sample_rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", validate.sample_rate("sample_rate", self.sample_rate))

    @property
    def name(self) -> str:
        return f"Poisson q = {self.sample_rate:.6g}"

    @property
    def amplified(self) -> bool:
        return self.sample_rate < 1

    @property
    def rate(self) -> float:
        return self.sample_rate

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        while True:
            yield (randomness.uniform(records) < self.sample_rate).nonzero().squeeze(1)

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        one = dp_accounting.PoissonSampledDpEvent(self.sample_rate, dp_accounting.GaussianDpEvent(noise_multiplier))
        return dp_accounting.SelfComposedDpEvent(one, steps)
