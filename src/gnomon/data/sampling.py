"""Draws the records of each step, as the declared sampling says.

The number of records decides which positions there are; rates and divisors are declared elsewhere and
never derived from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gnomon.accounting import FixedSize, FullBatch, Poisson, Sampling, Shuffled, TruncatedPoisson
from gnomon.release import NoiseSource, ordering
from gnomon.validate import SettingError


def positions(sampling: Sampling, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
    """The positions of each step's records, step after step without end, in a random order that nobody is told.

    Kernels may round the result of a row differently at another row of the batch. If rows followed the order of the
    data set, one record more would move all records after it to other rows.

    >>> from gnomon.release import SeededNoise
    >>> drawn = positions(Shuffled(steps_per_epoch=2), 5, SeededNoise(0))
    >>> sorted(torch.cat([next(drawn), next(drawn)]).tolist())
    [0, 1, 2, 3, 4]
    """
    check_size(sampling, records)
    order = ordering(randomness)
    return (chosen[shuffle(len(chosen), order)] for chosen in _endless(sampling, records, randomness))


def _endless(sampling: Sampling, records: int, randomness: NoiseSource) -> Iterator[Tensor]:
    if isinstance(sampling, TruncatedPoisson):
        while True:
            chosen = poisson(sampling.sample_rate, records, randomness)
            kept = shuffle(len(chosen), randomness)[: sampling.max_batch_size]
            yield chosen if len(chosen) <= sampling.max_batch_size else chosen[kept]
    elif isinstance(sampling, Poisson):
        while True:
            yield poisson(sampling.sample_rate, records, randomness)
    elif isinstance(sampling, FullBatch):
        while True:
            yield torch.arange(records)
    elif isinstance(sampling, Shuffled):
        while True:
            yield from shuffle(records, randomness).tensor_split(sampling.steps_per_epoch)
    elif isinstance(sampling, FixedSize):
        while True:
            yield shuffle(records, randomness)[: sampling.batch_size]


def check_size(sampling: Sampling, records: int) -> None:
    """An error if this many records cannot be drawn as declared.

    >>> check_size(FixedSize(10, 1000), 5)
    Traceback (most recent call last):
    gnomon.validate.SettingError: batch_size = 10 is not allowed: give at most the 5 records there are
    """
    if not isinstance(sampling, Poisson | TruncatedPoisson | FullBatch | Shuffled | FixedSize):
        raise SettingError("sampler", sampling, "Poisson, TruncatedPoisson, FullBatch, Shuffled or FixedSize")
    if isinstance(sampling, TruncatedPoisson) and records > sampling.dataset_size:
        allowed = f"at least the {records} records there are: how often batches are full is part of the accounting"
        raise SettingError("dataset_size", sampling.dataset_size, allowed)
    if isinstance(sampling, TruncatedPoisson) and records < sampling.dataset_size:
        mean = sampling.sample_rate * sampling.dataset_size
        if mean > sampling.max_batch_size:  # beyond that, more records would cost each of them less
            allowed = f"at least {math.ceil(mean)}, what the declared records give, or declare the {records} there are"
            raise SettingError("max_batch_size", sampling.max_batch_size, allowed)
    if isinstance(sampling, FixedSize) and sampling.batch_size > records:
        raise SettingError("batch_size", sampling.batch_size, f"at most the {records} records there are")


def poisson(sample_rate: float, records: int, randomness: NoiseSource) -> Tensor:
    """Each position on its own with probability `sample_rate`; possibly none.

    >>> from gnomon.release import SeededNoise
    >>> len(poisson(1.0, 3, SeededNoise(0)))
    3
    """
    return (randomness.uniform(records) < sample_rate).nonzero().squeeze(1)


def shuffle(records: int, randomness: NoiseSource) -> Tensor:
    """All positions in random order.

    >>> from gnomon.release import SeededNoise
    >>> sorted(shuffle(3, SeededNoise(0)).tolist())
    [0, 1, 2]
    """
    return randomness.uniform(records).argsort()
