"""Noise drawn ahead: a background thread fills a bounded buffer while the training step computes.

Noise does not depend on data, so it can be drawn before it is needed. Consumers never wait for the thread: what is not
ready they draw themselves.

The two queues are the only objects that the thread and the consumers share. Each chunk is put into `_ready` once and
taken from it once, so no number is handed out twice. `SimpleQueue` can be used from anywhere, also from a finalizer
that interrupts another call of the same queue, and no lock is held while numbers are drawn.
"""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from gnomon.randomness.normals import Normals
from gnomon.randomness.processes import process

Chunk = NDArray[np.float64]


class Prefetch:
    """A thread that keeps a number of chunks of normals ready.

    A failure of the thread ends it and is kept in `failure`; consumers then find nothing ready.

    Args:
        normals: a stream of the thread's own.
        size: the number of normals of a chunk.
        depth: the largest number of chunks that are ready.

    >>> from gnomon.randomness.keystream import Keystream
    >>> prefetch = Prefetch(Normals(Keystream()), size=4, depth=2)
    >>> prefetch.start()
    >>> prefetch.close(wait=5.0)
    >>> prefetch.take() is None
    True
    """

    def __init__(self, normals: Normals, size: int, depth: int) -> None:
        self.failure: BaseException | None = None
        self._process = process()
        self._normals, self._size = normals, size
        self._ready: SimpleQueue[Chunk] = SimpleQueue()
        self._orders: SimpleQueue[None] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._drawing: Chunk | None = None  # known here so that a forked child can erase its copy
        self._closed = False
        for _ in range(depth):
            self._orders.put(None)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system allows no more threads."""
        threading.Thread(target=self._run, name="gnomon-noise", daemon=True).start()

    def take(self) -> Chunk | None:
        """Return a chunk that nobody else gets, or None if none is ready."""
        try:
            chunk = self._ready.get_nowait()
        except Empty:
            return None
        self._orders.put(None)
        return chunk

    def close(self, wait: float = 0.0) -> None:
        """End the thread and overwrite what is ready with zeros. Wait for the thread so many seconds at most."""
        self._closed = True
        self._orders.put(None)  # wakes the thread
        if wait > 0 and self._process == process():
            with contextlib.suppress(Empty):
                self._ended.put(self._ended.get(timeout=wait))
        self._erase_ready()

    def erase(self) -> None:
        """Overwrite everything with zeros in a forked child, which has a copy of it but no thread."""
        self._closed = True
        self._erase_ready()
        if self._drawing is not None:
            self._drawing.fill(0)
        self._normals.erase()

    def _run(self) -> None:
        try:
            while True:
                self._orders.get()
                if self._closed:
                    break
                self._drawing = chunk = np.empty(self._size)
                self._normals.fill(chunk)
                self._drawing = None
                self._ready.put(chunk)
                del chunk  # its consumer owns it
        except BaseException as failure:  # consumers go on without the thread
            self.failure = failure.with_traceback(None)  # whose frames would keep the numbers alive
        finally:
            self._closed = True
            # after the flag: whatever this thread put into the queue is erased by it or was taken by a consumer
            self._erase_ready()
            self._drawing = None
            self._normals.erase()
            self._ended.put(None)

    def _erase_ready(self) -> None:
        while True:
            try:
                self._ready.get_nowait().fill(0)
            except Empty:
                return
