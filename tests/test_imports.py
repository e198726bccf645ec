"""The layout of the package: a package imports only from packages that stand above it, and no import is circular.

Imports inside functions and under TYPE_CHECKING count too. Test modules do not import each other: data, models and
Trainers that several of them use are in `tests/helpers.py` or in a support module beside them.
"""

import ast
import itertools
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
TESTS = Path(__file__).parent

ORDER = [
    "version", "errors", "validate", "text", "files", "memory", "randomness", "sampling", "accounting", "data",
    "ledger", "statement", "losses", "updates", "models", "features", "clipping", "constraints", "subspaces", "release",
    "methods", "training", "recipes", "estimators", "audit", "diagnose", "figures", "runs", "federated", "studies",
    "report", "cli",
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


def imported_test_modules(tree: ast.AST) -> set[str]:
    """Return the test modules that a syntax tree imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return {
        name
        for name in names
        if name.startswith(("tests", ".")) and any(part.startswith("test_") for part in name.split("."))
    }


def test_no_test_module_is_imported_by_another():
    found = {
        str(path.relative_to(TESTS)): modules
        for path in sorted(TESTS.rglob("*.py"))
        if (modules := imported_test_modules(ast.parse(path.read_text())))
    }
    assert found == {}, "move what both use to tests/helpers.py or to a support module"


def test_the_checks_find_what_they_look_for(graph):
    assert upward({"gnomon.data.split": {"gnomon.cli.main", "gnomon"}}) == [
        "gnomon.data.split imports gnomon",
        "gnomon.data.split imports gnomon.cli.main",
    ]
    ring = ["gnomon.data.a", "gnomon.data.b", "gnomon.data.c"]
    assert circles({one: {other} for one, other in itertools.pairwise([*ring, ring[0]])}) == ring
    hidden = ast.parse("def late():\n    from gnomon.cli import main\n    import gnomon.report.page\n")
    assert imports(hidden, modules()) == {"gnomon.cli.main", "gnomon.report.page"}
    late = ast.parse("def late():\n    from tests.data.test_split import X\n    from tests import test_docs, helpers\n")
    assert imported_test_modules(late) == {"tests.data.test_split.X", "tests.test_docs"}
