"""The documentation keeps its promises: examples everywhere, links that lead somewhere."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PACKAGES = [
    "",
    ".accounting",
    ".audit",
    ".clipping",
    ".constraints",
    ".data",
    ".diagnose",
    ".federated",
    ".ledger",
    ".models",
    ".release",
    ".report",
    ".reproduce",
    ".subspaces",
    ".training",
    ".updates",
]


def public_things() -> dict[str, object]:
    """Every public function and class, without interfaces: what implements them shows them."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(f"gnomon{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            interface = getattr(thing, "_is_protocol", False) or inspect.isabstract(thing)
            if (inspect.isfunction(thing) or inspect.isclass(thing)) and not interface:
                found[f"{module.__name__}.{name}"] = thing
    return found


THINGS = public_things()


@pytest.mark.parametrize("name", THINGS)
def test_every_public_function_and_class_has_an_example_that_runs(name):
    assert ">>>" in (inspect.getdoc(THINGS[name]) or ""), f"{name} has no example"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_is_installed_and_read_is_there(page):
    text = page.read_text()
    assert not re.search(r"pip install\s+\S*gnomon", text), "Gnomon is on no registry: install a clone"
    diagnosed = set(re.findall(r"gnomon diagnose (\S+)", text)) - {"runs/demo"}  # which make demo leaves
    assert diagnosed <= set(re.findall(r"gnomon train.* --out (\S+)", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_pictures_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_no_page_or_source_names_a_path_of_a_machine():
    for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("src/**/*.py"), ROOT / "Makefile"]:
        assert not re.search(r"/(home|root|work)/", path.read_text()), path


def test_tables_of_the_results_are_those_of_the_finished_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    tables = importlib.import_module("tables")
    page = (ROOT / "docs" / "results.md").read_text()
    assert {"pcdp-table2", "federated-iid"} <= set(re.findall(r"<!-- measured: (\S+) -->", page))
    slow = ("progress",)  # works out the noise of every experiment that has a budget
    assert tables.written(page, slow) == page, "docs/results.md is not what experiments/results says: make figures"
    wrong = page.replace("| DP-SGD | **", "| DP-SGD | **1", 1)
    assert tables.written(wrong, slow) == page
