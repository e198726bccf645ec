"""How the values that a model or a loss keeps are copied, compared and restored: tensors, containers and objects.

`TensorState` describes a tensor or an array, `ContainerState` a container, an object or a function with its parts. A
`Kind` defines how the parts of one kind of container are read, written and named. Comparisons are by bits, so that NaN
equals itself and -0.0 differs from 0.0.
"""

from __future__ import annotations

import array
import collections
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from itertools import islice
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

SMALL = 2**14
"""Tensors and arrays of at most this many numbers are always copied and compared by value, because a write through
`.data` leaves no trace."""

LONG = 2**12
"""Containers with more items are compared by their length and both ends, and completely when large tensors are read."""

ENDS = 64
"""The number of items at each end of a long container that are compared."""

HOOKS = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
"""Attributes of nn.Module that belong to torch, such as its hooks."""

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, type, range})
"""Immutable types without parts, whose values are compared by equality."""

CONTAINERS = (list, tuple, collections.deque, dict, set, frozenset, bytearray, array.array)
"""Types whose length is compared."""

_CHUNK = 64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LIBRARIES = (sys.stdlib_module_names | {"torch", "numpy"}) - {
    "argparse", "collections", "functools", "queue", "types", "weakref",
}  # fmt: skip


# -- tensors and arrays --------------------------------------------------------------------------


class TensorState:
    """The state of a tensor or an array: its address, torch's count of writes, and its contents or their checksum.

    Args:
        value: the tensor or array.
        path: its name.
        contents: whether to read the contents of a large value.
        copy: whether to copy a large value, so that it can be restored.
        previous: an earlier state of the same value, whose copy and checksum are reused if nothing was written.
    """

    __slots__ = ("address", "attributes", "contents_read", "copied", "path", "size", "sums", "value", "version")

    def __init__(self, value: Any, path: str, *, contents: bool, copy: bool, previous: TensorState | None) -> None:
        self.value, self.path = value, path
        self.attributes: State | None = None
        self.copied: Any = None
        self.sums: tuple[int, int, bytes] | None = None
        self.contents_read = False
        self.version, self.address, self.size = _version(value), _address(value), _size(value)
        if self.address is None:  # the contents of a sparse, nested or wrapped tensor cannot be read
            return
        if self.size <= SMALL:
            self.copied = _copy(value)
            return
        same = previous if previous is not None and not previous.written(value) else None
        self.contents_read = contents
        self.sums = checksum(value) if contents else same.sums if same is not None else None
        if copy:
            usable = same is not None and same.copied is not None and (not contents or same.sums == self.sums)
            self.copied = same.copied if usable and same is not None else _copy(value)

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
        return self.contents_read and self.sums != checksum(current)

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


def checksum(value: Any) -> tuple[int, int, bytes]:
    """Return a checksum of a large tensor or array, computed in one pass at the speed of memory.

    Words of 64 bits are added in chunks, and the chunks are added a second time with their positions as weights. Any
    single change is detected, and so is a change of order across chunks.
    """
    flat = _bytes(value)
    complete = flat.numel() // (8 * _CHUNK) * (8 * _CHUNK)
    chunks = flat[:complete].view(torch.int64).view(-1, _CHUNK).sum(1)
    weighted = chunks * torch.arange(1, len(chunks) + 1, device=chunks.device)
    return int(chunks.sum()), int(weighted.sum()), bytes(flat[complete:].tolist())


def _bytes(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        flat = flat if flat.flags.writeable else flat.copy()  # torch warns about arrays that are not writable
        return torch.from_numpy(flat)
    bits = _bits(value).contiguous().view(-1)
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


def _size(value: Any) -> int:
    return int(value.numel()) if isinstance(value, Tensor) else int(value.size)


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


class Kind(NamedTuple):
    """How the parts of one kind of container are read, written and named."""

    read: Callable[[Any, bool], tuple[list[Any], list[Any]]]
    """(container, whether all items or both ends only) -> keys and values; a sequence has no keys."""
    write: Callable[[Any, dict[Any, Any]], None]
    """(container, parts by key) restores the parts."""
    label: Callable[[str, Any], str]
    """(path of the container, key) -> path of the part."""

    @property
    def has_names(self) -> bool:
        """Whether parts have attribute names, rather than keys or positions."""
        return self.label is attribute_name


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
        "attributes", "children", "complete", "keys", "kind", "known", "owner", "path", "size", "value", "values",
    )  # fmt: skip

    def __init__(
        self, value: Any, path: str, kind: Kind, owner: Any, complete: bool, known: frozenset[str] | None
    ) -> None:
        self.value, self.path, self.kind, self.owner, self.known = value, path, kind, owner, known
        self.size = len(value) if isinstance(value, CONTAINERS) else 0
        self.complete = complete or self.size <= LONG
        self.keys, self.values = kind.read(value, self.complete)
        self.children: list[tuple[int, State]] = []
        """The states of the parts that are followed, with their positions among the values."""
        self.attributes: State | None = None

    def difference(self, current: Any) -> str | None:
        """Return the name of what differs now; None if nothing does."""
        if current is not self.value and type(current) is not type(self.value):
            return self.path
        if isinstance(current, CONTAINERS) and len(current) != self.size and not self.kind.has_names:
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
        for position, child in self.children:
            if (path := child.difference(values[position])) is not None:
                return path
        return self.attributes.difference(vars(current)) if self.attributes is not None else None

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


