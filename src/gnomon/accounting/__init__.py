"""Privacy accounting: the epsilon of runs, and the noise that meets a target epsilon."""

from gnomon.accounting.account import Account
from gnomon.accounting.calibrate import noise_multiplier
from gnomon.accounting.epsilon import Accountant, epsilon
from gnomon.accounting.joint import composed, filtered
from gnomon.accounting.result import Epsilon, digits
from gnomon.accounting.sketch import Expansion, LinearSketch, NormalisedSketch, kappa, published_noise
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.fixed_size import FixedSize
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.scheme import Sampling, steps_of, steps_per_epoch
from gnomon.sampling.shuffled import Shuffled
from gnomon.sampling.truncated_poisson import TruncatedPoisson

__all__ = [
    "Account",
    "Accountant",
    "Adjacency",
    "Epsilon",
    "Expansion",
    "FixedSize",
    "FullBatch",
    "LinearSketch",
    "NormalisedSketch",
    "Poisson",
    "Sampling",
    "Shuffled",
    "TruncatedPoisson",
    "composed",
    "digits",
    "epsilon",
    "filtered",
    "kappa",
    "noise_multiplier",
    "published_noise",
    "steps_of",
    "steps_per_epoch",
]
