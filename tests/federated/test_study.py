"""The tables of the federated study: measured and published values, with the number of seeds in each cell."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    names = ("federated", "federated_tables")
    yield tuple(importlib.import_module(name) for name in names)
    for name in names:
        sys.modules.pop(name, None)


def result(study: str, label: str, sigma: float, accuracy: float, **more) -> dict:
    plain = {"study": study, "label": label, "data": "mnist", "sigma": sigma, "epsilon": 0.96, "accuracy": accuracy}
    plain |= {"unfairness": None, "worst": None, "down": 104_056.0, "first down": 104_056.0, "up": 104_056.0}
    return plain | {"rounds": 80, "seconds": 200.0} | more


def test_a_cell_has_its_mean_spread_seeds_and_the_published_number(study, tmp_path):
    _, tables = study
    fair = {"unfairness": 0.5, "worst": 0.7}
    found = [
        result("iid", "fedavg", 4.0, 0.90),
        result("iid", "fedavg", 4.0, 0.92),
        result("iid", "fedpcdp", 4.0, 0.88, up=1976.0),
        result("skew", "fedavg", 0.0, 0.5, epsilon=None),
        result("skew", "fedavg", 4.0, 0.4),
        result("fair", "fedfdp fair=0.1", 1.9, 0.8, **fair),
    ]
    text = tables.write(found, tmp_path)
    assert "| FedAvg | **91.0 ± 1.4** [2] (84.7 ± 0.8; +6.3) |" in text
    assert "| FedPCDP | **88.0** [1] (89.0 ± 1.4; -1.0) |" in text
    assert "no noise" in text
    assert "| FedFDP, λ = 0.1 | **80.0** [1] (95.1 ± 0.8; -15.1) | **0.5** (2.3e+10) | 70.0 |" in text
    rows = list(csv.DictReader((tmp_path / "federated.csv").open()))
    assert [(row["method"], row["seeds"]) for row in rows[:2]] == [("fedavg", "2"), ("fedpcdp", "1")]
    for name in ("iid", "skew", "fair"):
        assert (tmp_path / f"federated-{name}.png").stat().st_size > 1000


def test_one_seed_has_no_bars(study):
    _, tables = study
    one = [result("iid", "fedavg", 4.0, 0.90), result("skew", "fedavg", 4.0, 0.4)]
    several = [*one, result("iid", "fedavg", 4.0, 0.92), result("skew", "fedavg", 4.0, 0.5)]
    for draw in (tables.iid_picture, tables.skew_picture):
        alone, more = draw(tables.rows(one)), draw(tables.rows(several))
        assert "one seed" in alone.caption
        assert not [bar for bar in alone.figure.axes[0].containers if getattr(bar, "has_yerr", False)]
        assert "with error bars of one standard deviation over seeds" in more.caption
        assert [bar for bar in more.figure.axes[0].containers if getattr(bar, "has_yerr", False)]


def test_runs_go_seed_by_seed_and_none_is_there_twice(study):
    federated, _ = study
    args = SimpleNamespace(
        cells=["*"],
        fast=False, seeds=2, studies=["iid", "fair", "skew"], pfa=True, data=["mnist", "fashion-mnist"],
        data_dir=None, rounds=80, lr=5.0,
    )  # fmt: skip
    cells = federated.cells(args)
    seeds = [cell.config.seed for cell in cells]
    assert seeds == sorted(seeds)
    assert len({cell.key for cell in cells}) == len(cells) == 2 * 2 * (20 + 4 + 16 + 4)
    assert {cell.config.insecure_noise_seed for cell in cells} == {0, 1}
