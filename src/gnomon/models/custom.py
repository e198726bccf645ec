"""A user's own model, named "package.module:Class": its construction, and the hash of its source code.

Results of a study are stored under a key that contains the hash, so that a result is never attributed to other code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from gnomon.errors import SettingError

INSTALLED = ("site-packages", "dist-packages")
"""Folder names that mark installed packages, whose code is not hashed."""

LOADED = "gnomon_code"
"""The attribute of a module's spec that stores the hash of its code at first use; a reload creates a new spec."""


def custom(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a model by importing and calling the class or function `name`.

    Args:
        name: "package.module:Class" or "package.module:function".
        input_shape: the shape of one record, passed if the signature has a parameter of that name.
        classes: the number of classes, passed likewise.

    Raises:
        SettingError: the name cannot be imported or called, or what it returns is not a module.

    >>> custom("gnomon.models.networks:logistic", (4,), 3)[-1]
    Linear(in_features=4, out_features=3, bias=True)
    """
    factory = _imported_factory(name)
    available = {"input_shape": input_shape, "classes": classes}
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some built-ins have no signature
        parameters = inspect.Signature().parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind not in variadic and p.name not in available
    ]
    if required:
        names = ", ".join(required)
        expected = f"a class with no required arguments but input_shape and classes; it requires {names}"
        raise SettingError("model", name, expected)
    arguments = {key: value for key, value in available.items() if takes_any or key in named}
    try:
        model = factory(**arguments)
    except Exception as error:
        call = f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"
        reason = (str(error).splitlines() or [""])[0]
        raise SettingError.with_message(
            f"model {name!r} cannot be built: {call} raised {type(error).__name__}: {reason}", name="model", value=name
        ) from error
    if not isinstance(model, nn.Module):
        expected = f"a class or function that returns a torch.nn.Module, not {type(model).__name__}"
        raise SettingError("model", name, expected)
    return model


def _imported_factory(name: str) -> Callable[..., Any]:
    """Import the class or function that builds a model."""
    path, _, attribute = name.partition(":")
    if not path or not attribute:
        raise SettingError("model", name, "a name of the form package.module:Class")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        expected = f"a module that can be imported ({error}); check that its folder is on PYTHONPATH"
        raise SettingError("model", name, expected) from error
    record_code_hash(module, name)
    factory = getattr(module, attribute, None)
    if factory is None:
        raise SettingError("model", name, f"a name that {path} defines; it has no {attribute!r}")
    if not callable(factory):
        raise SettingError("model", name, f"a class or a function, not {type(factory).__name__}")
    result: Callable[..., Any] = factory
    return result


def is_custom(model: str | None) -> bool:
    """Return whether a model name refers to the user's own code rather than to a model of this package.

    >>> is_custom("my_models:Net"), is_custom("cnn"), is_custom("gnomon.models.networks:logistic"), is_custom(None)
    (True, False, False, False)
    """
    return model is not None and ":" in model and model.partition(":")[0].partition(".")[0] != "gnomon"


def code_hash(model: str) -> str:
    """Return a SHA-256 of the module that defines a model and of the local modules that it imports.

    Local modules are those of the same package, and those in the folder that contains the package or the module. They
    are found by following `import` statements. Installed packages, and data files that the code reads, are not hashed.

    Args:
        model: the name of a model, "package.module:Class".

    Raises:
        SettingError: the module has no file, or its code changed since this process imported it.

    >>> len(code_hash("json.decoder:JSONDecoder"))
    64
    """
    module_name = model.partition(":")[0]
    spec = _spec(module_name)
    if spec is None or spec.origin is None:
        expected = (
            "an importable module with a source file, because results are stored under a hash of its code; check that "
            "its folder is on PYTHONPATH"
        )
        raise SettingError("model", model, expected)
    digest = hashlib.sha256()
    for name, path in sorted(_files(module_name, spec).items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    current = digest.hexdigest()
    loaded = sys.modules.get(module_name)
    if loaded is not None and getattr(loaded.__spec__, LOADED, current) != current:
        raise SettingError.with_message(
            f"the code of model {model!r} changed since this process imported it; start the program again",
            name="model",
            value=model,
        )
    return current


def record_code_hash(module: ModuleType, model: str) -> None:
    """Store the hash of the code that a module was imported from, so that `code_hash` detects a later change."""
    if is_custom(model) and module.__spec__ is not None and not hasattr(module.__spec__, LOADED):
        setattr(module.__spec__, LOADED, code_hash(model))


def _files(module_name: str, spec: ModuleSpec) -> dict[str, Path]:
    """Return the files of a module and of the local modules that it imports, by module name."""
    above = module_name.count(".") + (spec.submodule_search_locations is not None)
    folder = Path(spec.origin or "").resolve().parents[above]
    files: dict[str, Path] = {}
    pending = list(_with_parents(module_name))
    while pending:
        name = pending.pop()
        imported = None if name in files else _spec(name)
        if imported is None or imported.origin is None or not imported.has_location:
            continue
        path = Path(imported.origin).resolve()
        if name != module_name and not _is_local(name, path, folder):
            continue
        files[name] = path
        if path.suffix == ".py":
            is_package = imported.submodule_search_locations is not None
            pending += _imported(path, name if is_package else name.rpartition(".")[0])
    return files


def _is_local(name: str, path: Path, folder: Path) -> bool:
    """Return whether a module is the user's own code in the folder that contains the model's module or package."""
    top = name.partition(".")[0]
    if top == "gnomon" or top in sys.stdlib_module_names:
        return False
    return path.is_relative_to(folder) and not any(part in INSTALLED for part in path.parts)


def _imported(path: Path, package: str) -> Iterator[str]:
    """Yield the names that the import statements of a file may refer to; some of them are not modules."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing the file raises the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            base = ".".join(part for part in ((above if node.level else ""), node.module or "") if part)
            if base:
                yield from _with_parents(base)
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _with_parents(name: str) -> Iterator[str]:
    """Yield the names of the packages that contain a module, and its own name."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module without running it; the packages that contain it are imported."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
