"""Results that were kept for a user's own model are found by its code, those of built-in models as before."""

from __future__ import annotations

import importlib
import sys

import pytest

from gnomon.errors import SettingError
from gnomon.models.custom import code_hash
from gnomon.runs.config import TrainConfig
from gnomon.studies import compare
from gnomon.studies.cells import CellsFailed, settings_key
from gnomon.studies.reproduce import read_experiment
from gnomon.studies.reproduce.run import done_rows
from gnomon.studies.store import ResultStore
from tests.helpers import ROOT

NET = """
from torch import nn
from .layers import last

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), last(classes))
"""
LAYERS = """
import width_for_test
from torch import nn

def last(classes):
    return nn.Linear(width_for_test.WIDTH, classes)
"""
MODEL = "own_for_test.net:Net"
SMALL = TrainConfig(epochs=0.5, private_records=1300, model=MODEL)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A package of the user's own, and a module beside it."""
    place = tmp_path / "code"
    (place / "own_for_test").mkdir(parents=True)
    (place / "own_for_test/__init__.py").write_text("")
    (place / "own_for_test/net.py").write_text(NET)
    (place / "own_for_test/layers.py").write_text(LAYERS)
    (place / "own_for_test/unused.py").write_text("A = 1\n")
    (place / "width_for_test.py").write_text("WIDTH = 8\n")
    monkeypatch.syspath_prepend(str(place))
    yield place
    forget()


def forget():
    """As in a new process."""
    for name in [one for one in sys.modules if one.endswith("_for_test") or one.startswith("own_for_test")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def change(path):
    path.write_text(path.read_text() + "\n# changed\n")
    forget()


@pytest.mark.parametrize("file", ["own_for_test/net.py", "own_for_test/layers.py", "width_for_test.py",
                                  "own_for_test/__init__.py"])  # fmt: skip
def test_a_changed_model_is_run_again(own, tmp_path, monkeypatch, file):
    cells = compare.grid(SMALL, ["dp-sgd"], [2.0], 1)
    ran = []
    real = compare.run_cell
    monkeypatch.setattr(compare, "run_cell", lambda cell: ran.append(cell.label) or real(cell))
    first = compare.run_grid(cells, tmp_path / "out", progress=False)
    forget()
    assert compare.run_grid(cells, tmp_path / "out", progress=False) == first
    assert len(ran) == 1
    change(own / file)
    assert compare.stored_results(cells, tmp_path / "out") == []
    compare.run_grid(cells, tmp_path / "out", progress=False)
    assert len(ran) == 2
    assert len(list(ResultStore(tmp_path / "out").folder.iterdir())) == 2  # the old one stays


def test_code_that_the_model_does_not_import_does_not_count(own):
    before = code_hash(MODEL)
    change(own / "own_for_test/unused.py")
    assert code_hash(MODEL) == before


def test_a_model_that_changes_while_a_study_runs_is_not_kept(own, tmp_path, monkeypatch):
    cells = compare.grid(SMALL, ["dp-sgd"], [2.0], 1)
    real = compare.run_cell

    def slow(cell):
        found = real(cell)
        change(own / "width_for_test.py")
        return found

    monkeypatch.setattr(compare, "run_cell", slow)
    with pytest.raises(CellsFailed, match="changed during the run; start again"):
        compare.run_grid(cells, tmp_path / "out", progress=False)
    assert list(ResultStore(tmp_path / "out").folder.iterdir()) == []


def test_code_that_changed_since_this_process_imported_it_is_refused_until_it_is_reloaded(own, tmp_path):
    cells = compare.grid(SMALL, ["dp-sgd"], [2.0], 1)
    compare.run_grid(cells, tmp_path / "out", progress=False)
    net = own / "own_for_test/net.py"
    net.write_text(f"{NET}# another comment\n")  # and the module of this process is still the old one
    with pytest.raises(
        SettingError, match=r"code of model 'own_for_test.net:Net' changed since.*start the program again"
    ):
        compare.run_grid(cells, tmp_path / "out", progress=False)
    importlib.reload(sys.modules["own_for_test.net"])
    assert len(compare.run_grid(cells, tmp_path / "out", progress=False)) == 1


def test_a_model_without_a_file_is_refused_by_name():
    with pytest.raises(SettingError, match=r"model = 'nowhere_for_test:Net'.*module with a source file"):
        settings_key(TrainConfig(model="nowhere_for_test:Net"))


def test_kept_results_of_built_in_models_are_found_as_before():
    assert settings_key(TrainConfig(), label="a") == "e9c7be272001decd"
    assert settings_key(TrainConfig(model="cnn")) == "93c21fd2d9767c33"
    rows = done_rows(read_experiment("pcdp-table2"), ROOT / "experiments/results")
    assert len(rows) >= 65
    assert sum(row.seeds for row in rows) >= 212