def attribute_name(path: str, key: Any) -> str:
    """Return the path of an attribute; the key of a part of a function is a pair of its place and its name."""
    name = key[1] if isinstance(key, tuple) else key
    return f"{path}.{name}" if path and name else path or str(name)


def item_name(path: str, key: Any) -> str:
    """Return the path of an item, without position or key: either may reveal a record, such as the count of a label."""
    return f"{path}[...]"


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


@functools.lru_cache(4096)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that may be globals, in code and in the functions that it defines."""
    inner = [_globals_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *(name for names in inner for name in names))))


# -- the kinds: how parts are read and written ---------------------------------------------------


def _items(value: Any, complete: bool) -> list[Any]:
    return list(value) if complete else [*islice(value, ENDS), *islice(reversed(value), ENDS)]


def _read_sequence(value: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    return [], _items(value, complete)


def _write_sequence(value: Any, parts: dict[Any, Any]) -> None:
    if isinstance(value, array.array):
        value[:] = array.array(value.typecode, parts.values())
    elif isinstance(value, list | bytearray):
        value[:] = parts.values()
    elif isinstance(value, collections.deque):
        value.clear()
        value.extend(parts.values())


def _read_object_array(value: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    """Read all items of an array of Python objects, whose length is not compared like that of a container."""
    return [], value.reshape(-1).tolist()


def _write_object_array(value: Any, parts: dict[Any, Any]) -> None:
    for position, part in parts.items():
        value.flat[position] = part


def _read_dict(value: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    if complete:
        return list(value), list(value.values())
    keys = _items(value, complete)
    return keys, [value[key] for key in keys]


def _write_dict(value: Any, parts: dict[Any, Any]) -> None:
    value.clear()
    value.update(parts)


def _read_set(value: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    return list(value) if complete else [], []


def _write_set(value: Any, parts: dict[Any, Any]) -> None:
    if isinstance(value, set):
        value.clear()
        value.update(parts)


def _read_object(value: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    """Read the attributes of an object, including those in slots."""
    attributes = getattr(value, "__dict__", {})
    cls: Any = type(value)
    slots = _slots(cls)
    if not slots:
        return list(attributes), list(attributes.values())
    parts = dict(attributes)
    for name, slot in slots.items():
        with suppress(AttributeError):
            parts[name] = slot.__get__(value)
    return list(parts), list(parts.values())


def _write_object(value: Any, parts: dict[Any, Any]) -> None:
    cls: Any = type(value)
    slots = _slots(cls)
    for name, slot in slots.items():
        with suppress(AttributeError):
            slot.__set__(value, parts[name]) if name in parts else slot.__delete__(value)
    if hasattr(value, "__dict__"):
        _write_attributes(vars(value), {name: part for name, part in parts.items() if name not in slots})


def _write_attributes(attributes: dict[str, Any], parts: Mapping[str, Any]) -> None:
    for name in [name for name in attributes if name not in parts and name not in HOOKS]:
        del attributes[name]
    attributes.update((name, part) for name, part in parts.items() if name not in HOOKS)


@functools.lru_cache(4096)
def _slots(cls: type) -> dict[str, Any]:
    members = [item for base in reversed(cls.__mro__) for item in vars(base).items()]
    return {name: slot for name, slot in members if isinstance(slot, types.MemberDescriptorType)}


def _read_script(module: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    parts = dict(module.named_parameters()) | dict(module.named_buffers())
    return list(parts), list(parts.values())


def _read_function(function: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    """Read closure, defaults and attributes of a function; a key is a pair of the place of a part and its name."""
    code = function.__code__
    attributes = dict(vars(function))
    parts: dict[Any, Any] = {("code", "__code__"): code}
    if "__wrapped__" in attributes:
        # the first part, so that the state of a decorated function has the same name as without the decorator
        parts["wrapped", ""] = attributes.pop("__wrapped__")
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # the variable has no value yet
            parts["cell", name] = cell.cell_contents
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    parts |= {("default", name): part for name, part in zip(arguments[-len(defaults) :], defaults, strict=False)}
    parts |= {("keyword", name): part for name, part in (function.__kwdefaults__ or {}).items()}
    parts |= {("attribute", name): part for name, part in attributes.items()}
    return list(parts), list(parts.values())


def _read_function_and_globals(function: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    keys, values = _read_function(function, complete)
    for name in _globals_of(function.__code__):
        part = function.__globals__.get(name)
        if part is not None and not isinstance(part, types.ModuleType | type):
            keys.append(("global", name))
            values.append(part)
    return keys, values


def _write_function(function: Any, parts: dict[Any, Any]) -> None:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        if ("cell", name) in parts:
            cell.cell_contents = parts["cell", name]
    if function.__defaults__:
        function.__defaults__ = tuple(part for (place, _), part in parts.items() if place == "default")
    if function.__kwdefaults__:
        function.__kwdefaults__ = {name: part for (place, name), part in parts.items() if place == "keyword"}
    attributes = {name: part for (place, name), part in parts.items() if place == "attribute"}
    if ("wrapped", "") in parts:
        attributes["__wrapped__"] = parts["wrapped", ""]
    _write_attributes(vars(function), attributes)
    function.__globals__.update((name, part) for (place, name), part in parts.items() if place == "global")


def _read_partial(value: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    keys = ["", *(f"argument {position + 1}" for position in range(len(value.args))), *value.keywords, *vars(value)]
    return keys, [value.func, *value.args, *value.keywords.values(), *vars(value).values()]


def _read_method(value: Any, complete: bool) -> tuple[list[Any], list[Any]]:
    return ["", ""], [value.__self__, value.__func__]


def _write_nothing(value: Any, parts: dict[Any, Any]) -> None:
    """Leave an immutable container as it is."""


SEQUENCE = Kind(_read_sequence, _write_sequence, item_name)
DICT = Kind(_read_dict, _write_dict, item_name)
SET = Kind(_read_set, _write_set, item_name)
OBJECT_ARRAY = Kind(_read_object_array, _write_object_array, item_name)
OBJECT = Kind(_read_object, _write_object, attribute_name)
MODULE = Kind(_read_object, _write_object, attribute_name)
SCRIPT = Kind(_read_script, _write_nothing, attribute_name)
NAMESPACE = Kind(_read_dict, _write_dict, attribute_name)
FUNCTION = Kind(_read_function, _write_function, attribute_name)
LOSS_FUNCTION = Kind(_read_function_and_globals, _write_function, attribute_name)
PARTIAL = Kind(_read_partial, _write_nothing, attribute_name)
METHOD = Kind(_read_method, _write_nothing, attribute_name)

_KINDS: tuple[tuple[tuple[type, ...], Kind], ...] = (
    ((torch.jit.ScriptModule,), SCRIPT),
    ((nn.Module,), MODULE),
    ((dict,), DICT),
    ((set, frozenset), SET),
    ((list, tuple, collections.deque, bytearray, array.array), SEQUENCE),
    ((np.ndarray,), OBJECT_ARRAY),
    ((types.FunctionType,), FUNCTION),
    ((types.MethodType,), METHOD),
    ((functools.partial,), PARTIAL),
)


@functools.lru_cache(4096)
def kind_of(cls: Any) -> Kind | None:
    """Return how the instances of a class are followed; None if they are not."""
    for classes, kind in _KINDS:
        if issubclass(cls, classes):
            return kind
    from_library = is_library(cls) or (is_library(cls, "gnomon") and not _is_callable(cls))
    if from_library or issubclass(cls, type | types.ModuleType | Enum | Dataset):
        return None
    return OBJECT if _slots(cls) or any("__dict__" in vars(base) for base in cls.__mro__) else None


def _is_callable(cls: type) -> bool:
    return any("__call__" in vars(base) for base in cls.__mro__)


def is_library(definition: Any, *packages: str) -> bool:
    """Return whether a class or function is defined by Python, torch or NumPy, or by one of the given packages."""
    root = str(getattr(definition, "__module__", None)).partition(".")[0]
    return root in packages if packages else root in _LIBRARIES
