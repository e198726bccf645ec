"""The documentation keeps its promises: examples everywhere, links that lead somewhere."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gnomon.data import load
from gnomon.data.sources.arrays import SPLIT, WHOLE
from gnomon.runs.config import TrainConfig
from tests.helpers import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PACKAGES = [
    "",
    ".accounting",
    ".audit",
    ".clipping",
    ".constraints",
    ".data",
    ".diagnose",
    ".features",
    ".federated",
    ".ledger",
    ".models",
    ".recipes",
    ".release",
    ".report",
    ".sampling",
    ".statement",
    ".studies.reproduce",
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
def test_lines_of_prose_are_wrapped(page):
    code = generated = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.startswith("```")
        generated = line.startswith("<!-- measured") or (generated and not line.startswith("<!-- end"))
        prose = not (code or generated or line.startswith(("|", "    ", "!["))) and "](" not in line
        assert not prose or len(line) <= 120, f"{page.name}:{number} has {len(line)} characters"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_pictures_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


class Table(dict):
    """As much of a data frame as the example uses, where pandas is not installed."""

    def to_numpy(self, dtype):
        return np.array(list(self.values()), dtype).T

    @classmethod
    def read_csv(cls, path):
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        return cls({name: [row[name] for row in rows] for name in rows[0]})


def test_the_way_from_a_csv_file_to_npz_runs(tmp_path, monkeypatch):
    if importlib.util.find_spec("pandas") is None:
        codes = lambda values, sort: (np.unique(values, return_inverse=True)[1], None)
        monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(read_csv=Table.read_csv, factorize=codes))
    section = (ROOT / "README.md").read_text().partition("## Your own data")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},{i / 2},{'ill' if i % 2 else 'well'}\n" for i in range(20))
    Path("patients.csv").write_text("age,weight,diagnosis\n" + rows)
    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], {})
    source = load("npz:patients.npz")
    assert (len(source.train), source.classes, source.input_shape, source.counted) == (16, 2, (2,), False)
    for name in (*SPLIT, *WHOLE):
        assert f"`{name}`" in section
        assert name in TrainConfig.__dataclass_fields__["data"].metadata["help"]


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
