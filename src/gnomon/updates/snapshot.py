"""What a model and a loss keep from one call to the next: noted before records are seen, compared, put back.

State is found by walking attributes from the model and the loss: parameters and buffers, plain tensors, NumPy arrays,
numbers and strings, containers, objects, and of functions their closures, defaults and, for a loss, the globals that
their code names. Not seen: the inside of C objects (files, generators, `functools.lru_cache`), class attributes and
globals of the model's own code, torch's hooks, and whatever lies deeper than `DEPTH` attributes below a module.
"""

from __future__ import annotations

import array
import collections
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import islice
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

SMALL = 2**14
"""Tensors and arrays up to this size are copied and compared by value every time: `.data` writes without a sign."""

EVERY = 2**21
"""Up to this many numbers in large tensors are read every time; beyond it they are read at random times."""

RARELY = 1 / 16
"""How often large tensors are read at least, however many numbers there are."""

LONG = 2**12
"""Containers with more items are compared by their length and both ends, and as a whole when large tensors are."""

ENDS = 64
"""How many items make an end."""

DEPTH = 8
"""How many attributes and items below a module, or below the loss, are followed."""

MOST = 2**14
"""How many objects are followed at most."""

_CHUNK = 64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HOOKS = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, type, range})
_LIBRARIES = (sys.stdlib_module_names | {"torch", "numpy"}) - {
    "argparse", "collections", "functools", "queue", "types", "weakref",
}  # fmt: skip
_secret = random.SystemRandom()


class Snapshot:
    """The state of several objects by name, of which "" is the model.

    `note` before records are seen, `changed` before anything is released: it names what differs, and quotes no value.
    What is written and holds the same afterwards has not changed, except for parameters, which nobody may write to.

    Small tensors are compared by value. Large ones are compared by identity, address and torch's count of writes, and
    by a checksum of their contents the first time, when `note(contents=True)` asks for it, and at times that nobody
    can foresee: always while there are at most `EVERY` numbers in them, else less often, but not below `RARELY`.
    With `copies` large parameters are copied as well, so that they can be put back; buffers always are.

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
        """Whether something was noted and since then neither found unchanged nor put back."""
        self._nodes: list[tuple[Any, _Node]] = []
        self._large: list[_Leaf] = []

    def note(self, contents: bool | None = None) -> None:
        """Take everything as it is now; with `contents` the contents of large tensors for certain, or not at all."""
        if contents is None:
            contents = not self._nodes or _secret.random() < self._probability()
        walk = _Walk(contents, self._copies, {id(leaf.value): leaf for leaf in self._large}, self._known)
        for name, root in self.roots.items():
            walk.start(root, name, globals_too=bool(name))
        self._nodes, self._large, self.pending = walk.nodes, walk.large, True

    def later(self) -> Snapshot:
        """The same objects as they are now, after they saw records.

        An attribute that is new since then is named only if its name stands in the code: it may be made from a record.
        """
        later = Snapshot(self.roots, copies=self._copies)
        later._known = frozenset(name for _, node in self._nodes for name in _names_in(node))
        later.note(contents=True)
        return later

    def changed(self) -> str | None:
        """The name of something that differs now, None if nothing does."""
        for value, node in self._nodes:
            path = node.differs(value)
            if path is not None:
                return path or type(value).__name__
        self.pending = False
        return None

    def verify_contents(self) -> str | None:
        """The name of a large tensor or array that was written behind torch's back since its contents were last read.

        Those that torch saw written in the meantime are left out: what an optimizer moved is not to be compared.

        >>> model = nn.Linear(200, 100)
        >>> snapshot = Snapshot({"": model})
        >>> snapshot.note()
        >>> _ = model.weight.data.mul_(2)  # does not count as a write
        >>> snapshot.verify_contents()
        'weight'
        """
        for leaf in self._large:
            if leaf.sums is not None and not leaf.written(leaf.value) and leaf.sums != _sums(leaf.value):
                return leaf.path
        return None

    @torch.no_grad()
    def restore(self) -> None:
        """Put back what was noted: attributes, items and numbers, and the contents of all that was copied."""
        for _, node in self._nodes:
            node.restore()
        self.pending = False

    def _probability(self) -> float:
        return max(RARELY, EVERY / max(1, sum(leaf.size for leaf in self._large)))


@contextmanager
def untouched(model: nn.Module, parameters: bool = False, loss: Any = None) -> Iterator[Snapshot]:
    """Run a model, and put everything back: state, training modes, the random state, and all parameters if asked.

    With a `loss` the same is true of what it keeps.

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


