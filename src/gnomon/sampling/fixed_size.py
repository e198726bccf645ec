"""Batches of a fixed size, drawn without replacement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import dp_accounting

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.scheme import Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class FixedSize(Sampling):
    """`batch_size` records drawn afresh for each step, without replacement; no amplification is claimed.

    A record is in a step at most once, so `steps` cost no more than as many full batches. What is drawn depends
    on how many records there are, so add-remove is refused.

    >>> FixedSize(1).name
    'fixed batches of 1, no amplification'
    """

    kind: ClassVar[str] = "fixed-size"

    batch_size: int
    dataset_size: int | None = None
    """Declared and public, for the length of an epoch; without it every step is an epoch."""

    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("zero-out", "replace-one")
    default_adjacency: ClassVar[Adjacency] = "zero-out"
    refusal: ClassVar[str] = ", because adding a record changes who is drawn"

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", validate.whole("batch_size", self.batch_size))
        if self.dataset_size is not None:
            object.__setattr__(self, "dataset_size", validate.whole("dataset_size", self.dataset_size))

    @property
    def steps_per_epoch(self) -> int:
        """Steps that read about every record once."""
        return math.ceil((self.dataset_size or self.batch_size) / self.batch_size)

    @property
    def name(self) -> str:
        return f"fixed batches of {self.batch_size}, no amplification"

    @property
    def amplified(self) -> bool:
        return False

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        while True:
            yield randomness.uniform(records).argsort()[: self.batch_size]

    def check_records(self, records: int) -> None:
        if self.batch_size > records:
            raise SettingError("batch_size", self.batch_size, f"at most the {records} records there are")

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        return FullBatch().event(noise_multiplier, steps)
