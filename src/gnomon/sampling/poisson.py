"""Poisson sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from gnomon import validate
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.scheme import Sampling

if TYPE_CHECKING:
    import dp_accounting
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class Poisson(Sampling):
    """Every record joins every step independently with probability `sample_rate`.

    An empty batch is released too, as pure noise. Zero-out adjacency costs the same as add-remove.

    >>> Poisson(0.025).name
    'Poisson q = 0.025'
    """

    kind: ClassVar[str] = "poisson"
    flag: ClassVar[str] = "poisson"
    name_pattern: ClassVar[str] = r"Poisson q = (?P<sample_rate>\S+)"

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

    @classmethod
    def for_batches(cls, batch_size: int, dataset_size: int) -> tuple[Self, float]:
        return cls(batch_size / dataset_size), batch_size

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        while True:
            yield (randomness.uniform(records) < self.sample_rate).nonzero().squeeze(1)

    def poisson_rate(self, adjacency: Adjacency) -> float | None:
        # under replace-one a sampled record is replaced: no accountant but PLD has a bound for the mixture of both
        return None if self.amplified and adjacency == "replace-one" else self.sample_rate

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        import dp_accounting  # noqa: PLC0415  # loaded by accounting, not by the command line's parser

        step = dp_accounting.PoissonSampledDpEvent(self.sample_rate, dp_accounting.GaussianDpEvent(noise_multiplier))
        return dp_accounting.SelfComposedDpEvent(step, steps)
