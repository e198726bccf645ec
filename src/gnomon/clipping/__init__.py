"""Clip rules: how much may each person count? One verb, `weights`."""

from gnomon.clipping.fair import Fair, UpdateAndLoss, for_losses
from gnomon.clipping.rules import (
    PSAC,
    Automatic,
    ClipRule,
    EmbeddingAndResidual,
    Flat,
    Normalised,
    PerLayer,
)

RULES: dict[str, type[ClipRule]] = {
    "flat": Flat,
    "automatic": Automatic,
    "normalised": Normalised,
    "psac": PSAC,
    "per-layer": PerLayer,
}
"""The rules by the name that the command line uses."""

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
    "for_losses",
]
