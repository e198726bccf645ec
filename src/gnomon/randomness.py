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
from torch import Tensor

BYTES_PER_KEY = 2**36
"""A key is replaced after this much of its stream, far below the 2^38 bytes that its counter reaches."""


_forks = [0]
"""How often this process's line has forked. A process number alone can come again, in another namespace say."""


def _forked() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


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

    The key is drawn anew after a fork and every 64 GiB, and is never stored. There is no seed.

    >>> source = SecureNoise()
    >>> source.normal(5).dtype, bool((source.normal(4) != source.normal(4)).all())
    (torch.float64, True)
    """

    private = True

    def __init__(self) -> None:
        self._process, self._left = (-1, -1), 0

    def normal(self, count: int) -> Tensor:
        pairs = (count + 1) // 2
        return box_muller(self._words(2 * pairs))[:count]

    def uniform(self, count: int) -> Tensor:
        # the upper 53 bits of each word: every multiple of 2^-53 in [0, 1) is equally likely
        return self._words(count).bitwise_right_shift_(11).bitwise_and_(2**53 - 1).double().mul_(2.0**-53)

    def _words(self, count: int) -> Tensor:
        """Fresh 64-bit words of the keystream."""
        process = os.getpid(), _forks[0]
        if self._process != process or self._left < 8 * count:
            # the first four bytes of the nonce are the block counter: it starts at zero
            key, nonce = os.urandom(32), bytes(4) + os.urandom(12)
            self._stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
            self._process, self._left = process, BYTES_PER_KEY
        words = np.zeros(count, dtype=np.int64)
        if count:
            raw = words.view(np.uint8).data
            self._stream.update_into(raw, raw)
            self._left -= 8 * count
        return torch.from_numpy(words)


def box_muller(words: Tensor) -> Tensor:
    """As many independent standard normals as there are random 64-bit words; an even number.

    They take the place of the words in memory. Of each word 54 bits are used: in the first half as the
    radius, in the second as the angle. The tail reaches 8.6 standard deviations.

    >>> box_muller(torch.tensor([2**62, 2**62])).round(decimals=4)  # radius sqrt(2 ln 2), a quarter turn
    tensor([0.0000, 1.1774], dtype=torch.float64)
    """
    values = words.view(torch.float64)
    values.copy_(words.bitwise_right_shift_(10))  # whole numbers in [-2^53, 2^53)
    radius, angle = values[: len(values) // 2], values[len(values) // 2 :]
    # |k + 1/2| 2^-53 lies inside (0, 1): its logarithm is finite
    radius.add_(0.5).abs_().mul_(2.0**-53).log_().mul_(-2.0).sqrt_()
    angle.mul_(math.pi * 2.0**-53)
    cosine = angle.cos()
    angle.sin_().mul_(radius)
    radius.mul_(cosine)
    return values


def ordering(noise: NoiseSource) -> NoiseSource:
    """Return the source that shuffles the rows of batches in a run with this noise.

    It is a source of its own, so that shuffling does not shift the stream from which noise and batches are drawn.
    It is secret where the noise is, and the same in every run where the noise is seeded.

    >>> ordering(SecureNoise()).private, ordering(SeededNoise(3)).private
    (True, False)
    """
    return SecureNoise() if noise.private and not isinstance(noise, SeededNoise) else SeededNoise(0)


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
