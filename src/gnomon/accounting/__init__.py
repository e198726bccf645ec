"""What a run costs in privacy, and how much noise a budget asks for."""

from gnomon.accounting.account import Account
from gnomon.accounting.adjacency import Adjacency
from gnomon.accounting.calibrate import noise_multiplier
from gnomon.accounting.composed import composed, filtered
from gnomon.accounting.epsilon import Accountant, epsilon
from gnomon.accounting.published import published_noise
from gnomon.accounting.result import Epsilon, digits
from gnomon.accounting.sampling import FixedSize, FullBatch, Poisson, Sampling, Shuffled, steps_of, steps_per_epoch
from gnomon.accounting.sketch import Expansion, LinearSketch, NormalisedSketch, kappa
from gnomon.accounting.truncated import TruncatedPoisson

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
