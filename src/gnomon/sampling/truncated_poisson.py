"""Poisson sampling with a largest batch, for programs that need a fixed shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import dp_accounting

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.scheme import Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class TruncatedPoisson(Sampling):
    """Poisson sampling; a batch above `max_batch_size` is cut to a random subset of that size.

    A record that joins a full batch pushes another one out, so such a step can move the sum by 2 instead of 1
    (arXiv:2508.15089). `dataset_size` is declared and public, and counts the record in question: the guarantee is for
    the neighbours of `dataset_size` records. It holds for fewer, too, while `max_batch_size` is not below their mean
    batch: full batches are then rarer with fewer records. A run with fewer records and a smaller largest batch is
    refused.

    >>> TruncatedPoisson(256 / 60000, max_batch_size=352, dataset_size=60000).name
    'truncated Poisson q = 0.00426667, at most 352 of 60000'
    """

    kind: ClassVar[str] = "truncated-poisson"

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

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        for chosen in Poisson(self.sample_rate).draw(records, randomness):
            kept = randomness.uniform(len(chosen)).argsort()[: self.max_batch_size]
            yield chosen if len(chosen) <= self.max_batch_size else chosen[kept]

    def check_records(self, records: int) -> None:
        if records > self.dataset_size:
            allowed = f"at least the {records} records there are: how often batches are full is part of the accounting"
            raise SettingError("dataset_size", self.dataset_size, allowed)
        mean = self.sample_rate * self.dataset_size
        if records < self.dataset_size and mean > self.max_batch_size:
            # beyond that, more records would cost each of them less
            allowed = f"at least {math.ceil(mean)}, what the declared records give, or declare the {records} there are"
            raise SettingError("max_batch_size", self.max_batch_size, allowed)

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        one = dp_accounting.TruncatedSubsampledGaussianDpEvent(
            dataset_size=self.dataset_size,
            sampling_probability=self.sample_rate,
            truncated_batch_size=self.max_batch_size,
            noise_multiplier=noise_multiplier,
        )
        return dp_accounting.SelfComposedDpEvent(one, steps)
