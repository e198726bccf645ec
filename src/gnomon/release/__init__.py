"""The door between private and public: clip, sum, noise, divide."""

from gnomon.randomness import NoiseSource, SecureNoise, SeededNoise, ordering
from gnomon.release.door import Admitted, Door

__all__ = ["Admitted", "Door", "NoiseSource", "SecureNoise", "SeededNoise", "ordering"]
