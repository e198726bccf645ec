"""The order in which a run's steps take its records."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gnomon.accounting import Sampling
from gnomon.data import positions
from gnomon.release import NoiseSource


class Draws(Iterator[Tensor]):
    """The positions of the coming steps, and how many were drawn since the account stood at `begun`.

    >>> from gnomon.accounting import FullBatch
    >>> from gnomon.release import SeededNoise
    >>> draws = Draws(FullBatch(), 3, SeededNoise(0), begun=0)
    >>> next(draws).tolist(), draws.taken
    ([0, 1, 2], 1)
    """

    def __init__(self, sampler: Sampling, size: int, randomness: NoiseSource, begun: int) -> None:
        self.size, self.begun, self.taken = size, begun, 0
        self._positions = positions(sampler, size, randomness)

    def __next__(self) -> Tensor:
        self.taken += 1
        return next(self._positions)
