"""Every record in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import dp_accounting

from gnomon.sampling.scheme import Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.randomness import NoiseSource


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
