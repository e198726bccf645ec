"""What happens inside training: spectra, subspaces, clipping and noise, from Gram matrices of updates."""

from gnomon.diagnose.clipping import bias, signal_to_noise
from gnomon.diagnose.cloud import cloud
from gnomon.diagnose.looks import Looks
from gnomon.diagnose.observer import Diagnostics
from gnomon.diagnose.overlap import angles, energy_inside, skew
from gnomon.diagnose.spectrum import components, gap, gram, spectrum

__all__ = [
    "Diagnostics",
    "Looks",
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
