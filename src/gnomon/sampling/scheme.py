"""Sampling schemes: who takes part in a step, what may be claimed for it, and what is accounted.

Every number of a scheme is declared and public. The number of records decides which positions can be drawn; nothing
that is claimed is derived from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import dp_accounting

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency, checked

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.randomness import NoiseSource


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

        >>> from gnomon.sampling import FullBatch
        >>> FullBatch().adjacency()
        'add-remove'
        """
        if wanted is None:
            return self.default_adjacency
        found = checked(wanted)
        if found not in self.adjacencies:
            allowed = " or ".join(map(repr, self.adjacencies))
            raise SettingError("adjacency", wanted, f"{allowed} with {self.name}{self.refusal}")
        return found


def steps_per_epoch(sampler: Sampling) -> int:
    """How many steps read about every record once: the declared number, else 1 / rate, rounded.

    >>> from gnomon.sampling import Poisson, Shuffled
    >>> steps_per_epoch(Poisson(0.3)), steps_per_epoch(Shuffled(40))
    (3, 40)
    """
    declared: int | None = getattr(sampler, "steps_per_epoch", None)
    return max(1, round(1 / sampler.rate)) if declared is None else declared


def steps_of(epochs: float, sampler: Sampling) -> int:
    """How many steps so many epochs are: whole steps an epoch first, then times the epochs, rounded.

    >>> from gnomon.sampling import Poisson
    >>> steps_of(20, Poisson(0.3))
    60
    """
    return max(1, round(validate.positive("epochs", epochs) * steps_per_epoch(sampler)))
