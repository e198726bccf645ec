"""Every way in which a secure source draws normals, and a keystream that repeats, for tests without chance."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from gnomon.randomness import SecureNoise, sources, ziggurat
from gnomon.randomness.keystream import Keystream
from gnomon.randomness.processes import process

GENERATORS = ("box-muller", "ziggurat", "prefetched")


class NotCompiled:
    """A kernel that is never ready."""

    def after(self, count: int) -> None:
        return None


class Prefetched(SecureNoise):
    """A source that waits until what it hands out has been drawn ahead."""

    def normal(self, count: int) -> Tensor:
        state = self._state
        if state is None or state.process != process() or state._prefetch is None:
            super().normal(sources.CHUNK)  # starts the thread
        wait_for(lambda: self.ready() * sources.CHUNK >= count or self.ready() >= sources.CHUNKS_AHEAD)
        return super().normal(count)

    def ready(self) -> int:
        """The number of chunks that are ready."""
        return self._state._prefetch._ready.qsize()


def secure_source(kind: str, monkeypatch: pytest.MonkeyPatch) -> type[SecureNoise]:
    """Return the class of sources that draw normals in this way."""
    if kind == "box-muller":
        monkeypatch.setattr(ziggurat, "KERNEL", NotCompiled())
        return SecureNoise
    compile_ziggurat()
    if kind == "ziggurat":
        return SecureNoise
    prefetch_at_once(monkeypatch)
    return Prefetched


def compile_ziggurat() -> None:
    """Compile the ziggurat unless it is compiled, or skip the test without numba."""
    pytest.importorskip("numba")
    assert ziggurat.KERNEL.after(0) or ziggurat.KERNEL.compile(), ziggurat.KERNEL.failure


def prefetch_at_once(monkeypatch: pytest.MonkeyPatch, chunk: int = 2**12) -> None:
    """Let every source draw ahead, in small chunks, as soon as one chunk was drawn."""
    compile_ziggurat()
    monkeypatch.setattr(sources, "CHUNK", chunk)
    monkeypatch.setattr(sources, "PREFETCH_AFTER", chunk)
    monkeypatch.setattr(sources, "usable_cores", lambda: 2)


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.0005)


class FixedStream(Keystream):
    """A keystream from a seed. It records nothing and repeats exactly."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._words = np.random.Philox(seed)

    def fill(self, words: np.ndarray) -> None:
        words.view(np.uint64)[:] = self._words.random_raw(len(words))
