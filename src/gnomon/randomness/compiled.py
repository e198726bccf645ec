"""Functions that numba compiles in the background, in processes that use them enough.

numba is optional. Its cache on disk is not used, because numba unpickles the files in it; a process therefore compiles
for itself, which takes one to two seconds of processor time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

COMPILE_AFTER = 2**23
"""The count of numbers a process has processed with the slow form of a function when it starts compiling the fast one.
They have cost about 0.1 s, so a process that ends soon afterwards loses little, and one that goes on gains soon."""

LONGEST_COMPILATION = 30.0
"""The seconds for which a fork waits for a compilation."""

_compiling = threading.RLock()
"""Held during a compilation. A fork waits for it: a child would inherit the locks of a compiler that nobody runs."""


def _before_fork() -> None:
    _compiling.acquire(timeout=LONGEST_COMPILATION)


def _after_fork_in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # raised if the wait before the fork timed out
        _compiling.release()


def _after_fork_in_child() -> None:
    global _compiling  # noqa: PLW0603  # the inherited lock may be held by a thread that the child does not have
    _compiling = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class Kernel:
    """A loop over numbers in plain Python, and its compiled form as soon as there is one.

    A kernel that cannot be compiled, for any reason, or whose compiled form does not do what the Python function does,
    never becomes ready.

    Args:
        function: the function, in the part of Python that numba compiles. It runs without the interpreter lock.
        signature: the types of the result and the arguments, as numba writes them.
        agrees: whether a compiled form returns what the Python function returns.

    >>> kernel = Kernel(lambda x: x + 1.0, "float64(float64)", agrees=lambda compiled: compiled(1.0) == 2.0)
    >>> kernel.after(10) is None  # ten uses are too few to compile anything
    True
    """

    def __init__(
        self, function: Callable[..., Any], signature: str, agrees: Callable[[Callable[..., Any]], bool]
    ) -> None:
        self.function, self.failure = function, ""
        self._signature, self._agrees = signature, agrees
        self._compiled: Callable[..., Any] | None = None
        self._used = 0
        self._started = threading.Lock()  # acquired once, without waiting, by the thread that starts the compilation

    def after(self, count: int) -> Callable[..., Any] | None:
        """Return the compiled function, if there is one, and count the numbers that it is wanted for."""
        if self._compiled is None and self._used < COMPILE_AFTER:
            self._used += count
            if self._used >= COMPILE_AFTER and self._started.acquire(blocking=False):
                self._start()
        return self._compiled

    def _start(self) -> None:
        try:
            # Not a daemon: LLVM must not run while the interpreter shuts down, so an exit waits for it.
            threading.Thread(target=self.compile, name="gnomon-compile", daemon=False).start()
        except RuntimeError as error:
            self.failure = str(error)

    def compile(self) -> bool:
        """Compile the function now, and return whether the compiled form can be used."""
        with _compiling:
            try:
                from numba import njit  # noqa: PLC0415  # optional, and slow to import

                compiled = njit(self._signature, nogil=True, error_model="numpy")(self.function)
                if compiled is self.function:
                    self.failure = "compilation is disabled (NUMBA_DISABLE_JIT)"
                elif not self._agrees(compiled):
                    self.failure = "the compiled function does not agree with the Python function"
                else:
                    self._compiled = compiled
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
        return self._compiled is not None
