"""Sampling schemes: who takes part in a step, what may be claimed for it, and what is accounted.

Every number of a scheme is declared and public. The number of records decides which positions can be drawn; nothing
that is claimed is derived from it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import dp_accounting

from gnomon import validate
from gnomon.accounting.adjacency import Adjacency, checked

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.release import NoiseSource


class Sampling(ABC):
    """A way to sample records: its draw, what may be claimed for it, and the event to account for."""

    kind: ClassVar[str]
    """The name of the scheme in files."""
    pauses: ClassVar[bool] = True
    """Whether a run may stop between any two steps. Otherwise what is left of an epoch counts as taken."""
    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out", "replace-one")
    default_adjacency: ClassVar[Adjacency] = "add-remove"
    refusal: ClassVar[str] = ""

    @property
    @abstractmethod
    def name(self) -> str:
        """The text used in statements."""

    @property
    @abstractmethod
    def amplified(self) -> bool:
        """Whether sampling makes the guarantee stronger than the noise alone does."""

    @abstractmethod
    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        """What `steps` steps release, in the words of dp-accounting."""

    @abstractmethod
    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        """Yield the positions of each step's records, step after step without end.

        Args:
            records: how many records there are; `check_records` has accepted this number.
            randomness: the source of all that is random in the draw.
        """

    def check_records(self, records: int) -> None:  # noqa: B027  # most schemes draw from any number
        """Raise SettingError if this many records cannot be drawn as declared."""

    @property
    def rate(self) -> float:
        """The probability with which a record joins a step that can read it."""
        return 1.0

    def uses(self, steps: int) -> int:
        """How many of the steps can read one record, at most."""
        return steps

    def adjacency(self, wanted: object = None) -> Adjacency:
        """The wanted adjacency, or the default one; an error if no claim can be made for it.

        >>> FullBatch().adjacency()
        'add-remove'
        """
        if wanted is None:
            return self.default_adjacency
        found = checked(wanted)
        if found not in self.adjacencies:
            allowed = " or ".join(map(repr, self.adjacencies))
            raise validate.SettingError("adjacency", wanted, f"{allowed} with {self.name}{self.refusal}")
        return found


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


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every record is in every step: Gaussian noise and nothing else.

    >>> FullBatch().uses(100)
    100
    """

    kind: ClassVar[str] = "full-batch"

    @property
    def name(self) -> str:
        return "full batch"

    @property
    def amplified(self) -> bool:
        return False

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        import torch  # noqa: PLC0415  # accounting alone does not wait for it

        while True:
            yield torch.arange(records)

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise_multiplier), steps)


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
            raise validate.SettingError("batch_size", self.batch_size, f"at most the {records} records there are")

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        return FullBatch().event(noise_multiplier, steps)


def steps_per_epoch(sampler: Sampling) -> int:
    """How many steps read about every record once: the declared number, else 1 / rate, rounded.

    >>> steps_per_epoch(Poisson(0.3)), steps_per_epoch(Shuffled(40))
    (3, 40)
    """
    declared: int | None = getattr(sampler, "steps_per_epoch", None)
    return max(1, round(1 / sampler.rate)) if declared is None else declared


def steps_of(epochs: float, sampler: Sampling) -> int:
    """How many steps so many epochs are: whole steps an epoch first, then times the epochs, rounded.

    >>> steps_of(20, Poisson(0.3))
    60
    """
    return max(1, round(validate.positive("epochs", epochs) * steps_per_epoch(sampler)))
