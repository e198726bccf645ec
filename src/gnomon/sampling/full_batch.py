"""Full batches: every record is in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from gnomon.sampling.scheme import Sampling

if TYPE_CHECKING:
    import dp_accounting
    from torch import Tensor

    from gnomon.randomness import NoiseSource


@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every record is in every step: the plain Gaussian mechanism, without amplification.

    >>> FullBatch().uses(100)
    100
    """

    kind: ClassVar[str] = "full-batch"
    flag: ClassVar[str] = "full"
    name_pattern: ClassVar[str] = "full batch"

    @property
    def name(self) -> str:
        return "full batch"

    @property
    def amplified(self) -> bool:
        return False

    @classmethod
    def for_batches(cls, batch_size: int, dataset_size: int) -> tuple[Self, float]:
        return cls(), dataset_size

    def draw(self, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
        import torch  # noqa: PLC0415  # accounting works without loading torch

        while True:
            yield torch.arange(records)

    def event(self, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
        import dp_accounting  # noqa: PLC0415  # loaded by accounting, not by the command line's parser

        return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise_multiplier), steps)
