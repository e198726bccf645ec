"""The door between private and public: clip, sum, noise, divide."""

from gnomon.release.door import Door
from gnomon.release.noise import NoiseSource, SecureNoise, SeededNoise

__all__ = ["Door", "NoiseSource", "SecureNoise", "SeededNoise"]