# -- tensors and arrays --------------------------------------------------------------------------


class _Leaf:
    """A tensor or an array: where it is, how often torch saw it written, and what it held."""

    __slots__ = ("address", "attributes", "fresh", "held", "path", "size", "sums", "value", "version")

    def __init__(self, value: Any, path: str, *, contents: bool, copy: bool, old: _Leaf | None) -> None:
        self.value, self.path = value, path
        self.attributes: _Node | None = None
        self.held: Any = None
        self.sums: tuple[int, int, bytes] | None = None
        self.fresh = False
        self.version, self.address, self.size = _version(value), _address(value), _size(value)
        if self.address is None:  # sparse, nested or wrapped: nothing more can be read
            return
        if self.size <= SMALL:
            self.held = _copy(value)
            return
        same = old if old is not None and not old.written(value) else None
        self.fresh = contents
        self.sums = _sums(value) if contents else same.sums if same is not None else None
        if copy:
            usable = same is not None and same.held is not None and (not contents or same.sums == self.sums)
            self.held = same.held if usable and same is not None else _copy(value)

    def written(self, now: Any) -> bool:
        """Whether this is another object, lies elsewhere, or was written as far as torch knows."""
        return now is not self.value or _version(now) != self.version or _address(now) != self.address

    def differs(self, now: Any) -> str | None:
        if self._other(now):
            return self.path
        if self.attributes is not None:
            return self.attributes.differs(vars(now))
        return _attribute(self.path, "*") if isinstance(now, Tensor) and vars(now) else None

    def _other(self, now: Any) -> bool:
        written = self.written(now)
        if written and (isinstance(self.value, nn.Parameter) or type(now) is not type(self.value)):
            return True
        if self.held is not None and (written or self.size <= SMALL):
            return not _same(self.held, now)
        if written:
            return now is self.value or self.written(self.value) or not _same(self.value, now)
        return self.fresh and self.sums != _sums(now)

    def restore(self) -> None:
        if self.attributes is not None:
            self.attributes.restore()
        elif isinstance(self.value, Tensor):
            vars(self.value).clear()
        if self.held is None or _same(self.held, self.value):
            return
        with suppress(RuntimeError, ValueError):  # restore what can be restored: a frozen array cannot
            if isinstance(self.value, Tensor):
                if self.value.shape == self.held.shape:
                    self.value.copy_(self.held)
                else:
                    self.value.data = self.held.clone()
            else:
                self.value[...] = self.held


def _version(value: Any) -> int:
    return -1 if not isinstance(value, Tensor) or value.is_inference() else value._version


def _address(value: Any) -> int | None:
    """Where the contents are; None if they cannot be read."""
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


