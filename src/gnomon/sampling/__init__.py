"""Sampling schemes: which records take part in a step, and what may be claimed for it."""

from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.fixed_size import FixedSize
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.scheme import Sampling, steps_of, steps_per_epoch
from gnomon.sampling.shuffled import Shuffled
from gnomon.sampling.truncated_poisson import TruncatedPoisson

__all__ = [
    "Adjacency",
    "FixedSize",
    "FullBatch",
    "Poisson",
    "Sampling",
    "Shuffled",
    "TruncatedPoisson",
    "steps_of",
    "steps_per_epoch",
]
