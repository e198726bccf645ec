"""The source code behind a user's own model, as a hash by which kept results are found."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from gnomon.errors import SettingError

INSTALLED = ("site-packages", "dist-packages")
LOADED = "gnomon_code"
"""The attribute of a module's spec with the hash of its code when it was first used; a reload makes a new spec."""


def is_custom(model: str | None) -> bool:
    """Whether a model is the user's own code rather than one that comes with Gnomon.

    >>> is_custom("my_models:Net"), is_custom("cnn"), is_custom("gnomon.models.dense:logistic"), is_custom(None)
    (True, False, False, False)
    """
    return model is not None and ":" in model and model.partition(":")[0].partition(".")[0] != "gnomon"


def code_hash(model: str) -> str:
    """Return a hash of the module that defines a model and of the modules beside it that it imports.

    Modules beside it are those of its package, and others in the folder that holds the package or the module itself.
    They are found by their `import` statements, directly and through each other. Installed packages and files that
    the code reads do not count.

    Args:
        model: The name of a model, "package.module:Class".

    Raises:
        SettingError: The module has no file, or its code changed since this process imported it.

    >>> len(code_hash("json.decoder:JSONDecoder"))
    64
    """
    place = model.partition(":")[0]
    spec = _spec(place)
    if spec is None or spec.origin is None:
        allowed = (
            "a module with a file of its own that can be imported: results are kept by its code; is it on PYTHONPATH?"
        )
        raise SettingError("model", model, allowed)
    found = hashlib.sha256()
    for name, path in sorted(_files(place, spec).items()):
        content = path.read_bytes()
        found.update(f"{name} {len(content)}\n".encode() + content)
    now = found.hexdigest()
    loaded = sys.modules.get(place)
    if loaded is not None and getattr(loaded.__spec__, LOADED, now) != now:
        allowed = "code that is as this process imported it; it was changed meanwhile, so start again"
        raise SettingError("model", model, allowed)
    return now


def note_code(module: ModuleType, model: str) -> None:
    """Remember the code that a module was imported from, so that a later change of its files is noticed."""
    if is_custom(model) and module.__spec__ is not None and not hasattr(module.__spec__, LOADED):
        setattr(module.__spec__, LOADED, code_hash(model))


def _files(place: str, spec: ModuleSpec) -> dict[str, Path]:
    """The files of a module and of the modules beside it that it imports, by name."""
    above = place.count(".") + (spec.submodule_search_locations is not None)
    folder = Path(spec.origin or "").resolve().parents[above]
    found: dict[str, Path] = {}
    waiting = list(_with_parents(place))
    while waiting:
        name = waiting.pop()
        here = None if name in found else _spec(name)
        if here is None or here.origin is None or not here.has_location:
            continue
        path = Path(here.origin).resolve()
        if name != place and not _beside(name, path, folder):
            continue
        found[name] = path
        if path.suffix == ".py":
            waiting += _imported(path, name if here.submodule_search_locations is not None else name.rpartition(".")[0])
    return found


def _beside(name: str, path: Path, folder: Path) -> bool:
    """Whether a module is the user's own code, in the folder that holds the module or package of the model."""
    top = name.partition(".")[0]
    if top == "gnomon" or top in sys.stdlib_module_names:
        return False
    return path.is_relative_to(folder) and not any(part in INSTALLED for part in path.parts)


def _imported(path: Path, package: str) -> Iterator[str]:
    """The names that a file's import statements could mean; some are not modules."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing it says what is wrong
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
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is, without running it; packages above it are imported."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