def _same(one: Any, other: Any) -> bool:
    """Whether two tensors or arrays hold the same bits, so that NaN equals itself and -0.0 is not 0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not isinstance(one, Tensor):
        return bool(one.tobytes() == other.tobytes())
    if not isinstance(other, Tensor) or one.device != other.device:
        return False
    if _address(one) is None or _address(other) is None:
        return one is other
    return torch.equal(_bits(one), _bits(other))


def _bits(value: Tensor) -> Tensor:
    value = value.detach()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return value.resolve_neg().view(_INTEGERS[value.element_size()])


def _sums(value: Any) -> tuple[int, int, bytes]:
    """A checksum of a large tensor or array, in one pass at the speed of memory.

    Words of 64 bits are added in chunks, and the chunks once more weighed by their positions: any single change shows,
    and so does a change of order beyond a chunk.
    """
    flat = _bytes(value)
    whole = flat.numel() // (8 * _CHUNK) * (8 * _CHUNK)
    chunks = flat[:whole].view(torch.int64).view(-1, _CHUNK).sum(1)
    weighed = chunks * torch.arange(1, len(chunks) + 1, device=chunks.device)
    return int(chunks.sum()), int(weighed.sum()), bytes(flat[whole:].tolist())


def _bytes(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        flat = flat if flat.flags.writeable else flat.copy()  # torch warns of arrays that it could write to
        return torch.from_numpy(flat)
    bits = _bits(value).contiguous().view(-1)
    if bits.storage_offset() * bits.element_size() % 8:
        bits = bits.clone()
    return bits.view(torch.uint8)


# -- what holds others ---------------------------------------------------------------------------


class _Kind(NamedTuple):
    """How the parts of a container are read, named and put back."""

    read: Callable[[Any, bool], tuple[list[Any], list[Any]]]
    write: Callable[[Any, dict[Any, Any]], None]
    label: Callable[[str, Any], str]


class _Branch:
    """A container, an object or a function, and its parts as they were."""

    __slots__ = ("attributes", "children", "keys", "kind", "known", "owner", "path", "size", "value", "values", "whole")

    def __init__(
        self, value: Any, path: str, kind: _Kind, owner: Any, whole: bool, known: frozenset[str] | None
    ) -> None:
        self.value, self.path, self.kind, self.owner, self.known = value, path, kind, owner, known
        self.size = len(value) if isinstance(value, _CONTAINERS) else 0
        self.whole = whole or self.size <= LONG
        self.keys, self.values = kind.read(value, self.whole)
        self.children: list[tuple[int, _Node]] = []
        self.attributes: _Node | None = None

    def differs(self, now: Any) -> str | None:
        if now is not self.value and type(now) is not type(self.value):
            return self.path
        if isinstance(now, _CONTAINERS) and len(now) != self.size and not _named(self.kind):
            return self.path
        keys, values = self.kind.read(now, self.whole)
        if not _equal(keys, self.keys):
            by_key = dict(zip(keys, values, strict=False))
            if by_key.keys() != set(self.keys) or len(keys) != len(self.keys):
                return self._unlike(by_key)
            values = [by_key[key] for key in self.keys] if values else []
        if not all(map(is_, values, self.values)):
            followed = {place for place, _ in self.children}
            for place, (now_there, held) in enumerate(zip(values, self.values, strict=True)):
                if now_there is not held and place not in followed and not _alike(held, now_there):
                    key = self.keys[place] if self.keys else place
                    if not (self.kind is _MODULE and key in _HOOKS):
                        return self.named(key)
        for place, child in self.children:
            if (path := child.differs(values[place])) is not None:
                return path
        return self.attributes.differs(vars(now)) if self.attributes is not None else None

    def _unlike(self, now: Mapping[Any, Any]) -> str:
        """What is gone or new, by a name that may be told if there is one."""
        if not _named(self.kind):
            return self.kind.label(self.path, None)
        gone = [self.named(key) for key in self.keys if key not in now]
        new = [self.named(key, frozenset()) for key in now if key not in set(self.keys)]
        hidden = self.kind.label(self.path, "*")
        return next((name for name in new + gone if name != hidden), hidden)

    def named(self, key: Any, known: frozenset[str] | None = None) -> str:
        """The name of a part. One that was not known before records were seen is told only if it stands in the code."""
        known = self.known if known is None else known
        name = key[1] if isinstance(key, tuple) else key
        hidden = _named(self.kind) and known is not None and name not in known
        if isinstance(key, tuple):  # a part of a function: all names but those of attributes stand in its code
            hidden = hidden and key[0] == "attribute"
        return self.kind.label(self.path, "*" if hidden and not _in_code(self.owner, name) else key)

    def restore(self) -> None:
        with suppress(Exception):  # restore what can be restored: a container of the user's own may refuse
            keys, values = self.kind.read(self.value, self.whole)
            here = len(values) == len(self.values) and all(map(is_, values, self.values))
            if self.whole and not (here and _equal(keys, self.keys)):
                pairs = zip(self.keys, self.values or self.keys, strict=True) if self.keys else enumerate(self.values)
                self.kind.write(self.value, dict(pairs))
        for _, child in self.children:
            child.restore()
        if self.attributes is not None:
            self.attributes.restore()


_Node: TypeAlias = _Leaf | _Branch


def _named(kind: _Kind) -> bool:
    return kind.label is _attribute


def _names_in(node: _Node) -> Iterator[str]:
    """The names of all attributes at and below a node."""
    if isinstance(node, _Branch):
        if _named(node.kind):
            yield from (key[1] if isinstance(key, tuple) else key for key in node.keys)
        for _, child in node.children:
            yield from _names_in(child)
    if node.attributes is not None:
        yield from _names_in(node.attributes)


def _equal(one: list[Any], other: list[Any]) -> bool:
    try:
        return len(one) == len(other) and bool(one == other)
    except Exception:  # keys that cannot be compared are others unless they are the same objects
        return False


def _alike(held: Any, now: Any) -> bool:
    """Whether a value that is not followed any further was replaced by its like."""
    if type(held) is not type(now):
        return False
    if isinstance(held, Tensor | np.ndarray):
        return _same(held, now)
    if isinstance(held, np.generic):
        return held.tobytes() == now.tobytes()
    if isinstance(held, float):
        return float(held).hex() == float(now).hex()  # NaN equals itself, and -0.0 is not 0.0
    try:
        return bool(held == now)
    except Exception:
        return False


def _in_code(owner: Any, name: Any) -> bool:
    """Whether the methods of an object's class, or functions among its attributes, spell a name out."""
    holders = [vars(cls) for cls in type(owner).__mro__] + [getattr(owner, "__dict__", {})]
    functions = [part for held in holders for part in held.values() if isinstance(part, types.FunctionType)]
    return any(name in _spelled(function.__code__) for function in functions)


