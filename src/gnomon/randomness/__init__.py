"""Sources of randomness: secure noise from the operating system's entropy, and seeded noise for studies.

Normals drawn in float32 lie on a lattice and end at 5.77 standard deviations; from one release, an observer who knows
all other records could tell whether a record took part. The normals here are float64, from 53-bit uniforms, and are
added before the sum is cast.
"""

from gnomon.randomness.sources import CHUNK, NoiseSource, SecureNoise, SeededNoise, ordering

__all__ = ["CHUNK", "NoiseSource", "SecureNoise", "SeededNoise", "ordering"]
