"""Shuffled epochs, in which every record is in one batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import dp_accounting

from gnomon import validate
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.scheme import Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class Shuffled(Sampling):
    """Every record is in one batch an epoch, in fixed or shuffled order, and no amplification is claimed.

    Adding a record would shift the blocks after it, so add-remove is refused. With zero-out one record
    moves one release an epoch, hence `steps` cost as much as `ceil(steps / steps_per_epoch)` full batches.

    >>> Shuffled(steps_per_epoch=40).uses(1200)
    30
    """

    kind: ClassVar[str] = "shuffled"
    pauses: ClassVar[bool] = False

    steps_per_epoch: int

    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("zero-out", "replace-one")
    default_adjacency: ClassVar[Adjacency] = "zero-out"
    refusal: ClassVar[str] = ", because adding a record shifts the batches after it"

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps_per_epoch", validate.whole("steps_per_epoch", self.steps_per_epoch))

    @property
    def name(self) -> str:
        return f"shuffled, {self.steps_per_epoch} steps an epoch, no amplification"

    @property
    def amplified(self) -> bool:
        return False

    def uses(self, steps: int) -> int:
        return math.ceil(steps / self.steps_per_epoch)

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        while True:
            yield from randomness.uniform(records).argsort().tensor_split(self.steps_per_epoch)

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        return FullBatch().event(noise_multiplier, self.uses(steps))