@functools.lru_cache(4096)
def _spelled(code: types.CodeType) -> frozenset[str]:
    """The names and strings in code and in the functions inside it."""
    inner = [_spelled(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    strings = [constant for constant in code.co_consts if isinstance(constant, str)]
    return frozenset(code.co_names).union(strings, *inner)


@functools.lru_cache(4096)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    inner = [_globals_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *(name for names in inner for name in names))))


def _attribute(path: str, key: Any) -> str:
    name = key[1] if isinstance(key, tuple) else key
    return f"{path}.{name}" if path and name else path or str(name)


def _item(path: str, key: Any) -> str:
    return f"{path}[...]"  # neither position nor key: either may be read off a record, as the count of a label is


def _ends(value: Any, whole: bool) -> list[Any]:
    return list(value) if whole else [*islice(value, ENDS), *islice(reversed(value), ENDS)]


def _read_sequence(value: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    return [], _ends(value, whole)


def _write_sequence(value: Any, parts: dict[Any, Any]) -> None:
    if isinstance(value, array.array):
        value[:] = array.array(value.typecode, parts.values())
    elif isinstance(value, list | bytearray):
        value[:] = parts.values()
    elif isinstance(value, collections.deque):
        value.clear()
        value.extend(parts.values())


def _read_objects(value: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    """An array of Python objects; its length is not that of a container, so that its items are all read."""
    return [], value.reshape(-1).tolist()


def _write_objects(value: Any, parts: dict[Any, Any]) -> None:
    for place, part in parts.items():
        value.flat[place] = part


def _read_dict(value: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    if whole:
        return list(value), list(value.values())
    keys = _ends(value, whole)
    return keys, [value[key] for key in keys]


def _write_dict(value: Any, parts: dict[Any, Any]) -> None:
    value.clear()
    value.update(parts)


def _read_set(value: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    return list(value) if whole else [], []


def _write_set(value: Any, parts: dict[Any, Any]) -> None:
    if isinstance(value, set):
        value.clear()
        value.update(parts)


def _read_object(value: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    held = getattr(value, "__dict__", {})
    cls: Any = type(value)
    slots = _slots(cls)
    if not slots:
        return list(held), list(held.values())
    parts = dict(held)
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


def _write_attributes(held: dict[str, Any], parts: Mapping[str, Any]) -> None:
    for name in [name for name in held if name not in parts and name not in _HOOKS]:
        del held[name]
    held.update((name, part) for name, part in parts.items() if name not in _HOOKS)


@functools.lru_cache(4096)
def _slots(kind: type) -> dict[str, Any]:
    members = [item for cls in reversed(kind.__mro__) for item in vars(cls).items()]
    return {name: slot for name, slot in members if isinstance(slot, types.MemberDescriptorType)}


def _read_script(module: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    parts = dict(module.named_parameters()) | dict(module.named_buffers())
    return list(parts), list(parts.values())


def _read_function(function: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    """Closure, defaults, attributes; keys are pairs of where a part is and its name."""
    code = function.__code__
    own = dict(vars(function))
    parts: dict[Any, Any] = {("code", "__code__"): code}
    if "__wrapped__" in own:  # first, so that what a decorated function keeps has the name that it has in itself
        parts["wrapped", ""] = own.pop("__wrapped__")
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # not filled yet
            parts["cell", name] = cell.cell_contents
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    parts |= {("default", name): part for name, part in zip(arguments[-len(defaults) :], defaults, strict=False)}
    parts |= {("keyword", name): part for name, part in (function.__kwdefaults__ or {}).items()}
    parts |= {("attribute", name): part for name, part in own.items()}
    return list(parts), list(parts.values())


def _read_function_and_globals(function: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    keys, values = _read_function(function, whole)
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
    own = {name: part for (place, name), part in parts.items() if place == "attribute"}
    if ("wrapped", "") in parts:
        own["__wrapped__"] = parts["wrapped", ""]
    _write_attributes(vars(function), own)
    function.__globals__.update((name, part) for (place, name), part in parts.items() if place == "global")


def _read_partial(value: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    keys = ["", *(f"argument {place + 1}" for place in range(len(value.args))), *value.keywords, *vars(value)]
    return keys, [value.func, *value.args, *value.keywords.values(), *vars(value).values()]


def _read_method(value: Any, whole: bool) -> tuple[list[Any], list[Any]]:
    return ["", ""], [value.__self__, value.__func__]


def _leave(value: Any, parts: dict[Any, Any]) -> None:
    """Nothing to put back in what cannot be changed."""


_SEQUENCE = _Kind(_read_sequence, _write_sequence, _item)
_DICT = _Kind(_read_dict, _write_dict, _item)
_SET = _Kind(_read_set, _write_set, _item)
_OBJECTS = _Kind(_read_objects, _write_objects, _item)
_OBJECT = _Kind(_read_object, _write_object, _attribute)
_MODULE = _Kind(_read_object, _write_object, _attribute)
_SCRIPT = _Kind(_read_script, _leave, _attribute)
_NAMED = _Kind(_read_dict, _write_dict, _attribute)
_FUNCTION = _Kind(_read_function, _write_function, _attribute)
_LOSS_FUNCTION = _Kind(_read_function_and_globals, _write_function, _attribute)
_PARTIAL = _Kind(_read_partial, _leave, _attribute)
_METHOD = _Kind(_read_method, _leave, _attribute)

_CONTAINERS = (list, tuple, collections.deque, dict, set, frozenset, bytearray, array.array)


@functools.lru_cache(4096)
def _kind(cls: Any) -> _Kind | None:
    """How instances of a class are followed; None if they are not."""
    of_containers: list[tuple[tuple[type, ...], _Kind]] = [
        ((torch.jit.ScriptModule,), _SCRIPT),
        ((nn.Module,), _MODULE),
        ((dict,), _DICT),
        ((set, frozenset), _SET),
        ((list, tuple, collections.deque, bytearray, array.array), _SEQUENCE),
        ((np.ndarray,), _OBJECTS),
        ((types.FunctionType,), _FUNCTION),
        ((types.MethodType,), _METHOD),
        ((functools.partial,), _PARTIAL),
    ]
    for classes, kind in of_containers:
        if issubclass(cls, classes):
            return kind
    library = _library(cls) or (_library(cls, "gnomon") and not _calls(cls))
    if library or issubclass(cls, type | types.ModuleType | Enum | Dataset):
        return None
    return _OBJECT if _slots(cls) or any("__dict__" in vars(base) for base in cls.__mro__) else None


def _calls(cls: type) -> bool:
    return any("__call__" in vars(base) for base in cls.__mro__)


def _library(thing: Any, *names: str) -> bool:
    """Whether a class or a function is Python's, torch's or NumPy's, or one of the given packages'."""
    root = str(getattr(thing, "__module__", None)).partition(".")[0]
    return root in names if names else root in _LIBRARIES


class _Walk:
    """One walk from the roots to everything that is followed."""

    def __init__(self, contents: bool, copies: bool, old: dict[int, _Leaf], known: frozenset[str] | None) -> None:
        self.nodes: list[tuple[Any, _Node]] = []
        self.large: list[_Leaf] = []
        self._contents, self._copies, self._old, self._known = contents, copies, old, known
        self._seen: set[int] = set()
        self._globals = False

    def start(self, root: Any, name: str, globals_too: bool) -> None:
        self._globals = globals_too
        node = self._follow(root, name, 0)
        if node is not None:
            self.nodes.append((root, node))

    def _follow(self, value: Any, path: str, depth: int, buffer: bool = False) -> _Node | None:
        """The node of a value; None if it is compared by identity and equality alone."""
        cls: Any = type(value)
        if cls in _ATOMS or id(value) in self._seen or (cls is tuple and _ATOMS.issuperset(map(type, value))):
            return None
        if isinstance(value, Tensor):
            return self._leaf(value, path, depth, buffer)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return self._leaf(value, path, depth, buffer)
        kind = _kind(cls)
        if kind is None or depth > DEPTH or len(self._seen) > MOST:
            return None
        if kind is _FUNCTION:
            if _library(value):
                return None
            kind = _LOSS_FUNCTION if self._globals and not _library(value, "gnomon") else kind
        self._seen.add(id(value))
        return self._module(value, path) if kind is _MODULE else self._branch(value, path, kind, depth)

    def _leaf(self, value: Any, path: str, depth: int, buffer: bool) -> _Leaf:
        self._seen.add(id(value))
        leaf = _Leaf(
            value, path, contents=self._contents, copy=self._copies or buffer, old=self._old.get(id(value))
        )  # fmt: skip
        if leaf.size > SMALL and leaf.address is not None:
            self.large.append(leaf)
        if isinstance(value, Tensor) and vars(value):
            leaf.attributes = self._branch(vars(value), path, _NAMED, depth)
        return leaf

    def _module(self, module: nn.Module, path: str) -> _Branch:
        """A module's attributes, and its parameters, buffers and parts as if they were attributes, too."""
        branch = _Branch(module, path, _MODULE, module, self._contents, self._known)
        for place, (name, part) in enumerate(zip(branch.keys, branch.values, strict=True)):
            if name in _HOOKS or type(part) in _ATOMS:
                continue
            if name in ("_parameters", "_buffers", "_modules") and isinstance(part, dict):
                child: _Node | None = self._branch(part, path, _NAMED, 0, module, buffer=name == "_buffers")
            else:
                child = self._follow(part, branch.named(name), 1)
            if child is not None:
                branch.children.append((place, child))
        self._code(type(module), path)
        return branch

    def _branch(
        self, value: Any, path: str, kind: _Kind, depth: int, owner: Any = None, buffer: bool = False
    ) -> _Branch:
        branch = _Branch(value, path, kind, value if owner is None else owner, self._contents, self._known)
        if not isinstance(value, bytearray | array.array):
            for place, part in enumerate(branch.values):
                if type(part) in _ATOMS or id(part) in self._seen:
                    continue
                key = branch.keys[place] if branch.keys else place
                child = self._follow(part, branch.named(key), depth + 1, buffer)
                if child is not None:
                    branch.children.append((place, child))
        if kind in (_DICT, _SET, _SEQUENCE) and hasattr(value, "__dict__"):
            branch.attributes = self._branch(vars(value), path, _NAMED, depth)
        if kind is _OBJECT:
            self._code(type(value), path)
        return branch

    def _code(self, cls: type, path: str) -> None:
        """The methods of a class of the loss: their defaults, closures and globals."""
        if not self._globals or id(cls) in self._seen or _library(cls) or _library(cls, "gnomon"):
            return
        self._seen.add(id(cls))
        for base in cls.__mro__:
            for function in vars(base).values() if not _library(base) else ():
                if isinstance(function, types.FunctionType):
                    node = self._follow(function, path, 1)
                    if node is not None:
                        self.nodes.append((function, node))
