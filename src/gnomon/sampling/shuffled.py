"""Shuffled epochs, in which every record is in exactly one batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from gnomon import validate
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.scheme import DrawLaw, Sampling

if TYPE_CHECKING:
    import dp_accounting
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class Shuffled(Sampling):
    """Every record is in one of the `steps_per_epoch` batches of an epoch; no amplification is claimed.

    The accounting holds for any order of the records, shuffled or not. Adding a record would shift the batches after
    it, so add-remove adjacency is refused. Under zero-out, one record affects one release per epoch, so `steps` steps
    cost as much as `ceil(steps / steps_per_epoch)` full batches.

    >>> Shuffled(steps_per_epoch=40).uses(1200)
    30
    """

    kind: ClassVar[str] = "shuffled"
    flag: ClassVar[str] = "shuffled"
    name_pattern: ClassVar[str] = r"shuffled, (?P<steps_per_epoch>\d+) steps an epoch, no amplification"
    interruptible: ClassVar[bool] = False

    steps_per_epoch: int

    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("zero-out", "replace-one")
    default_adjacency: ClassVar[Adjacency] = "zero-out"
    adjacency_reason: ClassVar[str] = ", because adding a record shifts the batches after it"

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps_per_epoch", validate.whole("steps_per_epoch", self.steps_per_epoch))

    @property
    def name(self) -> str:
        return f"shuffled, {self.steps_per_epoch} steps an epoch, no amplification"

    @property
    def amplified(self) -> bool:
        return False

    @property
    def epoch_steps(self) -> int:
        return self.steps_per_epoch

    def uses(self, steps: int) -> int:
        return math.ceil(steps / self.steps_per_epoch)

    @classmethod
    def for_batches(cls, batch_size: int, dataset_size: int) -> tuple[Self, float]:
        return cls(math.ceil(dataset_size / batch_size)), batch_size

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        while True:
            yield from randomness.uniform(records).argsort().tensor_split(self.steps_per_epoch)

    def draw_law(self) -> DrawLaw:
        return DrawLaw(epoch=self.steps_per_epoch)

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        return FullBatch().event(noise_multiplier, self.uses(steps))
