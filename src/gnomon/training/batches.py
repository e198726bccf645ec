"""Which records take part in each step of a run, in which physical batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gnomon import validate
from gnomon.data import Loader
from gnomon.errors import StateError
from gnomon.randomness import NoiseSource
from gnomon.sampling import Sampling, steps_per_epoch
from gnomon.sampling.draws import positions
from gnomon.updates.trees import batch_size, take_rows


@dataclass
class _Sequence:
    """The draws of one sampler over one data set."""

    positions: Iterator[Tensor]
    size: int
    """The number of records."""
    first_step: int
    """The step count of the account when the sequence began."""
    drawn: int = 0
    order: object = None
    """The order of the records during the present epoch (`Loader.order`), for schemes that cannot pause."""


class Batches:
    """The batches of a run: drawn as declared, across calls, epochs, physical batches and restarts.

    A second call of `positions` goes on where the first one stopped: to start a shuffled epoch again would use a record
    twice where it is counted once. The object never sees a model.

    Args:
        sampler: the declared sampling scheme.
        max_physical_batch_size: the largest number of records in one forward pass.

    >>> from gnomon.release import SeededNoise
    >>> from gnomon.sampling import Shuffled
    >>> import torch
    >>> batches, loader = Batches(Shuffled(2)), Loader((torch.arange(4.0), torch.zeros(4)))
    >>> first = next(batches.positions(loader, SeededNoise(0), step=0))
    >>> second = next(batches.positions(loader, SeededNoise(0), step=1))
    >>> sorted(torch.cat([first, second]).tolist()), batches.unreleased(step=1)
    ([0, 1, 2, 3], 1)
    """

    def __init__(self, sampler: Sampling, max_physical_batch_size: int | None = None) -> None:
        if max_physical_batch_size is not None:
            validate.whole("max_physical_batch_size", max_physical_batch_size)
        self.sampler, self.max_physical_batch_size = sampler, max_physical_batch_size
        self.pending = 0
        """The number of batches that were handed out and not yet returned to a step."""
        self._epoch = 1 if sampler.interruptible else steps_per_epoch(sampler)
        self._sequence: _Sequence | None = None

    def positions(self, loader: Loader, randomness: NoiseSource, step: int) -> Iterator[Tensor]:
        """Yield the positions of the records of each coming step, without end.

        Args:
            loader: the records.
            randomness: the source of randomness, used when the sequence begins.
            step: the number of steps charged so far.

        Raises:
            StateError: the records are not those that the sequence, or an unfinished shuffled epoch, began with.
        """
        size = len(loader)
        if self._sequence is None:
            self._sequence = _Sequence(positions(self.sampler, size, randomness), size, step)
        if self._sequence.size != size:
            raise StateError(
                f"train holds {size} records, but an earlier call had {self._sequence.size}: one Trainer accounts for "
                "one data set; make another Trainer for other data"
            )
        order = None if self.sampler.interruptible else loader.order()
        self._check_order(self._sequence, order)
        return self._draw(self._sequence, order)

    def _draw(self, sequence: _Sequence, order: object) -> Iterator[Tensor]:
        while True:
            self._check_order(sequence, order)
            sequence.order = order
            sequence.drawn += 1
            yield next(sequence.positions)

    def _check_order(self, sequence: _Sequence, order: object) -> None:
        """Refuse other records, or another order of them, in the middle of a shuffled epoch."""
        same = order is sequence.order or (isinstance(order, bytes) and order == sequence.order)
        if (begun := sequence.drawn % self._epoch) and not same:
            raise StateError(
                f"train holds other records, or the same in another order, {begun} steps into a shuffled epoch of "
                f"{self._epoch}: some would be used twice and counted once; finish the epoch with the records as they "
                "were, or make another Trainer"
            )

    def unreleased(self, step: int) -> int:
        """Return how many shuffled batches were drawn and never released, after an error for example.

        Their records were used up in this epoch, so the batches have to be charged: the epoch after them begins as many
        steps earlier.
        """
        if self.sampler.interruptible or self._sequence is None:
            return 0
        return self._sequence.first_step + self._sequence.drawn - step

    def restart(self) -> None:
        """Forget the order of the records that are left, where a run goes on from another count of steps."""
        self._sequence = None

    def read(self, loader: Loader, chosen: Tensor) -> Iterator[tuple[Any, Any]]:
        """Yield the chosen records in physical batches."""
        for part in chosen.split(self.max_physical_batch_size or max(1, len(chosen))):
            yield loader.take(part)

    def split(self, inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
        """Yield a batch that is already in memory in physical batches."""
        size = max(batch_size(inputs), 1)
        limit = self.max_physical_batch_size or size
        for start in range(0, size, limit):
            yield take_rows((inputs, targets), slice(start, start + limit))
