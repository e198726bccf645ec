"""The layout of the package: a package imports only from packages that stand above it, and no import is circular.

Imports inside functions and under TYPE_CHECKING count too.
"""

import ast
import itertools
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

ORDER = [
    "version", "errors", "validate", "text", "files", "memory", "randomness", "sampling", "accounting", "data",
    "ledger", "statement", "losses", "updates", "models", "clipping", "constraints", "subspaces", "release", "methods",
    "training", "estimators", "audit", "diagnose", "figures", "runs", "federated", "studies", "report", "cli",
]  # fmt: skip
"""From the foundations upwards in use: each may import from those before it."""


def modules() -> dict[str, Path]:
    """All modules of the package by their dotted names."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a syntax tree imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            longest = (".".join(parts[:size]) for size in range(len(parts), 0, -1))  # the rest is a name in the module
            found |= {next((module for module in longest if module in known), "")} - {""}
    return found


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(ast.parse(path.read_text()), known) for name, path in known.items() if name != "gnomon"}


def room(module: str) -> str:
    return module.split(".")[1]


def upward(graph: dict[str, set[str]]) -> list[str]:
    """Imports of a package that stands below the importing one."""
    place = {name: number for number, name in enumerate(ORDER)}
    return [
        f"{module} imports {used}"
        for module, everything in graph.items()
        for used in sorted(everything)
        if used == "gnomon" or place[room(used)] > place[room(module)]
    ]


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import themselves by way of others; a package's own `__init__` counts as one of the others."""
    left = {module: set(used) - {module} for module, used in graph.items()}
    while done := [module for module, used in left.items() if not used & left.keys()]:
        for module in done:
            del left[module]
    return sorted(left)


def test_every_package_has_its_place(graph):
    assert {room(module) for module in graph} == set(ORDER)


def test_no_package_imports_from_one_below_it(graph):
    assert upward(graph) == []


def test_no_import_is_circular(graph):
    assert circles(graph) == []


def test_the_checks_find_what_they_look_for(graph):
    assert upward({"gnomon.data.split": {"gnomon.cli.main", "gnomon"}}) == [
        "gnomon.data.split imports gnomon",
        "gnomon.data.split imports gnomon.cli.main",
    ]
    ring = ["gnomon.data.a", "gnomon.data.b", "gnomon.data.c"]
    assert circles({one: {other} for one, other in itertools.pairwise([*ring, ring[0]])}) == ring
    hidden = ast.parse("def late():\n    from gnomon.cli import main\n    import gnomon.report.page\n")
    assert imports(hidden, modules()) == {"gnomon.cli.main", "gnomon.report.page"}
