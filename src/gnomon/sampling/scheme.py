"""The interface of sampling schemes: how the records of a step are drawn, and which privacy claim the draw supports.

All parameters of a scheme are declared and public. The actual number of records only limits which positions can be
drawn; no quantity of the privacy claim is derived from it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency, parse_adjacency, sensitivity

if TYPE_CHECKING:
    import dp_accounting
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class DrawLaw:
    """The distribution of a scheme's batches, in the terms that a statistical test of a sampler needs.

    With neither `epoch` nor `batch_size`, every record joins every step independently with probability
    `Sampling.rate`.
    """

    epoch: int | None = None
    """Every record is in exactly one of each `epoch` consecutive steps."""
    batch_size: int | None = None
    """Every batch holds this many distinct records, drawn uniformly and independently of the other steps."""
    max_batch_size: int | None = None
    """A batch with more records is cut to a uniformly random subset of this size."""
    records: int | None = None
    """The number of records to test the law with; None if any number will do."""


class Sampling(ABC):
    """A sampling scheme: how batches are drawn, the privacy claim, the event to account for, and its serialised form.

    A new scheme is one frozen dataclass that derives from this class, and one entry in `gnomon.sampling.registry`.
    """

    kind: ClassVar[str]
    """The name of the scheme in JSON files."""
    flag: ClassVar[str]
    """The name of the scheme on the command line and in configuration files."""
    name_pattern: ClassVar[str]
    """A regular expression for `name`, with one named group for each field of the scheme that the name shows."""
    interruptible: ClassVar[bool] = True
    """Whether a run may stop between any two steps. Otherwise the remaining steps of an epoch count as taken."""
    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("add-remove", "zero-out", "replace-one")
    """The adjacencies under which the accounting of the scheme holds."""
    default_adjacency: ClassVar[Adjacency] = "add-remove"
    adjacency_reason: ClassVar[str] = ""
    """Why the other adjacencies are refused, as the end of an error message."""

    # -- the draw

    @abstractmethod
    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        """Yield the positions of the records of each step, without end.

        Args:
            records: The number of records, which `check_records` has accepted.
            randomness: The only source of randomness of the draw.
        """

    def check_records(self, records: int) -> None:  # noqa: B027  # most schemes draw from any number of records
        """Raise SettingError if batches cannot be drawn as declared from this many records."""

    def draw_law(self) -> DrawLaw:
        """Return the distribution of the batches, for tests of a sampler."""
        return DrawLaw()

    @property
    def epoch_steps(self) -> int:
        """The number of steps in which every record is expected to be read about once."""
        return max(1, round(1 / self.rate))

    # -- the privacy claim

    @property
    @abstractmethod
    def name(self) -> str:
        """A description for privacy statements; `from_name` reads it."""

    @property
    @abstractmethod
    def amplified(self) -> bool:
        """Whether the accounting claims privacy amplification by sampling."""

    @property
    def rate(self) -> float:
        """The probability that a record joins a step."""
        return 1.0

    def uses(self, steps: int) -> int:
        """Return how many of `steps` consecutive steps can read the same record at most."""
        return steps

    def resolve_adjacency(self, requested: object = None) -> Adjacency:
        """Return the requested adjacency, or the default one for None.

        Raises:
            SettingError: The value names no adjacency, or no privacy claim can be made under it with this scheme.

        >>> from gnomon.sampling import FullBatch
        >>> FullBatch().resolve_adjacency()
        'add-remove'
        """
        if requested is None:
            return self.default_adjacency
        adjacency = parse_adjacency(requested)
        if adjacency not in self.adjacencies:
            allowed = " or ".join(map(repr, self.adjacencies))
            raise SettingError("adjacency", requested, f"{allowed} with {self.name}{self.adjacency_reason}")
        return adjacency

    # -- the accounting

    @abstractmethod
    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        """Return what `steps` steps release, as an event of the dp-accounting library."""

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Return how far one record can move the sum of a step at most, in units of the clip bound."""
        return sensitivity(adjacency)

    def poisson_rate(self, adjacency: Adjacency) -> float | None:
        """Return q if a step is a Gaussian mechanism on a Poisson sample of rate q, and None if it is not.

        Only such steps have a bound by the accountants "rdp", "rdp-classic" and "gdp". Without amplification every
        step counts as a Gaussian mechanism on all records, with q = 1.
        """
        return None if self.amplified else 1.0

    def loss_components(self, noise_multiplier: float, adjacency: Adjacency) -> list[tuple[float, float]]:
        """Return the sampled Gaussian mechanisms that make up the privacy loss of a step.

        Each is a pair of noise multiplier and sampling probability. They determine how wide the grid of a privacy loss
        distribution has to be.
        """
        return [(noise_multiplier / sensitivity(adjacency), self.rate)]

    # -- construction and serialisation

    @classmethod
    @abstractmethod
    def for_batches(cls, batch_size: int, dataset_size: int) -> tuple[Self, float]:
        """Return the scheme for a declared batch size and number of records, and its expected batch size."""

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """Return the scheme that `name` describes, up to the digits that the text shows; None for another scheme.

        >>> from gnomon.sampling import Poisson
        >>> Poisson.from_name("Poisson q = 0.025")
        Poisson(sample_rate=0.025)
        """
        match = re.fullmatch(cls.name_pattern, name)
        if match is None:
            return None
        return cls(**{field: int(text) if text.isdigit() else float(text) for field, text in match.groupdict().items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the scheme as plain values for JSON; `gnomon.sampling.registry.scheme_from_dict` reads them."""
        return {"kind": self.kind} | asdict(self)  # type: ignore[call-overload]


def steps_per_epoch(sampler: Sampling) -> int:
    """Return how many steps an epoch has: the declared number, or 1 / rate, rounded.

    >>> from gnomon.sampling import Poisson, Shuffled
    >>> steps_per_epoch(Poisson(0.3)), steps_per_epoch(Shuffled(40))
    (3, 40)
    """
    return sampler.epoch_steps


def steps_of(epochs: float, sampler: Sampling) -> int:
    """Return the number of steps of a run: the whole number of steps per epoch, times the epochs, rounded.

    >>> from gnomon.sampling import Poisson
    >>> steps_of(20, Poisson(0.3))
    60
    """
    return max(1, round(validate.positive("epochs", epochs) * steps_per_epoch(sampler)))
