"""The draw of the records of each step, in random row order."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gnomon.errors import SettingError
from gnomon.randomness import NoiseSource, ordering
from gnomon.sampling.scheme import Sampling


def positions(sampling: Sampling, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
    """Yield the positions of the records of each step, without end, each batch in a secret random order.

    Kernels may round the result for a sample differently in another row of the batch. If rows followed the order of
    the data set, adding one record would move all records after it to other rows.

    Args:
        sampling: The declared sampling scheme.
        records: The actual number of records.
        randomness: The source of the draw. The row order comes from a source of its own (`randomness.ordering`).

    Raises:
        SettingError: Batches cannot be drawn as declared from this many records.

    >>> import torch
    >>> from gnomon.accounting import Shuffled
    >>> from gnomon.release import SeededNoise
    >>> batches = positions(Shuffled(steps_per_epoch=2), 5, SeededNoise(0))
    >>> sorted(torch.cat([next(batches), next(batches)]).tolist())
    [0, 1, 2, 3, 4]
    """
    check_size(sampling, records)
    order = ordering(randomness)
    return (batch[shuffle(len(batch), order)] for batch in sampling.draw(records, randomness))


def check_size(sampling: Sampling, records: int) -> None:
    """Raise SettingError if `sampling` is not a sampling scheme, or cannot draw from this many records as declared.

    >>> from gnomon.accounting import FixedSize
    >>> check_size(FixedSize(10, 1000), 5)
    Traceback (most recent call last):
    gnomon.errors.SettingError: batch_size = 10 is invalid; expected at most the 5 records of the data set
    """
    if not isinstance(sampling, Sampling):
        raise SettingError("sampler", sampling, "a sampling scheme, such as gnomon.accounting.Poisson(0.01)")
    sampling.check_records(records)


def shuffle(records: int, randomness: NoiseSource) -> Tensor:
    """Return a uniformly random permutation of the positions 0 to records - 1.

    >>> from gnomon.release import SeededNoise
    >>> sorted(shuffle(3, SeededNoise(0)).tolist())
    [0, 1, 2]
    """
    return randomness.uniform(records).argsort()
