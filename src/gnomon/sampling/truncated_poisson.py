"""Poisson sampling with a maximum batch size, for programs that need a fixed shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.scheme import DrawLaw, Sampling

if TYPE_CHECKING:
    import dp_accounting
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class TruncatedPoisson(Sampling):
    """Poisson sampling; a batch of more than `max_batch_size` records is cut to a random subset of that size.

    A record that joins a full batch displaces another record, so such a step can move the sum by 2 clip bounds instead
    of 1 (arXiv:2508.15089). `dataset_size` is declared and public, and includes the record in question: the guarantee
    is for the neighbours of data sets of `dataset_size` records. It also holds for fewer records as long as
    `max_batch_size` is at least `sample_rate * dataset_size`, because fewer records then fill batches more rarely.
    Runs with fewer records and a smaller `max_batch_size` are refused.

    >>> TruncatedPoisson(256 / 60000, max_batch_size=352, dataset_size=60000).name
    'truncated Poisson q = 0.00426667, at most 352 of 60000'
    """

    kind: ClassVar[str] = "truncated-poisson"
    flag: ClassVar[str] = "truncated"
    name_pattern: ClassVar[str] = (
        r"truncated Poisson q = (?P<sample_rate>\S+), at most (?P<max_batch_size>\d+) of (?P<dataset_size>\d+)"
    )

    sample_rate: float
    max_batch_size: int
    dataset_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", validate.sample_rate("sample_rate", self.sample_rate))
        object.__setattr__(self, "max_batch_size", validate.whole("max_batch_size", self.max_batch_size))
        object.__setattr__(self, "dataset_size", validate.whole("dataset_size", self.dataset_size))

    @property
    def name(self) -> str:
        size = f"at most {self.max_batch_size} of {self.dataset_size}"
        return f"truncated Poisson q = {self.sample_rate:.6g}, {size}"

    @property
    def amplified(self) -> bool:
        return True

    @property
    def rate(self) -> float:
        return self.sample_rate

    @classmethod
    def for_batches(cls, batch_size: int, dataset_size: int) -> tuple[Self, float]:
        # six standard deviations above the mean batch: truncation then costs next to nothing
        largest = math.ceil(batch_size + 6 * batch_size**0.5)
        return cls(batch_size / dataset_size, min(dataset_size, largest), dataset_size), batch_size

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        for batch in Poisson(self.sample_rate).draw(records, randomness):
            subset = randomness.uniform(len(batch)).argsort()[: self.max_batch_size]
            yield batch if len(batch) <= self.max_batch_size else batch[subset]

    def check_records(self, records: int) -> None:
        if records > self.dataset_size:
            allowed = f"at least the {records} records of the data set: full batches are part of the accounting"
            raise SettingError("dataset_size", self.dataset_size, allowed)
        mean = self.sample_rate * self.dataset_size
        if records < self.dataset_size and mean > self.max_batch_size:
            # above this mean a record's cost falls as records are added, so the declared number bounds no smaller one
            allowed = (
                f"at least {math.ceil(mean)}, the mean batch size of the declared {self.dataset_size} records, "
                f"or dataset_size = {records}, the records of the data set"
            )
            raise SettingError("max_batch_size", self.max_batch_size, allowed)

    def draw_law(self) -> DrawLaw:
        return DrawLaw(max_batch_size=self.max_batch_size, records=self.dataset_size)

    def sensitivity(self, adjacency: Adjacency) -> float:
        return 2.0  # a record that joins a full batch displaces another record

    def loss_components(self, noise_multiplier: float, adjacency: Adjacency) -> list[tuple[float, float]]:
        from scipy import stats  # noqa: PLC0415  # loaded by accounting, not by the command line's parser

        others, room = self.dataset_size - 1, self.max_batch_size - 1
        full = self.sample_rate * float(stats.binom.sf(room, others, self.sample_rate))
        # dp-accounting counts a full batch as replace-one with twice the sensitivity
        displacing = [(noise_multiplier / 4, full)] if full > 0 else []
        return super().loss_components(noise_multiplier, adjacency) + displacing

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        import dp_accounting  # noqa: PLC0415  # loaded by accounting, not by the command line's parser

        step = dp_accounting.TruncatedSubsampledGaussianDpEvent(
            dataset_size=self.dataset_size,
            sampling_probability=self.sample_rate,
            truncated_batch_size=self.max_batch_size,
            noise_multiplier=noise_multiplier,
        )
        return dp_accounting.SelfComposedDpEvent(step, steps)
