"""A user's own model, named "package.module:Class"."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from gnomon.errors import SettingError
from gnomon.models.code import note_code


def custom(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Import and call the class or function that `name` points to.

    It is called with `input_shape` and `classes`, as far as its signature takes them.

    >>> custom("gnomon.models.dense:logistic", (4,), 3)[-1]
    Linear(in_features=4, out_features=3, bias=True)
    """
    make = _find(name)
    offered = {"input_shape": input_shape, "classes": classes}
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # some built-ins have no signature
        parameters = inspect.Signature().parameters.values()
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional and p.name not in offered]
    if needed:
        allowed = f"a class that needs no argument but input_shape and classes; this one needs {', '.join(needed)}"
        raise SettingError("model", name, allowed)
    given = {key: value for key, value in offered.items() if every or key in named}
    try:
        model = make(**given)
    except Exception as error:
        called = ", ".join(f"{key}={value}" for key, value in given.items())
        first = (str(error).splitlines() or [""])[0]
        allowed = f"a class that can be made: {name}({called}) raised {type(error).__name__}: {first}"
        raise SettingError("model", name, allowed) from error
    if not isinstance(model, nn.Module):
        raise SettingError("model", name, f"a class that makes a torch.nn.Module, not {type(model).__name__}")
    return model


def _find(name: str) -> Callable[..., Any]:
    place, _, attribute = name.partition(":")
    if not place or not attribute:
        raise SettingError("model", name, "package.module:Class")
    try:
        module = importlib.import_module(place)
    except ImportError as error:
        allowed = f"a module that can be imported ({error}); is its folder on PYTHONPATH?"
        raise SettingError("model", name, allowed) from error
    note_code(module, name)
    found = getattr(module, attribute, None)
    if found is None:
        raise SettingError("model", name, f"a name that {place} defines; it has no {attribute!r}")
    if not callable(found):
        raise SettingError("model", name, f"a class or a function, not {type(found).__name__}")
    made: Callable[..., Any] = found
    return made
