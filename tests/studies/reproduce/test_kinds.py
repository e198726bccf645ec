"""Experiments whose pictures show what happens along runs, and files that say how they differ from another one."""

from __future__ import annotations

import csv
import json
import re

import pytest
import yaml

from gnomon.diagnose import DiagnosticSchedule
from gnomon.errors import SettingError
from gnomon.figures.picture import WARNING
from gnomon.report import report
from gnomon.runs.config import TrainConfig
from gnomon.studies import compare
from gnomon.studies.cells import CellsFailed
from gnomon.studies.reproduce import read_experiment, reproduce
from gnomon.studies.reproduce.experiment import Experiment
from gnomon.studies.reproduce.formatting import format_number
from gnomon.studies.reproduce.results import ResultRow, epoch_curves
from gnomon.studies.reproduce.run import cells_of
from gnomon.studies.store import ResultStore

BASE = {
    "title": "A toy", "paper": "nobody", "axis": "noise-multiplier", "values": [5, 20], "seeds": 2,
    "settings": {
        "data": "digits", "private-records": 1300, "public-records": 40, "batch-size": 130, "epochs": 3, "lr": 1,
    },
    "lines": {
        "DP-SGD": {"method": "dp-sgd"},
        "PCDP": {"method": "pcdp", "settings": {"rank": 10}},
        "public": {"method": "public-only"},
    },
}  # fmt: skip


def toy(tmp_path, **changes):
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(BASE | changes, sort_keys=False))
    return read_experiment(str(path))


def run(experiment, out):
    return reproduce(experiment, out, progress=False, say=lambda text: None)


def kept(folder):
    return json.loads((folder / "reproduction.json").read_text())


# -- over epochs -----------------------------------------------------------------------------------


def test_curves_over_epochs_are_means_over_seeds_and_reach_table_picture_and_page(tmp_path):
    experiment, out = toy(tmp_path, over="epoch"), tmp_path / "out"
    rows = run(experiment, out)
    (curve,) = rows[0].series
    assert curve.at == [1.0, 2.0, 3.0]
    assert len(curve.deviation) == 3
    assert curve.mean[-1] == pytest.approx(rows[0].measured, abs=0.05)
    assert rows[-1].series == []  # public records alone have no epochs
    table = list(csv.DictReader((out / "toy/series.csv").open()))
    assert len(table) == 2 * 2 * 3
    assert ResultRow.from_dict(kept(out / "toy")["rows"][0]).series[0].at == curve.at
    assert Experiment.from_dict(kept(out / "toy")["experiment"]) == experiment
    page = report([out / "toy"], figures=False).read_text()
    assert re.search(r"DP-SGD ends at [\d.]+ %", page)
    assert "noise multiplier 20, true epsilon" in page


def test_epochs_without_a_score_are_left_out_of_curves():
    scores = ({1.0: 0.5, 2.0: None, 3.0: 0.7}, {1.0: None, 2.0: None, 3.0: 0.9})
    runs = [
        {"history": [{"epoch": at} | ({"validation/accuracy": one} if one else {}) for at, one in run.items()]}
        for run in scores
    ]
    (curve,) = epoch_curves("accuracy", runs)
    assert curve.at == [3.0]
    assert curve.mean == pytest.approx([80.0])
    assert epoch_curves("unprotected/nothing", runs) == []


# -- looks inside ----------------------------------------------------------------------------------


def test_looks_change_nothing_in_a_run_and_are_part_of_a_cell_s_name(tmp_path):
    base = TrainConfig(epochs=2.0, public_records=40, rank=10.0)
    looks = DiagnosticSchedule(times=3, records=50, keep=("unprotected/spectrum", "unprotected/norms_projected/mean"))
    (plain,) = compare.grid(base, ["pcdp"], [2.0], 1)
    (watched,) = compare.grid(base, ["pcdp"], [2.0], 1, looks)
    assert plain.key != watched.key
    first, second = compare.run_grid([plain, watched], tmp_path, progress=False)
    assert second["accuracy"] == first["accuracy"]
    assert [row["validation/loss"] for row in second["history"]] == [row["validation/loss"] for row in first["history"]]
    seen = second["diagnostics"]
    assert len(seen) == 3
    assert seen[0]["step"] == 0
    assert len(seen[0]["unprotected/spectrum"]) == 50
    assert all(set(one) <= {"step", "epoch", *looks.keep} for one in seen)


