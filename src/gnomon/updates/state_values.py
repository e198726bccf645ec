"""The states of the values that a model or a loss keeps, as they are copied, compared and restored.

`TensorState` is the state of a tensor or an array, `ContainerState` that of a container, an object or a function with
its parts, which are read as `gnomon.updates.state_kinds` says. Comparisons are by bits, so that NaN equals itself and
-0.0 differs from 0.0.
"""

from __future__ import annotations

import array
import collections
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gnomon.updates.state_kinds import HOOKS, MODULE, Kind, attribute_name

SMALL = 2**14
"""Tensors and arrays of at most this many numbers are always copied and compared by value, because a write through
`.data` leaves no trace."""

LONG = 2**12
"""Containers with more items are compared by their length and both ends, and completely when large tensors are read."""

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, type, range})
"""Immutable types without parts, whose values are compared by equality."""

CONTAINERS = (list, tuple, collections.deque, dict, set, frozenset, bytearray, array.array)
"""Types whose length is compared."""

ALL = slice(None)
WHOLE = (ALL,)
"""The spans of a tensor whose contents are read completely."""

Sums: TypeAlias = tuple[int, int, bytes]
"""A checksum."""
Spans: TypeAlias = tuple[slice, ...]
"""Parts of the numbers of a large tensor or array, in memory order."""
SpansOf: TypeAlias = Callable[[int], Spans]
"""(size) -> the parts that are read of the next large tensor or array, which has this many numbers."""

_CHUNK = 64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# -- tensors and arrays --------------------------------------------------------------------------


class TensorState:
    """The state of a tensor or an array: its address, torch's count of writes, and its contents or their checksum.

    Args:
        value: the tensor or array.
        path: its name.
        spans: the parts of a large value whose contents are read.
        copy: whether to copy a large value, so that it can be restored.
        previous: an earlier state of the same value, whose copy and checksum are reused if nothing was written.
    """

    __slots__ = (
        "address", "attributes", "copied", "copy", "path", "size", "spans", "sums", "sums_of_spans", "value", "version",
    )  # fmt: skip

    def __init__(self, value: Any, path: str, *, spans: Spans, copy: bool, previous: TensorState | None) -> None:
        self.value, self.path, self.copy = value, path, copy
        self.attributes: State | None = None
        self.size = size_of(value)
        self._note(spans, previous)

    def _note(self, spans: Spans, previous: TensorState | None) -> None:
        """Record the present contents."""
        value, address = self.value, _address(self.value)
        self.spans: Spans = ()
        self.sums_of_spans: tuple[Sums, ...] = ()
        if address is None or self.size <= SMALL:  # a sparse, nested or wrapped tensor cannot be read
            self.version, self.address = _version(value), address
            self.sums: Sums | None = None
            """The checksum of the whole contents; None if they were not read since torch last counted a write."""
            self.copied: Any = None if address is None else _copy(value)
            return
        same = previous if previous is not None and not previous.written(value) else None
        sums, copied = (None, None) if same is None else (same.sums, same.copied)
        self.version, self.address = _version(value), address
        self.spans, self.sums_of_spans = spans, checksums(value, spans)
        self.sums = self.sums_of_spans[0] if spans == WHOLE else sums
        usable = copied is not None and (spans != WHOLE or sums == self.sums)
        self.copied = None if not self.copy else copied if usable else _copy(value)

    def refresh(self, spans_of: SpansOf) -> bool:
        """Record the present contents of the same value; return False if more than its contents has changed."""
        value = self.value
        if self.attributes is not None:
            if not self.attributes.refresh(spans_of):
                return False
        elif isinstance(value, Tensor) and vars(value):
            return False
        if size_of(value) != self.size or (self.address is None) is not (_address(value) is None):
            return False
        self._note(spans_of(self.size) if self.is_large else (), self)
        return True

    @property
    def is_large(self) -> bool:
        """Whether the contents are compared by a checksum, and not every time."""
        return self.size > SMALL and self.address is not None

    def written(self, current: Any) -> bool:
        """Return whether the value is another object, has moved in memory, or was written as far as torch counts."""
        return current is not self.value or _version(current) != self.version or _address(current) != self.address

    def written_unseen(self) -> bool:
        """Return whether the contents differ from the last checksum although torch has counted no write."""
        return self.sums is not None and not self.written(self.value) and self.sums != checksum(self.value)

    def difference(self, current: Any) -> str | None:
        """Return the name of what differs now; None if nothing does."""
        if self._differs(current):
            return self.path
        if self.attributes is not None:
            return self.attributes.difference(vars(current))
        return attribute_name(self.path, "*") if isinstance(current, Tensor) and vars(current) else None

    def _differs(self, current: Any) -> bool:
        written = self.written(current)
        if written and (isinstance(self.value, nn.Parameter) or type(current) is not type(self.value)):
            return True
        if self.copied is not None and (written or self.size <= SMALL):
            return not _same_bits(self.copied, current)
        if written:
            return current is self.value or self.written(self.value) or not _same_bits(self.value, current)
        return bool(self.spans) and self.sums_of_spans != checksums(current, self.spans)

    def restore(self) -> None:
        """Restore the attributes, and the contents if they were copied."""
        if self.attributes is not None:
            self.attributes.restore()
        elif isinstance(self.value, Tensor):
            vars(self.value).clear()
        if self.copied is None or _same_bits(self.copied, self.value):
            return
        with suppress(RuntimeError, ValueError):  # a read-only array cannot be restored; continue with the others
            if isinstance(self.value, Tensor):
                if self.value.shape == self.copied.shape:
                    self.value.copy_(self.copied)
                else:
                    self.value.data = self.copied.clone()
            else:
                self.value[...] = self.copied


