"""Sampling schemes: which records take part in a step, and which privacy claim that supports."""

from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.fixed_size import FixedSize
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.registry import FLAGS, SCHEMES, scheme_from_dict, scheme_from_name, scheme_to_dict
from gnomon.sampling.scheme import DrawLaw, Sampling, steps_of, steps_per_epoch
from gnomon.sampling.shuffled import Shuffled
from gnomon.sampling.truncated_poisson import TruncatedPoisson

__all__ = [
    "FLAGS",
    "SCHEMES",
    "Adjacency",
    "DrawLaw",
    "FixedSize",
    "FullBatch",
    "Poisson",
    "Sampling",
    "Shuffled",
    "TruncatedPoisson",
    "scheme_from_dict",
    "scheme_from_name",
    "scheme_to_dict",
    "steps_of",
    "steps_per_epoch",
]