def test_looks_see_the_basis_of_their_own_step(tmp_path):
    base = TrainConfig(epochs=2.0, public_records=40, rank=10.0)
    looks = DiagnosticSchedule(times=2, records=50, keep=("unprotected/energy/of",))
    (cell,) = compare.grid(base, ["pcdp:project-from-epoch=1"], [2.0], 1, looks)
    (found,) = compare.run_grid([cell], tmp_path, progress=False)
    seen = [one["unprotected/energy/of"] for one in found["diagnostics"]]
    assert seen == ["diagnosis", "method"], "the method projects from the second epoch on"


def test_a_name_that_no_look_finds_is_refused(tmp_path):
    (cell,) = compare.grid(
        TrainConfig(epochs=1.0), ["dp-sgd"], [2.0], 1, DiagnosticSchedule(keep=("unprotected/spectra",))
    )
    with pytest.raises(CellsFailed, match="unprotected/spectrum"):
        compare.run_grid([cell], tmp_path, progress=False)


def test_sorted_numbers_are_drawn_at_each_look_with_and_without_noise(tmp_path):
    lines = {
        "SGD": {"method": "dp-sgd", "settings": {"noise-multiplier": 0, "max-grad-norm": 1000000}},
        "DP-SGD": {"method": "dp-sgd"},
    }
    settings = BASE["settings"] | {"noise-multiplier": 2}
    experiment = toy(tmp_path, axis="epochs", values=[2], lines=lines, settings=settings, over="rank",
                     draw="unprotected/spectrum", looks={"times": 3, "records": 60, "shown": 30})  # fmt: skip
    out = tmp_path / "out"
    rows = run(experiment, out)
    assert rows[0].epsilon == float("inf")
    assert 0 < rows[1].epsilon < float("inf")
    assert rows[0].measured > rows[1].measured
    for row in rows:
        assert [len(one.at) for one in row.series] == [30, 30, 30]
        assert row.series[0].epoch == 0
        assert all(a >= b for a, b in zip(row.series[-1].mean, row.series[-1].mean[1:], strict=False))
    text = (out / "toy/result.md").read_text()
    assert "to inf" in text
    assert "Infinity" not in (out / "toy/reproduction.json").read_text()
    assert not [path for path in (out / "cells").iterdir() if "Infinity" in path.read_text()]
    page = report([out / "toy"], figures=False).read_text()
    assert "falls to a tenth" in page
    hidden = report([out / "toy"], unprotected=False, figures=False).read_text()
    assert "tenth" not in hidden
    assert "<svg" not in hidden
    assert format_number(rows[1].measured) in hidden


def test_gradients_are_points_in_a_plane_before_and_after_projection(tmp_path):
    lines = {"PCDP": {"method": "pcdp", "settings": {"rank": 10}}}
    experiment = toy(tmp_path, values=[5], lines=lines, seeds=1, over="plane", draw="unprotected/cloud",
                     looks={"times": 2, "records": 40})  # fmt: skip
    out = tmp_path / "out"
    (out / "toy").mkdir(parents=True)
    (out / "toy/result.png").write_bytes(b"of a version that did not say what it showed")
    (row,) = run(experiment, out)
    assert {path.name for path in (out / "toy").glob("result*.[ps][nv]g")} == {
        "result-unprotected.png", "result-unprotected.svg",
    }  # fmt: skip
    assert WARNING in (out / "toy/result-unprotected.svg").read_text()
    assert [(one.name, len(one.at)) for one in row.series] == [("whole", 40), ("projected", 40)] * 2
    page = report([out / "toy"], figures=False).read_text()
    assert "median distance from the mean" in page


