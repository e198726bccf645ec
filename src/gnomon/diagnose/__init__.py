"""Diagnostics of training: spectra, subspaces, clipping and noise, computed from Gram matrices of updates."""

from gnomon.diagnose.measures import (
    angles,
    bias,
    cloud,
    components,
    energy_inside,
    gap,
    gram,
    signal_to_noise,
    skew,
    spectrum,
)
from gnomon.diagnose.observer import Diagnostics
from gnomon.diagnose.schedule import DiagnosticSchedule

__all__ = [
    "DiagnosticSchedule",
    "Diagnostics",
    "angles",
    "bias",
    "cloud",
    "components",
    "energy_inside",
    "gap",
    "gram",
    "signal_to_noise",
    "skew",
    "spectrum",
]
