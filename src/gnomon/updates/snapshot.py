"""The snapshot of what a model and a loss keep from one call to the next: taken before records are seen, then compared.

State is found by following attributes from the model and the loss: parameters and buffers, plain tensors, NumPy arrays,
numbers and strings, containers, objects, and the closures and defaults of functions; for a loss also the globals that
its code names. The following is not seen: the inside of C objects (files, generators, `functools.lru_cache`), class
attributes and globals of the model's own code, torch's hooks, and anything deeper than `DEPTH` attributes below a
module.
"""

from __future__ import annotations

import array
import random
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnomon.updates.state_kinds import (
    DICT,
    FUNCTION,
    HOOKS,
    LOSS_FUNCTION,
    MODULE,
    NAMESPACE,
    OBJECT,
    SEQUENCE,
    SET,
    Kind,
    is_library,
    kind_of,
)
from gnomon.updates.state_values import (
    ATOMS,
    WHOLE,
    ContainerState,
    Spans,
    State,
    TensorState,
    is_large,
    names_below,
    size_of,
)

EVERY = 2**21
"""Large tensors with at most this many numbers in total are read every time; with more, a part is read at random times.
"""

PART = 2**21
"""The number of numbers that are read at a random time, so that a large frozen table costs little even then."""

RARELY = 1 / 16
"""The lowest probability with which a part is read, however many numbers large tensors have."""

ALIGNED = 2**9
"""A random part of a large tensor begins at a multiple of this many numbers, so that it can be read as it is."""

DEPTH = 8
"""The number of attributes and items below a module, or below the loss, that are followed."""

MOST = 2**14
"""The largest number of objects that are followed."""

_secret = random.SystemRandom()


