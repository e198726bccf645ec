"""The release: clip, sum, add noise and divide. No other code turns private numbers into public ones."""

from gnomon.randomness import NoiseSource, SecureNoise, SeededNoise, ordering
from gnomon.release.door import Admitted, Door

__all__ = ["Admitted", "Door", "NoiseSource", "SecureNoise", "SeededNoise", "ordering"]
