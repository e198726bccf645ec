"""Draws the records of each step, as the declared sampling says.

The number of records decides which positions there are; rates and divisors are declared elsewhere and
never derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from gnomon.errors import SettingError
from gnomon.randomness import NoiseSource, ordering
from gnomon.sampling.scheme import Sampling


def positions(sampling: Sampling, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
    """The positions of each step's records, step after step without end, in a random order that nobody is told.

    Kernels may round the result of a row differently at another row of the batch. If rows followed the order of the
    data set, one record more would move all records after it to other rows.

    >>> import torch
    >>> from gnomon.accounting import Shuffled
    >>> from gnomon.release import SeededNoise
    >>> drawn = positions(Shuffled(steps_per_epoch=2), 5, SeededNoise(0))
    >>> sorted(torch.cat([next(drawn), next(drawn)]).tolist())
    [0, 1, 2, 3, 4]
    """
    check_size(sampling, records)
    order = ordering(randomness)
    return (chosen[shuffle(len(chosen), order)] for chosen in sampling.draw(records, randomness))


def check_size(sampling: Sampling, records: int) -> None:
    """Raise SettingError if this many records cannot be drawn as declared.

    >>> from gnomon.accounting import FixedSize
    >>> check_size(FixedSize(10, 1000), 5)
    Traceback (most recent call last):
    gnomon.errors.SettingError: batch_size = 10 is invalid; expected at most the 5 records there are
    """
    if not isinstance(sampling, Sampling):
        raise SettingError("sampler", sampling, "a sampling scheme, such as gnomon.accounting.Poisson(0.01)")
    sampling.check_records(records)


def shuffle(records: int, randomness: NoiseSource) -> Tensor:
    """All positions in random order.

    >>> from gnomon.release import SeededNoise
    >>> sorted(shuffle(3, SeededNoise(0)).tolist())
    [0, 1, 2]
    """
    return randomness.uniform(records).argsort()
