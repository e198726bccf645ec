"""The order in which a run's steps take its records."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gnomon.accounting import Sampling, steps_per_epoch
from gnomon.data import positions
from gnomon.release import NoiseSource


class Draws(Iterator[Tensor]):
    """The positions of the coming steps, and how many were drawn since the account stood at `begun`.

    `over` refuses, in the middle of a shuffled epoch, records that are not the ones it was begun with.

    >>> from gnomon.accounting import FullBatch
    >>> from gnomon.release import SeededNoise
    >>> draws = Draws(FullBatch(), 3, SeededNoise(0), begun=0)
    >>> next(draws).tolist(), draws.taken
    ([0, 1, 2], 1)
    """

    def __init__(self, sampler: Sampling, size: int, randomness: NoiseSource, begun: int) -> None:
        self.size, self.begun, self.taken = size, begun, 0
        self._positions = positions(sampler, size, randomness)
        self._epoch = 1 if sampler.interruptible else steps_per_epoch(sampler)
        self._order: object = None

    def __next__(self) -> Tensor:
        self.taken += 1
        return next(self._positions)

    def check(self, order: object) -> None:
        """Refuses records in another order than those that an unfinished epoch was begun with (`Loader.order`)."""
        same = order is self._order or (isinstance(order, bytes) and order == self._order)
        if self.taken % self._epoch and not same:
            raise ValueError(
                f"train holds other records, or the same in another order, {self.taken % self._epoch} steps into a "
                f"shuffled epoch of {self._epoch}: some would be used twice and counted once; finish the epoch with "
                "the records as they were, or make another Trainer"
            )

    def over(self, order: object) -> Iterator[Tensor]:
        """The positions among records in this order."""
        while True:
            self.check(order)
            self._order = order
            yield next(self)