def checksums(value: Any, spans: Spans) -> tuple[Sums, ...]:
    """Return a checksum of each of these parts of a large tensor or array."""
    return (checksum(value),) if spans == WHOLE else tuple(checksum(value, span) for span in spans)


def checksum(value: Any, span: slice = ALL) -> Sums:
    """Return a checksum of a large tensor or array, or of a part of its numbers, at the speed of memory.

    Words of 64 bits are added in chunks, and the chunks are added a second time with their positions as weights. Any
    single change is detected, and so is a change of order across chunks.
    """
    flat = _bytes(value, span)
    complete = flat.numel() // (8 * _CHUNK) * (8 * _CHUNK)
    chunks = flat[:complete].view(torch.int64).view(-1, _CHUNK).sum(1)
    weighted = chunks * torch.arange(1, len(chunks) + 1, device=chunks.device)
    rest = flat[complete:].tolist() if complete < flat.numel() else ()
    return int(chunks.sum()), int(weighted.sum()), bytes(rest)


def _bytes(value: Any, span: slice) -> Tensor:
    if not isinstance(value, Tensor):
        flat = np.ascontiguousarray(value).reshape(-1)[span].view(np.uint8)
        flat = flat if flat.flags.writeable else flat.copy()  # torch warns about arrays that are not writable
        return torch.from_numpy(flat)
    bits = _bits(value).contiguous().view(-1)
    bits = bits if span is ALL else bits[span]
    if bits.storage_offset() * bits.element_size() % 8:
        bits = bits.clone()
    return bits.view(torch.uint8)


def _version(value: Any) -> int:
    """Return torch's count of writes to a tensor; -1 if there is none."""
    return -1 if not isinstance(value, Tensor) or value.is_inference() else value._version


def _address(value: Any) -> int | None:
    """Return the address of the contents; None if they cannot be read."""
    if not isinstance(value, Tensor):
        return 0 if value.dtype.hasobject else int(value.ctypes.data)
    try:
        if value.layout is not torch.strided or value.is_nested or value.is_meta or value.is_quantized:
            return None
        return value.data_ptr()
    except RuntimeError:
        return None


def size_of(value: Any) -> int:
    """Return how many numbers a tensor or array has."""
    return int(value.numel()) if isinstance(value, Tensor) else int(value.size)


def is_large(value: Any) -> bool:
    """Return whether the contents of a tensor or array are compared by a checksum, and not every time."""
    return size_of(value) > SMALL and _address(value) is not None


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value.copy()


