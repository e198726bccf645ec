"""The two sources of noise, and the protocol that they share."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon.randomness import ziggurat
from gnomon.randomness.keystream import Keystream
from gnomon.randomness.normals import Normals
from gnomon.randomness.prefetch import Chunk, Prefetch
from gnomon.randomness.processes import process

CHUNK = 2**16
"""The number of normals that are drawn ahead as a unit; a draw of as many gets such a unit without a copy."""

CHUNKS_AHEAD = 16
"""The largest number of chunks that a source draws ahead: 2^20 normals, 8 MiB."""

PREFETCH_AFTER = 2**22
"""The normals that a source has handed out in draws of at least a chunk when it starts to draw ahead. Small models
draw less than a chunk at a time and never start a thread, and no source does before the ziggurat is compiled."""

SMALL, RESERVE = 2**8, 2**10
"""Draws of at most `SMALL` normals are served from a reserve of `RESERVE`, because a draw costs the same for both."""

LONGEST_EXIT = 1.0
"""The seconds for which the interpreter's exit waits for the thread of a source."""


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
    """Unpredictable noise from an AES-128 keystream, keyed by the operating system's entropy. There is no seed.

    Formal guarantees:

    1. No number is handed out twice: not by two draws, to two threads, to a process and its forked child, or by a
       source and its copy. A copy, also by pickle, is a new source.
    2. No key and no number is stored. A new key is drawn after a fork and after every 64 GiB.
    3. A source from which much is drawn draws ahead in a background thread. The thread ends, and what it has drawn is
       overwritten, when the source is closed or garbage-collected and when the interpreter exits; a forked child
       overwrites its copy. A failure of the thread does not disturb the source.

    >>> source = SecureNoise()
    >>> source.normal(5).dtype, bool((source.normal(4) != source.normal(4)).all())
    (torch.float64, True)
    """

    private = True
    _keystream: ClassVar[type[Keystream]] = Keystream

    def __init__(self) -> None:
        self._state: _State | None = None

    def normal(self, count: int) -> Tensor:
        while True:
            state = self._of_this_process()
            values = state.normal(count)
            if state.process == process():  # a signal handler may have forked during the draw
                return torch.from_numpy(values)

    def uniform(self, count: int) -> Tensor:
        while True:
            state = self._of_this_process()
            values = state.uniform(count)
            if state.process == process():
                return torch.from_numpy(values)

    def close(self) -> None:
        """End the background thread and overwrite what it has drawn. Later draws are made on demand.

        >>> source = SecureNoise()
        >>> source.close()
        >>> len(source.normal(3))
        3
        """
        if self._state is not None and self._state.process == process():
            self._state.end(LONGEST_EXIT)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def _of_this_process(self) -> _State:
        """Return the state. In a forked child it is a new one, so nothing that the parent may hold locked is used."""
        state = self._state
        if state is None or state.process != process():
            # two threads may both get here; each then draws from a state of its own, and one of the two is kept
            self._state = state = _State(self._keystream)
            _live.add(state)
            weakref.finalize(self, state.end).atexit = False  # `_end_threads` does it, and waits
        return state


class _State:
    """The keys, the lock and the numbers of a source in one process.

    No draw waits for the lock: a thread that finds it held, or a signal handler that interrupts a draw, uses a key of
    its own.
    """

    def __init__(self, keystream: type[Keystream]) -> None:
        self.process = process()
        self._keystream = keystream
        self._lock = threading.Lock()
        self._normals = Normals(keystream())
        self._large = 0
        self._prefetch: Prefetch | None = None
        self._closed = False
        self._rest: Chunk = np.empty(0)  # what is left of a chunk or reserve that smaller draws have begun

    def normal(self, count: int) -> NDArray[np.float64]:
        prefetch = self._prefetch
        if prefetch is not None and count == CHUNK and (chunk := prefetch.take()) is not None:
            return chunk
        values = np.empty(count)
        if not self._lock.acquire(blocking=False):
            Normals(self._keystream()).fill(values)
            return values
        try:
            if prefetch is None and count >= CHUNK:
                self._count_large(count)
            done = self._move_ready(values, prefetch) if prefetch is not None or count <= SMALL else 0
            if done < count:
                self._normals.fill(values[done:])
        finally:
            self._lock.release()
        return values

    def uniform(self, count: int) -> NDArray[np.float64]:
        values = np.empty(count)
        if not self._lock.acquire(blocking=False):
            Normals(self._keystream()).uniform(values)
            return values
        try:
            self._normals.uniform(values)
        finally:
            self._lock.release()
        return values

    def end(self, wait: float = 0.0) -> None:
        """End the thread and overwrite its numbers. With `wait = 0` it waits for nothing, as a finalizer must not."""
        self._closed = True
        free = self._lock.acquire(timeout=wait)
        try:
            prefetch, self._prefetch = self._prefetch, None
            if prefetch is not None:
                prefetch.close(wait)
            if free:  # otherwise a draw may be reading the numbers, and zeros must never pass for noise
                self._rest.fill(0)
                self._rest = np.empty(0)
        finally:
            if free:
                self._lock.release()

    def erase(self) -> None:
        """Overwrite everything in a forked child, without a lock: a thread that the child does not have may hold it."""
        if self._prefetch is not None:
            self._prefetch.erase()
        self._rest.fill(0)
        self._normals.erase()

    def _count_large(self, count: int) -> None:
        """Count a draw of at least a chunk, and start to draw ahead once there were enough of them."""
        self._large += count
        if self._large < PREFETCH_AFTER or self._closed or usable_cores() < 2:
            return
        if ziggurat.KERNEL.after(0) is None:  # a thread that calls torch would contend for the interpreter lock
            return
        prefetch = Prefetch(Normals(self._keystream()), CHUNK, CHUNKS_AHEAD)
        try:
            prefetch.start()
        except RuntimeError:  # the system allows no more threads
            self._closed = True
            return
        self._prefetch = prefetch

    def _move_ready(self, values: NDArray[np.float64], prefetch: Prefetch | None) -> int:
        """Move numbers that are ready to the array, and return how many.

        They are copied: a slice would keep the whole chunk in memory, and whoever stores it would store later numbers.
        """
        done = 0
        while done < len(values):
            if not len(self._rest):
                chunk = prefetch.take() if prefetch is not None else None
                if chunk is None and len(values) <= SMALL and not self._closed:
                    chunk = np.empty(RESERVE)
                    self._normals.fill(chunk)
                if chunk is None:
                    break
                self._rest = chunk
            part = min(len(values) - done, len(self._rest))
            moved, self._rest = self._rest[:part], self._rest[part:]
            values[done : done + part] = moved
            done += part
        return done


_live: weakref.WeakSet[_State] = weakref.WeakSet()
"""The states of this process, for the two functions below. It keeps none of them alive."""


def _erase_inherited() -> None:
    for state in list(_live):
        state.erase()
    _live.clear()


def _end_threads() -> None:
    for state in list(_live):
        state.end(LONGEST_EXIT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_erase_inherited)
atexit.register(_end_threads)


def usable_cores() -> int:
    """Return the number of processor cores on which this process may run.

    >>> usable_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
