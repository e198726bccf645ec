"""Normal noise in float64, from the operating system's randomness or, for studies, from a seed.

float32 normals lie on a lattice and stop at 5.77 standard deviations; an observer who knows the other
records can tell from one step who took part. Noise here has 53-bit uniforms behind it and is added in
float64 before the sum is cast.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor


class NoiseSource(Protocol):
    """Where randomness comes from."""

    @property
    def private(self) -> bool:
        """Whether nobody can predict it; False for a seeded source."""

    def normal(self, count: int) -> Tensor:
        """Independent standard normals, float64, on the CPU."""

    def uniform(self, count: int) -> Tensor:
        """Independent uniforms in [0, 1), float64, on the CPU."""


class SecureNoise:
    """Normals from a ChaCha20 keystream under a key that the operating system drew for this process.

    The key is drawn anew after a fork and is never stored; there is no seed.

    >>> source = SecureNoise()
    >>> source.normal(5).dtype, bool((source.normal(4) != source.normal(4)).all())
    (torch.float64, True)
    """

    private = True

    def __init__(self) -> None:
        self._process = -1

    def normal(self, count: int) -> Tensor:
        pairs = (count + 1) // 2
        return box_muller(self.uniform(2 * pairs))[:count]

    def uniform(self, count: int) -> Tensor:
        # the upper 53 bits of each word: every multiple of 2^-53 in [0, 1) is equally likely
        words = self._words(count)
        return (
            torch.from_numpy(words).bitwise_right_shift_(11).bitwise_and_(2**53 - 1).double().mul_(2.0**-53)
        )

    def _words(self, count: int) -> NDArray[np.int64]:
        """Fresh 64-bit words of the keystream."""
        if self._process != os.getpid():
            key, nonce = os.urandom(32), os.urandom(16)
            self._stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
            self._process = os.getpid()
        words = np.zeros(count, dtype=np.int64)
        raw = words.view(np.uint8).data
        if count:
            self._stream.update_into(raw, raw)
        return words


def box_muller(uniforms: Tensor) -> Tensor:
    """As many independent standard normals as there are uniforms in [0, 1); an even number.

    >>> box_muller(torch.tensor([0.0, 0.25], dtype=torch.float64))
    tensor([0., 0.], dtype=torch.float64)
    """
    half = len(uniforms) // 2
    # 1 - u lies in (0, 1]: the logarithm is finite and the tail reaches 8.57 standard deviations
    radius = uniforms[:half].neg().log1p_().mul_(-2.0).sqrt_()
    angle = uniforms[half:] * (2.0 * math.pi)
    normals = torch.empty_like(uniforms)
    torch.mul(radius, angle.cos(), out=normals[:half])
    torch.mul(radius, angle.sin_(), out=normals[half:])
    return normals


class SeededNoise:
    """Repeatable normals, for tests and studies. Whoever knows the seed knows the noise: not private.

    >>> torch.equal(SeededNoise(1).normal(3), SeededNoise(1).normal(3))
    True
    """

    private = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))

    def normal(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.standard_normal(count))

    def uniform(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.random(count))
