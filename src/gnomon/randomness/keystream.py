"""The keystream: unpredictable 64-bit words from AES-128 in counter mode."""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

BYTES_PER_KEY = 2**36
"""The bytes of keystream after which a key is replaced. They are 2^32 blocks, which all differ; that truly random
blocks could repeat tells the stream from random numbers with an advantage of at most 2^-65."""

PIECE = 2**14
"""The number of words that are drawn at a time: they stay in the processor's cache, and a thread that draws them holds
the interpreter lock for about 20 microseconds at most."""

LARGEST_PIECE = 2**16
"""The largest number of words that can be drawn in one call."""

_ZEROS = memoryview(bytes(8 * LARGEST_PIECE))


class Keystream:
    """Random words under a key and a first counter block from the operating system. Neither is ever stored.

    A keystream belongs to one process and one thread at a time.

    >>> words = np.zeros(4, dtype=np.uint64)
    >>> Keystream().fill(words)
    >>> bool((words != 0).all())
    True
    """

    def __init__(self) -> None:
        self._left = 0

    def fill(self, words: NDArray[np.generic]) -> None:
        """Overwrite a contiguous array of at most `LARGEST_PIECE` 64-bit numbers with the next words of the stream."""
        size = words.nbytes
        if self._left < size:
            entropy = self._entropy()
            self._encryptor = Cipher(algorithms.AES(entropy[:16]), modes.CTR(entropy[16:])).encryptor()
            self._left = BYTES_PER_KEY
        self._left -= size  # before the words are written: an interrupted call must not leave bytes uncounted
        if size:
            self._encryptor.update_into(_ZEROS[:size], words.view(np.uint8).data)

    def forget(self) -> None:
        """Drop the key. A new one is drawn when it is needed."""
        self._left = 0
        self.__dict__.pop("_encryptor", None)

    def _entropy(self) -> bytes:
        """Return a key and the first counter block."""
        return os.urandom(32)
