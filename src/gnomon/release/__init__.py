"""The door between private and public: clip, sum, noise, divide."""

from gnomon.release.door import Admitted, Door
from gnomon.release.noise import NoiseSource, SecureNoise, SeededNoise, ordering

__all__ = ["Admitted", "Door", "NoiseSource", "SecureNoise", "SeededNoise", "ordering"]
