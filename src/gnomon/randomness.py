"""Sources of randomness: secure noise from the operating system's entropy, and seeded noise for studies.

Normals drawn in float32 lie on a lattice and end at 5.77 standard deviations; from one release, an observer who knows
all other records could tell whether a record took part. The normals here are float64, from 53-bit uniforms, and are
added before the sum is cast.
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
"""The bytes of keystream after which a key is replaced; the 32-bit block counter would allow 2^38."""


_forks = [0]
"""The number of forks between the first process and this one. A process id alone may recur, in a new namespace."""


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class NoiseSource(Protocol):
    """A source of independent random numbers."""

    @property
    def private(self) -> bool:
        """Whether the numbers are unpredictable; False for a seeded source."""

    def normal(self, count: int) -> Tensor:
        """Return `count` independent standard normals, in float64 on the CPU."""

    def uniform(self, count: int) -> Tensor:
        """Return `count` independent uniforms in [0, 1), in float64 on the CPU."""


class SecureNoise:
    """Unpredictable noise from a ChaCha20 keystream, keyed by the operating system's entropy.

    A new key is drawn after a fork and after every 64 GiB, and no key is ever stored. There is no seed.

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
        """Return the next 64-bit words of the keystream."""
        process = os.getpid(), _forks[0]
        if self._process != process or self._left < 8 * count:
            # the first four bytes of the nonce are the block counter, which starts at zero
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
    """Convert an even number of random 64-bit words, in place, to as many independent standard normals.

    54 bits of each word are used: the first half of the words gives the radii, the second half the angles. The tail
    reaches 8.6 standard deviations.

    >>> box_muller(torch.tensor([2**62, 2**62])).round(decimals=4)  # radius sqrt(2 ln 2), a quarter turn
    tensor([0.0000, 1.1774], dtype=torch.float64)
    """
    values = words.view(torch.float64)
    values.copy_(words.bitwise_right_shift_(10))  # whole numbers in [-2^53, 2^53)
    radius, angle = values[: len(values) // 2], values[len(values) // 2 :]
    # |k + 1/2| 2^-53 lies strictly between 0 and 1, so its logarithm is finite
    radius.add_(0.5).abs_().mul_(2.0**-53).log_().mul_(-2.0).sqrt_()
    angle.mul_(math.pi * 2.0**-53)
    cosine = angle.cos()
    angle.sin_().mul_(radius)
    radius.mul_(cosine)
    return values


def ordering(noise: NoiseSource) -> NoiseSource:
    """Return the source that permutes the rows of batches in a run with this noise.

    It is a separate source, so that permuting rows does not consume the stream of noise and batches. It is secret if
    the noise is, and the same in every run with seeded noise.

    >>> ordering(SecureNoise()).private, ordering(SeededNoise(3)).private
    (True, False)
    """
    return SecureNoise() if noise.private and not isinstance(noise, SeededNoise) else SeededNoise(0)


class SeededNoise:
    """Repeatable noise for tests and studies. It gives no privacy: anyone who knows the seed can compute the noise.

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
