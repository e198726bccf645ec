"""The kinds of containers, objects and functions that a model or a loss keeps: how their parts are read and written."""

from __future__ import annotations

import array
import collections
import functools
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

ENDS = 64
"""The number of items at each end of a long container that are compared."""

HOOKS = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
"""Attributes of nn.Module that belong to torch, such as its hooks."""

_LIBRARIES = (sys.stdlib_module_names | {"torch", "numpy"}) - {
    "argparse", "collections", "functools", "queue", "types", "weakref",
}  # fmt: skip


class Kind(NamedTuple):
    """How the parts of one kind of container are read, written and named."""

    read: Callable[[Any, bool], tuple[list[Any], list[Any]]]
    """(container, whether all items or both ends only) -> keys and values; a sequence has no keys."""
    write: Callable[[Any, dict[Any, Any]], None]
    """(container, parts by key) restores the parts."""
    label: Callable[[str, Any], str]
    """(path of the container, key) -> path of the part."""
    parts: Callable[[Any], dict[Any, Any] | None] = lambda value: None
    """(container) -> the dictionary whose items are all its parts, or None if there is none."""

    @property
    def has_names(self) -> bool:
        """Whether parts have attribute names, rather than keys or positions."""
        return self.label is attribute_name


def attribute_name(path: str, key: Any) -> str:
    """Return the path of an attribute; the key of a part of a function is a pair of its place and its name."""
    name = key[1] if isinstance(key, tuple) else key
    return f"{path}.{name}" if path and name else path or str(name)


def item_name(path: str, key: Any) -> str:
    """Return the path of an item, without position or key: either may reveal a record, such as the count of a label."""
    return f"{path}[...]"


@functools.lru_cache(4096)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that may be globals, in code and in the functions that it defines."""
    inner = [_globals_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *(name for names in inner for name in names))))


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


def _itself(value: Any) -> dict[Any, Any]:
    return cast(dict[Any, Any], value)


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


def _attributes(value: Any) -> dict[Any, Any] | None:
    """Return the attributes of an object without slots."""
    cls: Any = type(value)
    return None if _slots(cls) else getattr(value, "__dict__", None)


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
DICT = Kind(_read_dict, _write_dict, item_name, _itself)
SET = Kind(_read_set, _write_set, item_name)
OBJECT_ARRAY = Kind(_read_object_array, _write_object_array, item_name)
OBJECT = Kind(_read_object, _write_object, attribute_name, _attributes)
MODULE = Kind(_read_object, _write_object, attribute_name, _attributes)
SCRIPT = Kind(_read_script, _write_nothing, attribute_name)
NAMESPACE = Kind(_read_dict, _write_dict, attribute_name, _itself)
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
