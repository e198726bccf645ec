"""Clip rules: how much may each sample count?"""

from gnomon.clipping.blocks import EmbeddingAndResidual, UpdateAndLoss
from gnomon.clipping.fair import Fair
from gnomon.clipping.rules import PSAC, RULES, Automatic, ClipRule, Flat, Normalised, PerLayer

__all__ = [
    "PSAC",
    "RULES",
    "Automatic",
    "ClipRule",
    "EmbeddingAndResidual",
    "Fair",
    "Flat",
    "Normalised",
    "PerLayer",
    "UpdateAndLoss",
]