def _same_bits(first: Any, second: Any) -> bool:
    """Return whether two tensors or arrays have the same shape, type and bits."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not isinstance(first, Tensor):
        return bool(first.tobytes() == second.tobytes())
    if not isinstance(second, Tensor) or first.device != second.device:
        return False
    if _address(first) is None or _address(second) is None:
        return first is second
    return torch.equal(_bits(first), _bits(second))


def _bits(value: Tensor) -> Tensor:
    """Return a tensor as integers of the same width."""
    value = value.detach()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return value.resolve_neg().view(_INTEGERS[value.element_size()])


# -- containers, objects and functions -----------------------------------------------------------


class ContainerState:
    """The state of a container, an object or a function: its parts, and the states of those that are followed.

    Args:
        value: the container.
        path: its name.
        kind: how its parts are read, written and named.
        owner: the object whose code may mention the names of the parts.
        complete: whether to read all items of a long container.
        known: the attribute names from before records were seen; None if no record was seen yet.
    """

    __slots__ = (
        "attributes", "children", "cls", "complete", "counted", "keys", "kind", "known", "owner", "parts", "path",
        "size", "value", "values",
    )  # fmt: skip

    def __init__(
        self, value: Any, path: str, kind: Kind, owner: Any, complete: bool, known: frozenset[str] | None
    ) -> None:
        self.value, self.path, self.kind, self.owner, self.known = value, path, kind, owner, known
        self.cls = type(value)
        sized = isinstance(value, CONTAINERS)
        self.size, self.counted = len(value) if sized else 0, sized and not kind.has_names
        self.complete = complete or self.size <= LONG
        self.keys, self.values = kind.read(value, self.complete)
        self.parts: dict[Any, Any] | None = kind.parts(value) if self.complete else None
        """The dictionary from which the parts were read, if they are its items."""
        self.children: list[tuple[int, State]] = []
        """The states of the parts that are followed, with their positions among the values."""
        self.attributes: State | None = None

    def difference(self, current: Any) -> str | None:
        """Return the name of what differs now; None if nothing does."""
        if current is self.value and self._has_same_parts():
            return self._difference_below(current, self.values)
        if current is not self.value and type(current) is not type(self.value):
            return self.path
        if self.counted and len(current) != self.size:
            return self.path
        keys, values = self.kind.read(current, self.complete)
        if not _equal_keys(keys, self.keys):
            by_key = dict(zip(keys, values, strict=False))
            if by_key.keys() != set(self.keys) or len(keys) != len(self.keys):
                return self._different_key(by_key)
            values = [by_key[key] for key in self.keys] if values else []
        if not all(map(is_, values, self.values)):
            followed = {position for position, _ in self.children}
            for position, (now, before) in enumerate(zip(values, self.values, strict=True)):
                if now is not before and position not in followed and not _equal_values(before, now):
                    key = self.keys[position] if self.keys else position
                    if not (self.kind is MODULE and key in HOOKS):
                        return self.name_of(key)
        return self._difference_below(current, values)

    def _has_same_parts(self) -> bool:
        """Return True only if the parts are the same objects in the same order, as far as that is cheap to tell."""
        parts = self.parts
        if parts is None or parts is not self.kind.parts(self.value) or len(parts) != len(self.keys):
            return False
        return all(map(is_, parts.values(), self.values)) and all(map(is_, parts, self.keys))

    def _difference_below(self, current: Any, values: list[Any]) -> str | None:
        for position, child in self.children:
            if (path := child.difference(values[position])) is not None:
                return path
        return self.attributes.difference(vars(current)) if self.attributes is not None else None

    def refresh(self, spans_of: SpansOf) -> bool:
        """Record the present contents of tensors below; return False if anything but such contents has changed.

        Parts must be the same objects in the same order, so that a new walk would find the same states.
        """
        value = self.value
        if type(value) is not self.cls or self.size > LONG:
            return False
        if not self._has_same_parts():
            keys, values = self.kind.read(value, self.complete)
            if len(keys) != len(self.keys) or len(values) != len(self.values) or not all(map(is_, values, self.values)):
                return False
            if not (_equal_keys(keys, self.keys) if self.kind.has_names else all(map(is_, keys, self.keys))):
                return False
        for _, child in self.children:
            if not child.refresh(spans_of):
                return False
        return self.attributes is None or self.attributes.refresh(spans_of)

    def _different_key(self, current: Mapping[Any, Any]) -> str:
        """Return the name of a part that was added or removed, preferably one that may be shown."""
        if not self.kind.has_names:
            return self.kind.label(self.path, None)
        removed = [self.name_of(key) for key in self.keys if key not in current]
        added = [self.name_of(key, frozenset()) for key in current if key not in set(self.keys)]
        hidden = self.kind.label(self.path, "*")
        return next((name for name in added + removed if name != hidden), hidden)

    def name_of(self, key: Any, known: frozenset[str] | None = None) -> str:
        """Return the name of a part.

        An attribute that appeared after records were seen may be named after the contents of a record. Its name is
        replaced by an asterisk unless the code of its owner contains it.
        """
        known = self.known if known is None else known
        name = key[1] if isinstance(key, tuple) else key
        hidden = self.kind.has_names and known is not None and name not in known
        if isinstance(key, tuple):  # all names of parts of a function occur in its code, except those of attributes
            hidden = hidden and key[0] == "attribute"
        return self.kind.label(self.path, "*" if hidden and not _in_code(self.owner, name) else key)

    def attribute_names(self) -> Iterator[str]:
        """Yield the names of all attributes in and below this container."""
        if self.kind.has_names:
            yield from (key[1] if isinstance(key, tuple) else key for key in self.keys)
        for _, child in self.children:
            yield from names_below(child)
        if self.attributes is not None:
            yield from names_below(self.attributes)

    def restore(self) -> None:
        """Restore the parts, and everything below them."""
        with suppress(Exception):  # a container of the user's own may refuse to be written; continue with the others
            keys, values = self.kind.read(self.value, self.complete)
            unchanged = len(values) == len(self.values) and all(map(is_, values, self.values))
            if self.complete and not (unchanged and _equal_keys(keys, self.keys)):
                pairs = zip(self.keys, self.values or self.keys, strict=True) if self.keys else enumerate(self.values)
                self.kind.write(self.value, dict(pairs))
        for _, child in self.children:
            child.restore()
        if self.attributes is not None:
            self.attributes.restore()


State: TypeAlias = TensorState | ContainerState


def names_below(state: State) -> Iterator[str]:
    """Yield the names of all attributes in and below a state."""
    if isinstance(state, ContainerState):
        yield from state.attribute_names()
    elif state.attributes is not None:
        yield from names_below(state.attributes)


def _equal_keys(first: list[Any], second: list[Any]) -> bool:
    try:
        return len(first) == len(second) and bool(first == second)
    except Exception:  # keys that cannot be compared count as different
        return False


def _equal_values(before: Any, now: Any) -> bool:
    """Return whether a value that is not followed any further was replaced by an equal one."""
    if type(before) is not type(now):
        return False
    if isinstance(before, Tensor | np.ndarray):
        return _same_bits(before, now)
    if isinstance(before, np.generic):
        return before.tobytes() == now.tobytes()
    if isinstance(before, float):
        return float(before).hex() == float(now).hex()
    try:
        return bool(before == now)
    except Exception:
        return False


def _in_code(owner: Any, name: Any) -> bool:
    """Return whether a name occurs in the methods of an object's class or in functions among its attributes."""
    namespaces = [vars(cls) for cls in type(owner).__mro__] + [getattr(owner, "__dict__", {})]
    functions = [part for names in namespaces for part in names.values() if isinstance(part, types.FunctionType)]
    return any(name in _names_in_code(function.__code__) for function in functions)


@functools.lru_cache(4096)
def _names_in_code(code: types.CodeType) -> frozenset[str]:
    """Return the names and strings in code and in the functions that it defines."""
    inner = [_names_in_code(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    strings = [constant for constant in code.co_consts if isinstance(constant, str)]
    return frozenset(code.co_names).union(strings, *inner)