class Snapshot:
    """The state of a model and a loss at one time.

    Call `note` before records are seen and `changed` before anything is released: it names the state that differs, and
    quotes no value. State that was overwritten by the same value has not changed, except for parameters, which must not
    be written at all.

    Small tensors are compared by value. Large ones are compared by identity, address and torch's count of writes. Their
    contents are compared by a checksum:

    - all contents the first time and when `note(contents=True)` asks for it, and every time while large tensors have at
      most `EVERY` numbers in total;
    - with N > `EVERY` numbers, otherwise with the probability max(`RARELY`, `EVERY` / N), and then `PART` successive
      ones of the N, beginning at a random place. Nobody can predict when and where.

    Args:
        roots: the objects by name; the name of the model is the empty string.
        copies: whether to copy large parameters, so that they can be restored. Buffers are always copied.

    >>> class Mean(nn.Module):
    ...     mean: Tensor | None = None
    ...     def forward(self, x):
    ...         self.mean = x.mean(0)
    ...         return x - self.mean
    >>> model = nn.Sequential(Mean())
    >>> snapshot = Snapshot({"": model})
    >>> snapshot.note()
    >>> _ = model(torch.randn(4, 2))
    >>> snapshot.changed()
    '0.mean'
    >>> snapshot.restore()
    >>> snapshot.changed() is None, model[0].mean is None
    (True, True)
    """

    def __init__(self, roots: Mapping[str, Any], *, copies: bool = False) -> None:
        self.roots, self._copies = dict(roots), copies
        self._known: frozenset[str] | None = None
        self.pending = False
        """Whether a state was noted that has since been neither found unchanged nor restored."""
        self._states: list[tuple[Any, State]] = []
        self._large: list[TensorState] = []
        self._code: list[tuple[type, list[types.FunctionType]]] = []

    def note(self, contents: bool | None = None) -> None:
        """Record the present state.

        Args:
            contents: whether to read the contents of large tensors (default: at unpredictable times).
        """
        if contents is None:
            window = _Window.drawn(sum(state.size for state in self._large)) if self._states else _Window.whole()
        else:
            window = _Window.whole() if contents else _Window.nothing()
        self.pending = True
        if self._states and self._refreshed(window):
            return
        previous = {id(state.value): state for state in self._large}
        walk = _Walk(window, self._copies, previous, self._known)
        for name, root in self.roots.items():
            walk.start(root, name, follow_globals=bool(name))
        self._states, self._large, self._code = walk.states, walk.large, walk.code

    def _refreshed(self, window: _Window) -> bool:
        """Record the present contents of tensors in the states of the last walk; False if a new walk is due."""
        if any(_functions(cls) != functions for cls, functions in self._code):
            return False
        if not all(state.refresh(window.next_spans) for _, state in self._states):
            window.rewind()
            return False
        return True

    def later(self) -> Snapshot:
        """Return a snapshot of the same objects as they are now, after they saw records.

        An attribute that is new since this snapshot may be named after the contents of a record. The later snapshot
        shows its name only if the code contains it.
        """
        later = Snapshot(self.roots, copies=self._copies)
        later._known = frozenset(name for _, state in self._states for name in names_below(state))
        later.note(contents=True)
        return later

    def changed(self) -> str | None:
        """Return the name of state that differs from what was noted; None if nothing does."""
        for value, state in self._states:
            path = state.difference(value)
            if path is not None:
                return path or type(value).__name__
        self.pending = False
        return None

    def verify_contents(self) -> str | None:
        """Return the name of a large tensor or array that was written, unseen by torch, since it was last read.

        Tensors whose writes torch has counted, such as parameters that an optimizer moved, are not compared.

        >>> model = nn.Linear(200, 100)
        >>> snapshot = Snapshot({"": model})
        >>> snapshot.note()
        >>> _ = model.weight.data.mul_(2)  # torch does not count this write
        >>> snapshot.verify_contents()
        'weight'
        """
        return next((state.path for state in self._large if state.written_unseen()), None)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore what was noted: attributes, items and numbers, and the contents of everything that was copied."""
        for _, state in self._states:
            state.restore()
        self.pending = False


@contextmanager
def untouched(model: nn.Module, parameters: bool = False, loss: Any = None) -> Iterator[Snapshot]:
    """Restore the state of a model after the enclosed code, its training modes, and torch's random state.

    Args:
        model: the model.
        parameters: whether to restore large parameters as well.
        loss: a loss whose state is restored as well.

    >>> model = nn.BatchNorm1d(2)
    >>> with untouched(model) as before:
    ...     _ = model(torch.randn(4, 2))
    ...     print(before.changed())
    running_mean
    >>> model.num_batches_tracked.item()
    0
    """
    before = Snapshot({"": model} | ({} if loss is None else {"loss": loss}), copies=parameters)
    before.note(contents=parameters)
    modes = {module: module.training for module in model.modules()}
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield before
    finally:
        before.restore()
        for module, mode in modes.items():
            module.training = mode


class _Window:
    """Which of the numbers of all large tensors, laid end to end, are read.

    Args:
        start: the first number.
        length: how many; those beyond the last one are taken from the beginning.
        total: the number of all numbers; None to read whatever there is.
    """

    def __init__(self, start: int, length: int, total: int | None) -> None:
        self._start, self._length, self._total, self._position = start, length, total, 0
        self.complete = total is None or length >= total
        self.empty = total is not None and not length

    @classmethod
    def whole(cls) -> _Window:
        return cls(0, 0, None)

    @classmethod
    def nothing(cls) -> _Window:
        return cls(0, 0, 1)

    @classmethod
    def drawn(cls, total: int) -> _Window:
        """Draw a window for tensors with this many numbers in total."""
        if total <= EVERY:
            return cls.whole()
        if _secret.random() >= max(RARELY, EVERY / total):
            return cls.nothing()
        return cls(_secret.randrange(total) // ALIGNED * ALIGNED, PART, total)

    def next_spans(self, size: int) -> Spans:
        """Return the parts of the next large tensor that are read."""
        if self.complete or self.empty:
            return WHOLE if self.complete else ()
        first, self._position = self._position, self._position + size
        total = self._total or 0
        starts = (self._start - first - total, self._start - first)  # the former for what begins anew
        cuts = ((max(start, 0), min(start + self._length, size)) for start in starts)
        return tuple(slice(low, high) for low, high in cuts if low < high)

    def rewind(self) -> None:
        """Begin with the first large tensor again."""
        self._position = 0


def _functions(cls: type) -> list[types.FunctionType]:
    """Return the methods of a class and of its bases outside the libraries."""
    bases = (vars(base).values() for base in cls.__mro__ if not is_library(base))
    return [function for found in bases for function in found if isinstance(function, types.FunctionType)]


class _Walk:
    """One walk from the roots to all state that is followed."""

    def __init__(
        self, window: _Window, copies: bool, previous: Mapping[int, TensorState], known: frozenset[str] | None
    ) -> None:
        self.states: list[tuple[Any, State]] = []
        self.large: list[TensorState] = []
        self.code: list[tuple[type, list[types.FunctionType]]] = []
        self._window, self._copies, self._previous, self._known = window, copies, previous, known
        self._contents = not window.empty
        self._seen: set[int] = set()
        self._follow_globals = False

    def start(self, root: Any, name: str, follow_globals: bool) -> None:
        """Follow one root; the globals that functions name are part of the state of a loss."""
        self._follow_globals = follow_globals
        state = self._follow(root, name, 0)
        if state is not None:
            self.states.append((root, state))

    def _follow(self, value: Any, path: str, depth: int, buffer: bool = False) -> State | None:
        """Return the state of a value; None if it is compared by identity and equality alone."""
        cls: Any = type(value)
        if cls in ATOMS or id(value) in self._seen or (cls is tuple and ATOMS.issuperset(map(type, value))):
            return None
        if isinstance(value, Tensor):
            return self._tensor(value, path, depth, buffer)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return self._tensor(value, path, depth, buffer)
        kind = kind_of(cls)
        if kind is None or depth > DEPTH or len(self._seen) > MOST:
            return None
        if kind is FUNCTION:
            if is_library(value):
                return None
            kind = LOSS_FUNCTION if self._follow_globals and not is_library(value, "gnomon") else kind
        self._seen.add(id(value))
        return self._module(value, path) if kind is MODULE else self._container(value, path, kind, depth)

    def _tensor(self, value: Any, path: str, depth: int, buffer: bool) -> TensorState:
        self._seen.add(id(value))
        spans = self._window.next_spans(size_of(value)) if is_large(value) else ()
        state = TensorState(
            value, path, spans=spans, copy=self._copies or buffer, previous=self._previous.get(id(value))
        )
        if state.is_large:
            self.large.append(state)
        if isinstance(value, Tensor) and vars(value):
            state.attributes = self._container(vars(value), path, NAMESPACE, depth)
        return state

    def _module(self, module: nn.Module, path: str) -> ContainerState:
        """Return the state of a module, with parameters, buffers and submodules named like attributes."""
        state = ContainerState(module, path, MODULE, module, self._contents, self._known)
        for position, (name, part) in enumerate(zip(state.keys, state.values, strict=True)):
            if name in HOOKS or type(part) in ATOMS:
                continue
            if name in ("_parameters", "_buffers", "_modules") and isinstance(part, dict):
                child: State | None = self._container(part, path, NAMESPACE, 0, module, buffer=name == "_buffers")
            else:
                child = self._follow(part, state.name_of(name), 1)
            if child is not None:
                state.children.append((position, child))
        self._code(type(module), path)
        return state

    def _container(
        self, value: Any, path: str, kind: Kind, depth: int, owner: Any = None, buffer: bool = False
    ) -> ContainerState:
        state = ContainerState(value, path, kind, value if owner is None else owner, self._contents, self._known)
        if not isinstance(value, bytearray | array.array):
            for position, part in enumerate(state.values):
                if type(part) in ATOMS or id(part) in self._seen:
                    continue
                key = state.keys[position] if state.keys else position
                child = self._follow(part, state.name_of(key), depth + 1, buffer)
                if child is not None:
                    state.children.append((position, child))
        if kind in (DICT, SET, SEQUENCE) and hasattr(value, "__dict__"):
            state.attributes = self._container(vars(value), path, NAMESPACE, depth)
        if kind is OBJECT:
            self._code(type(value), path)
        return state

    def _code(self, cls: type, path: str) -> None:
        """Follow the defaults, closures and globals of the methods of a class that the loss uses."""
        if not self._follow_globals or id(cls) in self._seen or is_library(cls) or is_library(cls, "gnomon"):
            return
        self._seen.add(id(cls))
        self.code.append((cls, _functions(cls)))
        for function in self.code[-1][1]:
            state = self._follow(function, path, 1)
            if state is not None:
                self.states.append((function, state))