def test_a_diagnostic_can_be_measured_over_epochs(tmp_path):
    lines = {
        "DP-SGD": {"method": "dp-sgd"},
        "before": {"method": "pcdp", "settings": {"rank": 10}},
        "after": {"method": "pcdp", "settings": {"rank": 10}, "measure": "unprotected/norms_projected/mean"},
    }
    experiment = toy(tmp_path, values=[5], lines=lines, seeds=1, over="epoch", measure="unprotected/norms/mean",
                     unit="", looks={"times": 4, "records": 40})  # fmt: skip
    out = tmp_path / "out"
    rows = {row.line: row for row in run(experiment, out)}
    assert len(list(ResultStore(out).folder.iterdir())) == 2  # two lines share their run
    before, after = (rows[name].series[0].mean for name in ("before", "after"))
    assert all(short <= long for short, long in zip(after, before, strict=True))
    assert rows["after"].measured == pytest.approx(after[-1])
    assert "<svg" not in report([out / "toy"], unprotected=False, figures=False).read_text()


def test_no_folder_of_this_machine_is_kept_with_results(tmp_path):
    lines, place = {"DP-SGD": {"method": "dp-sgd"}}, str(tmp_path / "data of mine")
    settings = BASE["settings"] | {"data-dir": place, "epochs": 1}
    run(toy(tmp_path, values=[5], seeds=1, lines=lines, settings=settings), tmp_path / "out")
    texts = [path.read_text() for path in (tmp_path / "out").rglob("*.json")]
    assert len(texts) == 2
    assert not any("data of mine" in text for text in texts)


# -- files -----------------------------------------------------------------------------------------


def test_a_file_may_say_how_it_differs_from_another(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "like": "pcdp-table2",
                "values": [10, 22],
                "keep": ["DP-SGD", "public records alone"],
                "settings": {"lr": 2},
            }
        )
    )
    mine, table = read_experiment(str(path)), read_experiment("pcdp-table2")
    assert mine.base.lr == 2.0
    assert mine.base.private_records == table.base.private_records
    assert [line.name for line in mine.lines] == ["DP-SGD", "public records alone"]
    assert mine.lines[0].published == {value: table.lines[0].published[value] for value in (10.0, 22.0)}
    assert mine.paper_epsilon == {10.0: 0.69, 22.0: 0.31}
    for change, named in (({"like": "pcdp-table9"}, "pcdp-table2"), ({"keep": ["nobody"]}, "nobody")):
        path.write_text(yaml.safe_dump({"like": "pcdp-table2"} | change))
        with pytest.raises(SettingError, match=named):
            read_experiment(str(path))


def test_table_1_shows_the_cells_of_tables_2_and_3():
    for small, large in (("pcdp-table1-mnist", "pcdp-table2"), ("pcdp-table1-fashion", "pcdp-table3")):
        few, many = read_experiment(small), read_experiment(large)
        keys = {cell.key for line in many.lines for cell in cells_of(many, line, 22.0)}
        assert {cell.key for line in few.lines for cell in cells_of(few, line, 22.0)} == keys


@pytest.mark.parametrize(
    ("figure", "line", "value", "table", "row", "at"),
    [
        ("pcdp-figure3", "flat", 22.0, "pcdp-table2", "DP-SGD", 22.0),
        ("pcdp-figure3-fashion", "flat after projection", 18.0, "pcdp-table3", "PCDP-SGD, one subspace", 18.0),
        ("pcdp-appendix-figure3", "PCDP-SGD, per tensor", 1.0, "pcdp-table3", "PCDP-SGD, per tensor", 22.0),
        ("pcdp-appendix-figure6", "lr = 5", 0.01, "pcdp-table2", "PCDP-SGD, one subspace", 10.0),
        ("pcdp-appendix-figure6-fashion", "lr = 5", 0.01, "pcdp-table3", "PCDP-SGD, one subspace", 10.0),
        ("pcdp-appendix-figure7", "public records alone", 100.0, "pcdp-table3", "public records alone", 22.0),
    ],
)
def test_figures_share_cells_with_tables(figure, line, value, table, row, at):
    def key(name, line, value):
        experiment = read_experiment(name)
        (found,) = [one for one in experiment.lines if one.name == line]
        return cells_of(experiment, found, value)[0].key

    assert key(figure, line, value) == key(table, row, at)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"over": "time"}, "time"),
        ({"over": "rank"}, "draw"),
        ({"draw": "unprotected/cloud"}, "draw"),
        ({"over": "plane", "draw": "unprotected/cloud"}, "looks"),
    ],
)
def test_what_is_wrong_about_a_kind_is_named(tmp_path, change, named):
    with pytest.raises(SettingError, match=named):
        toy(tmp_path, **change)
