"""Batches of a fixed size, drawn without replacement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.scheme import DrawLaw, Sampling

if TYPE_CHECKING:
    import dp_accounting
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class FixedSize(Sampling):
    """`batch_size` distinct records, drawn uniformly and anew for each step; no amplification is claimed.

    A record is in a step at most once, so `steps` steps cost at most as much as `steps` full batches. The batch
    depends on the number of records, so add-remove adjacency is refused.

    Args:
        batch_size: The number of records in each batch.
        dataset_size: The declared, public number of records. It sets the length of an epoch only; without it every
            step is an epoch.

    >>> FixedSize(1).name
    'fixed batches of 1, no amplification'
    """

    kind: ClassVar[str] = "fixed-size"
    flag: ClassVar[str] = "fixed"
    name_pattern: ClassVar[str] = r"fixed batches of (?P<batch_size>\d+), no amplification"

    batch_size: int
    dataset_size: int | None = None

    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("zero-out", "replace-one")
    default_adjacency: ClassVar[Adjacency] = "zero-out"
    adjacency_reason: ClassVar[str] = ", because adding a record changes which records are drawn"

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", validate.whole("batch_size", self.batch_size))
        if self.dataset_size is not None:
            object.__setattr__(self, "dataset_size", validate.whole("dataset_size", self.dataset_size))

    @property
    def name(self) -> str:
        return f"fixed batches of {self.batch_size}, no amplification"

    @property
    def amplified(self) -> bool:
        return False

    @property
    def epoch_steps(self) -> int:
        return math.ceil((self.dataset_size or self.batch_size) / self.batch_size)

    @classmethod
    def for_batches(cls, batch_size: int, dataset_size: int) -> tuple[Self, float]:
        return cls(batch_size, dataset_size), batch_size

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        while True:
            yield randomness.uniform(records).argsort()[: self.batch_size]

    def check_records(self, records: int) -> None:
        if self.batch_size > records:
            raise SettingError("batch_size", self.batch_size, f"at most the {records} records of the data set")

    def draw_law(self) -> DrawLaw:
        declared = self.dataset_size or max(1000, 4 * self.batch_size)
        return DrawLaw(batch_size=self.batch_size, records=max(self.batch_size, min(declared, 10**5)))

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        return FullBatch().event(noise_multiplier, steps)
