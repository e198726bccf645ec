"""Experiments from files: the published numbers as printed, kept cells, and both numbers side by side."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import shlex

import pytest
import torch
import yaml

from gnomon import files
from gnomon.accounting import epsilon
from gnomon.cli.main import main
from gnomon.data import DataError, load
from gnomon.errors import SettingError
from gnomon.report import report
from gnomon.report.reproduction import SavedReproduction
from gnomon.studies import compare
from gnomon.studies.reproduce import available, read_experiment, reproduce
from gnomon.studies.reproduce.experiment import Experiment
from gnomon.studies.reproduce.figures import figures
from gnomon.studies.reproduce.formatting import accounting_words, format_number
from gnomon.studies.reproduce.results import ResultRow, Series, final_score, result_row
from gnomon.studies.reproduce.run import as_coded_epsilon, cells_of, command, write
from gnomon.studies.reproduce.tables import markdown
from gnomon.studies.store import ResultStore, pack, unpack
from gnomon.version import __version__
from tests.studies.toy import TOY, toy

# -- the files that come with the package ----------------------------------------------------------


SIZES = {
    "pdp-figure12-mnist": 20_000,
    "pdp-figure12-fashion": 50_000,
    "pdp-figure13-mnist": 50_000,
    "pdp-figure13-fashion": 50_000,
    "recipes-full": 59_900,
    "recipes-tabular": 32_461,
    "recipes-text": 36_000,
}


@pytest.mark.parametrize("name", available())
def test_every_file_describes_cells_that_could_run(name, monkeypatch):
    monkeypatch.setattr(
        "gnomon.studies.reproduce.run.calibrated", lambda target, *rest: 2 / target
    )  # the true one takes long
    experiment = read_experiment(name)
    for line, value in experiment.chosen():
        for cell in cells_of(dataclasses.replace(experiment, seeds=1), line, value):
            assert cell.config.private_records == line.settings.get("private-records", SIZES.get(name, 10_000))
            assert line.settings.get("dataset-size", cell.config.private_records) == cell.config.private_records
            if cell.config.recipe is not None:  # which calibrates the noise for the budget
                assert cell.config.target_epsilon == value
            else:
                assert line.method == "public-only" or cell.config.noise_multiplier > 0 or line.name == "SGD"
    assert not {value for line in experiment.lines for value in line.published} - set(experiment.values)
    assert not {value for line in experiment.lines for value in line.at} - set(experiment.values)
    short = experiment.shortened()
    assert _work(short) <= _work(experiment) / 3
    for line, value in short.chosen():
        cells_of(short, line, value)


def _work(experiment):
    """Steps of all runs."""
    runs = {cell.key: cell for line, value in experiment.chosen() for cell in cells_of(experiment, line, value)}
    return sum(cell.config.epochs * cell.config.private_records for cell in runs.values())


@pytest.mark.parametrize("name", [name for name in available() if read_experiment(name).paper_epsilon])
def test_the_papers_epsilons_are_renyi_with_the_classic_conversion(name):
    """So the settings in the file are those of the paper: it prints what they give, to two decimals."""
    experiment = read_experiment(name)
    config = experiment.base
    for sigma, printed in experiment.paper_epsilon.items():
        steps = round(config.epochs * config.private_records / config.batch_size)
        rate = config.batch_size / config.private_records
        found = epsilon(noise_multiplier=sigma, sample_rate=rate, steps=steps, delta=1e-5, accountant="rdp-classic")
        assert float(found) == pytest.approx(printed, abs=0.02)


def test_published_numbers_fall_with_noise_as_printed():
    table = {line.name: line.published for line in read_experiment("pcdp-table2").lines}
    assert table["DP-SGD"] == {
        6: (91.91, 0.56), 10: (87.85, 1.61), 14: (79.39, 2.09), 18: (66.09, 1.62), 22: (50.51, 3.16),
        26: (42.10, 3.27), 30: (34.43, 2.62),
    }  # fmt: skip
    assert table["PCDP-SGD, per tensor"][22] == (85.20, 0.49)
    assert read_experiment("pcdp-table3").lines[1].published[30] == (66.21, 1.70)
    assert read_experiment("pcdp-table4").lines[0].published[2] == (45.56, None)


def test_fixed_blocks_cost_what_the_review_of_the_code_found():
    table = read_experiment("pcdp-table2")
    config = cells_of(table, table.lines[0], 22.0)[0].config
    assert as_coded_epsilon(table, config) == pytest.approx(1.58, abs=0.01)


@pytest.mark.parametrize("name", [name for name in available() if name.startswith("pcdp")])
def test_files_whose_step_size_is_not_the_paper_s_say_so(name):
    experiment = read_experiment(name)
    if any("lr" in line.settings for line in experiment.lines) or experiment.base.lr == 1:
        return
    (note,) = [note for note in experiment.notes if "step size 1" in note]
    assert f" {experiment.base.lr:g}" in note
    assert experiment.base.data == "mnist" or "not tuned again" in note


def test_means_of_several_records_that_are_clipped_as_one_cost_twice_the_noise(tmp_path):
    figure, table = read_experiment("pdp-figure3-fashion"), read_experiment("pcdp-table3")
    line = figure.lines[0]
    found = [
        as_coded_epsilon(figure, cells_of(figure, line, value)[0].config) for value in (2.0, 4.0, 6.0, 10.0, 14.0, 18.0)
    ]
    assert found == pytest.approx([37.62, 14.83, 8.94, 4.87, 3.30, 2.48], abs=0.006)
    row = ResultRow(line.name, 18.0, None, None, 70.0, None, 1, 0.23, 0.2, found[-1], 1.0)
    assert "| epsilon of batches as in PDP-SGD's code (fixed blocks, clipped means of 5 records) | 2.4" in markdown(
        figure, [row]
    )
    fashion = [name for name in available() if name.startswith("pdp") and read_experiment(name).base.data != "mnist"]
    assert {read_experiment(name).micro_batch for name in fashion} == {5}
    assert {read_experiment(name).micro_batch for name in available() if name not in fashion} == {1}
    assert table.as_coded_words == "fixed blocks"
    with pytest.raises(SettingError, match="as-coded"):
        toy(tmp_path, **{"as-coded": "", "micro-batch": 5})


def test_lines_of_a_table_share_their_split_and_differ_in_what_they_say():
    table = read_experiment("pcdp-table2")
    found = {line.name: cells_of(table, line, 22.0)[0].config for line in table.lines}
    assert found["PCDP-SGD, per tensor"].subspace_scope == "per-tensor"
    assert found["RPDP-SGD, k = 800"].rank == 800
    assert found["DP-SGD from a public start"].warm_start == "public"
    assert len({(one.private_records, one.public_records, one.split_seed) for one in found.values()}) == 1


def test_labels_keep_all_digits_and_values_with_commas(tmp_path):
    own = {"lr": 0.123456789, "local-lr": 1 / 3, "local-steps": 2, "max-grad-norm": 1234567.25}
    one = toy(tmp_path, lines={"a": {"method": "dp-sgd", "settings": own}})
    config = cells_of(one, one.lines[0], 5.0)[0].config
    assert (config.lr, config.local_lr, config.max_grad_norm) == (0.123456789, 1 / 3, 1234567.25)
    held = {"method": "dp-comp-minibatch", "settings": {"constraint": "box:-1,1", "sketch-dimension": 20}}
    one = toy(tmp_path, lines={"b": held})
    assert cells_of(one, one.lines[0], 5.0)[0].config.constraint == "box:-1,1"


def test_settings_may_hold_at_one_value_only():
    figure = read_experiment("pdp-figure3-mnist")
    pdp = next(line for line in figure.lines if line.method == "pdp")
    early, late = (cells_of(figure, pdp, value)[0].config for value in (18.0, 8.0))
    assert (early.lr, early.project_from_epoch, late.lr, late.project_from_epoch) == (0.1, 0, 0.1, 14)


@pytest.mark.parametrize(
    "name", ["pdp-figure3-mnist", "pdp-figure3-fashion", "pdp-figure4-mnist", "pdp-figure4-fashion"]
)
def test_random_projections_start_where_public_ones_do(name):
    figure = read_experiment(name)
    pdp, rpdp = (next(line for line in figure.lines if line.method == method) for method in ("pdp", "rpdp"))
    for value in figure.values:
        public, random = (cells_of(figure, line, value)[0].config for line in (pdp, rpdp))
        assert (public.project_from_epoch, public.lr) == (random.project_from_epoch, random.lr)


# -- running ---------------------------------------------------------------------------------------


def test_a_run_leaves_both_numbers_side_by_side_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    experiment, out = toy(tmp_path), tmp_path / "out"
    first = reproduce(experiment, out, cells=["DP-SGD@5"], progress=False, say=lambda text: None)
    assert [(row.line, row.value) for row in first] == [("DP-SGD", 5.0)]
    ran = []
    real = compare.run_cell
    monkeypatch.setattr(compare, "run_cell", lambda cell: ran.append(cell.label) or real(cell))
    said: list[str] = []
    rows = reproduce(experiment, out, progress=False, say=said.append)
    assert sorted(ran) == sorted(
        ["dp-sgd"] * 2 + ["pcdp:rank=10"] * 2 + ["pcdp:rank=10,lr=0.5"] * 2 + ["public-only"] * 2
    )
    ran.clear()
    assert reproduce(experiment, out, progress=False, say=said.append) == rows
    assert ran == []
    assert rows[0] == first[0]
    assert rows[0].difference == pytest.approx(rows[0].measured - 80)
    assert rows[0].epsilon == pytest.approx(
        float(epsilon(noise_multiplier=5.0, sample_rate=0.1, steps=10, delta=1e-5)), rel=1e-3
    )
    assert rows[0].as_coded_epsilon > rows[0].epsilon
    assert rows[-1].epsilon == 0
    assert rows[-1].paper_epsilon is None
    folder = out / "toy"
    table = list(csv.DictReader((folder / "result.csv").open()))
    assert [float(one["measured"]) for one in table] == [row.measured for row in rows]
    text = (folder / "result.md").read_text()
    assert text == said[0]
    assert re.search(r"\| DP-SGD \| \*\*[\d.]+ ± [\d.]+\*\* \(80.0 ± 1.5; [-+][\d.]+\) \|", text)
    assert "| accuracy, % | noise multiplier 5 | noise multiplier 20 |" in text
    assert "| published epsilon | 1.500 | 0.400 |" in text
    assert (folder / "result.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((folder / "reproduction.json").read_text())
    assert Experiment.from_dict(kept["experiment"]) == experiment
    page = report([folder], figures=False).read_text()
    assert "80.0 ± 1.5" in page
    assert re.search(r"DP-SGD: [\d.]+ % at noise multiplier 20, [\d.]+ % at noise multiplier 5", page)
    for head in ("noise multiplier", "measured, %", "published, %", "difference, points"):
        assert re.search(rf"<th[^>]*>\s*(<[^>]*>)?{head}", page), head
    assert "epsilon with fixed blocks" in page
    assert re.search(r"<button[^>]*>σ 5, ε \d\.\d{3}</button>", page)
    assert re.search(r">[\d.]+ ± [\d.]+\n\(80.0 ± 1.5\)</td>", page)
    assert f"gnomon reproduce {tmp_path / 'toy.yaml'} --seeds 2" in page


MISTAKEN = {
    "a stray value of a setting": ({"lines": {"A": {"method": "dp-sgd", "at": {7: {"lr": 9}}}}}, "A: at = 7"),
    "a stray published number": ({"lines": {"A": {"method": "dp-sgd", "published": {7: 90}}}}, "A: published = 7"),
    "a stray epsilon": ({"paper-epsilon": {7: 1.0}}, "paper-epsilon = 7"),
    "a stray part of fast": ({"fast": {"epochs": 1}}, "fast = 'epochs'"),
    "a stray part of family": (
        {"family": {"setting": "lr", "values": [1], "method": "pcdp", "at": {}}},
        "family = 'at'",
    ),
    "a value twice": ({"values": [5, 20, 5]}, "each value once"),
    "no values": ({"values": []}, "a list of numbers"),
    "one value without a list": ({"values": 5}, "a list of numbers"),
    "a seed": ({"settings": TOY["settings"] | {"seed": 7}}, "`seeds`"),
    "a number as title": ({"title": 5}, "title = 5"),
    "a list of lines": ({"lines": [1]}, "lines = "),
    "a line that is no text": ({"lines": {5: {"method": "dp-sgd"}}}, "lines = 5"),
    "a line without anything": ({"lines": {"A": None}}, "lines = 'A'"),
    "notes that are no texts": ({"notes": [1]}, "notes = "),
}


@pytest.mark.parametrize(("changes", "told"), MISTAKEN.values(), ids=MISTAKEN)
def test_a_mistake_in_a_file_of_one_s_own_is_named_before_anything_runs(tmp_path, changes, told):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(TOY | changes))
    with pytest.raises(SettingError, match=re.escape(told)):
        read_experiment(str(path))


def test_a_line_that_stands_twice_in_a_file_is_not_lost_without_a_word(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        yaml.safe_dump(TOY | {"lines": {}}).replace("lines: {}", "lines:\n  A: {method: pdp}\n  A: {method: rsdp}")
    )
    with pytest.raises(SettingError, match="the key 'A' occurs twice"):
        read_experiment(str(path))


def test_names_and_titles_may_hold_signs_of_markup(tmp_path):
    name = "a | b $\\epsilon$ \\1 <i>"
    one = toy(
        tmp_path, title="at $\\epsilon$", lines={name: {"method": "dp-sgd"}}, values=[5], seeds=1, notes="one note"
    )
    assert one.notes == ("one note",)
    row = ResultRow(name, 5.0, None, None, 90.3, None, 1, None, 0.88, None, 1.0)
    write(one, [row], tmp_path / "out")
    assert "| a \\| b $\\epsilon$ \\1 <i> | **90.3** |" in (tmp_path / "out/result.md").read_text()
    page = report([tmp_path / "out"], figures=False).read_text()
    assert "a | b $\\epsilon$ \\1 &lt;i&gt;: 90.3 %" in page


def test_an_unprotected_table_is_marked_also_beside_a_public_picture(tmp_path):
    looks = {"over": "rank", "draw": "public/spectrum", "looks": {"times": 2, "records": 20}}
    assert toy(tmp_path, measure="unprotected/loss", **looks).unprotected
    assert not toy(tmp_path, **looks).unprotected


def test_an_axis_of_budgets_is_for_the_accounting_that_its_noise_is_worked_out_for(tmp_path):
    settings = TOY["settings"] | {"sampler": "shuffled"}
    other = toy(tmp_path, axis="target-epsilon", settings=settings, lines={"DP-SGD": {"method": "dp-sgd"}})
    with pytest.raises(SettingError, match="poisson, pld"):
        cells_of(other, other.lines[0], 5.0)
    shuffled = toy(tmp_path, settings=settings)
    assert accounting_words(shuffled) == "Shuffled, PLD"
    mixed = toy(
        tmp_path, lines={"a": {"method": "dp-sgd"}, "b": {"method": "dp-sgd", "settings": {"accountant": "rdp"}}}
    )
    assert accounting_words(mixed) == "sampling of each line"


def test_tables_are_built_from_the_cells_that_are_there(tmp_path, monkeypatch, capsys):
    experiment, out = toy(tmp_path), tmp_path / "out"
    reproduce(experiment, out, cells=["PCDP@20"], seeds=1, progress=False, say=lambda text: None)
    full = reproduce(experiment, out, cells=["DP-SGD@20"], progress=False, say=lambda text: None)
    monkeypatch.setattr(compare, "run_cell", lambda cell: pytest.fail("nothing is to be run"))
    monkeypatch.setattr("gnomon.studies.reproduce.run.load", lambda *args: pytest.fail("no data are to be read"))
    rows = reproduce(experiment, out, only_done=True, progress=False, say=lambda text: None)
    assert [(row.line, row.value, row.seeds) for row in rows] == [("DP-SGD", 20.0, 2), ("PCDP", 20.0, 1)]
    assert rows == full  # what was run before stays in the table
    assert json.loads((out / "toy/reproduction.json").read_text())["command"].endswith("--cells DP-SGD@20,PCDP@20")
    text = (out / "toy/result.md").read_text()
    assert "2 of 6 cells finished, 1 to 2 seeds per cell (2 planned)." in text
    assert re.search(r"\| PCDP \| \*\*[\d.]+\*\* \[1\] \|", text)
    assert "the number of seeds is in brackets" in text
    assert f"Computed with gnomon {__version__}, torch {torch.__version__}." in text
    assert f"gnomon {__version__}, torch {torch.__version__}" in report([out / "toy"], figures=False).read_text()
    for path in (out / "cells").iterdir():  # as cells were kept before, and by another version
        cell = json.loads(path.read_text())
        versions = {"gnomon": "9.9", "torch": "8.8"} if cell["label"] == "dp-sgd" else None
        path.write_text(
            json.dumps(
                {k: v for k, v in cell.items() if k != "versions"} | ({"versions": versions} if versions else {})
            )
        )
    reproduce(experiment, out, only_done=True, progress=False, say=lambda text: None)
    page = report([out / "toy"], figures=False).read_text()
    for said in ((out / "toy/result.md").read_text(), page):
        assert "Computed with gnomon 9.9, torch 8.8; some runs did not record their versions." in said
    assert torch.__version__ not in page
    path = str(tmp_path / "toy.yaml")
    assert main(["reproduce", path, "--only-done", "--out", str(out), "--quiet"]) == 0
    assert "2 of 6 cells finished" in capsys.readouterr().out
    assert main(["reproduce", path, "--only-done", "--out", str(tmp_path / "empty"), "--quiet"]) == 2
    assert "finished cells of toy" in capsys.readouterr().err


def test_short_runs_say_so_and_stay_apart(tmp_path):
    rows = reproduce(
        toy(tmp_path).shortened(), tmp_path / "out", cells=["DP-SGD*"], progress=False, say=lambda text: None
    )
    assert [row.seeds for row in rows] == [1]
    flags = [
        "--fast",
        "--cells",
        "DP-SGD@5",
        "--seeds",
        "2",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "out"),
        "--quiet",
    ]
    assert main(["reproduce", str(tmp_path / "toy.yaml"), *flags]) == 0
    assert "1 of 3 cells finished, 2 seeds per cell." in (tmp_path / "out/toy-fast/result.md").read_text()
    assert "SHORT RUNS (--fast: epochs 0.5)" in (tmp_path / "out/toy-fast/result.md").read_text()
    assert not (tmp_path / "out/toy").exists()


def test_two_axes_make_a_map_and_a_metric_can_be_measured(tmp_path):
    family = {"setting": "lr", "values": [10, 1], "method": "dp-sgd"}
    grid = toy(tmp_path, lines={}, family=family, axis="max-grad-norm", values=[0.1, 0.01], seeds=1, notes=[],
               settings=TOY["settings"] | {"noise-multiplier": 2.0}, **{"paper-epsilon": {}})  # fmt: skip
    rows = reproduce(grid, tmp_path / "out", progress=False, say=lambda text: None)
    assert [(row.line, row.value) for row in rows] == [
        ("lr = 10", 0.1), ("lr = 10", 0.01), ("lr = 1", 0.1), ("lr = 1", 0.01),
    ]  # fmt: skip
    # everybody is clipped, so step size times bound is all that counts
    assert rows[1].measured == pytest.approx(rows[2].measured, abs=1.0)
    assert abs(rows[0].measured - rows[3].measured) > 3
    lines = {"psi": {"method": "dp-sgd", "measure": "unprotected/incremental/mean"}}
    metric = toy(tmp_path, lines=lines, seeds=1, values=[5], measure="accuracy", unit="")
    (row,) = reproduce(metric, tmp_path / "out", progress=False, say=lambda text: None)
    history = ResultStore(tmp_path / "out").read(cells_of(metric, metric.lines[0], 5.0)[0].key)
    assert row.measured == history["history"][-1]["unprotected/incremental/mean"]
    hidden = report([tmp_path / "out/toy"], unprotected=False, figures=False).read_text()
    assert f"{row.measured:.2f}" not in hidden
    assert format_number(row.measured) not in hidden


def test_small_measures_keep_their_digits_and_say_what_they_are():
    figure = read_experiment("dp-lsgd-figure1")
    rows = [
        ResultRow(line.name, 10.0, 0.0031, None, 0.00234, 0.00012, 3, None, 2.0, None, 1.0)
        for line in figure.lines
        if line.measure != "unprotected/incremental/q25"
    ]
    text = markdown(figure, rows)
    assert "| norm beyond the clip bound / eta (unprotected) | local steps 10 |" in text
    assert "unprotected/incremental/mean" not in text
    assert "| psi / eta, standard deviation | **0.00234 ± 0.00012** (0.00310; -0.00076) |" in text
    section = SavedReproduction("x", figure, rows, "").section()
    assert section.table.heads[1:5] == ("local steps", "measured", "published", "difference")
    assert [cell[0] for cell in section.table.rows[0][2:5]] == ["0.00234 ± 0.00012", "0.00310", "-0.00076"]


def test_a_run_that_diverged_has_no_score(tmp_path):
    key = "validation/loss"

    def run(*losses):
        rows = [{"epoch": float(n), key: value} for n, value in enumerate(losses, 1)]
        return {"epsilon": 1.0, "accuracy": 0.1, "seconds": 1.0, "history": rows}

    one = toy(tmp_path, measure=key, unit="", lines={"a": {"method": "dp-sgd", "published": {5: 0.5}}})
    kept = [unpack(pack(found)) for found in (run(2.0, 0.4), run(2.0, None), run(2.0, 0.6))]
    assert [final_score(key, found) for found in kept] == [0.4, None, 0.6]
    assert final_score(key, run(2.0, math.nan)) is None
    assert final_score("accuracy", {"accuracy": None}) is None
    row = result_row(one, one.lines[0], 5.0, kept, None)
    assert (row.seeds, row.runs) == (2, 3)
    assert row.measured == pytest.approx(0.5)
    assert "--seeds 3" in command(one, [row])
    none = result_row(one, one.lines[0], 5.0, kept[1:2], None)
    assert (none.measured, none.seeds) == (None, 0)
    assert "| a | – (0.500) |" in markdown(one, [none])
    assert "(0.500; –)" in markdown(one, [dataclasses.replace(none, measured=math.nan)])


def test_a_failure_while_writing_leaves_the_results_that_were_there(tmp_path, monkeypatch):
    one = toy(tmp_path)
    rows = [ResultRow("DP-SGD", 5.0, None, None, 60.0, None, 1, None, 1.0, None, 1.0)]
    write(one, rows, tmp_path)
    names = ("reproduction.json", "result.csv", "result.md")
    before = {name: (tmp_path / name).read_bytes() for name in names}

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="intact"):
        write(one, [dataclasses.replace(rows[0], measured=61.0)], tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names} == before


def test_a_line_that_measures_something_else_says_what(tmp_path):
    lines = {"a": {"method": "dp-sgd"}, "b": {"method": "dp-sgd", "measure": "unprotected/norms/mean"}}
    mixed = toy(tmp_path, lines=lines, unit="")
    text = markdown(mixed, [ResultRow(name, 5.0, None, None, 1.0, None, 1, None, 1.0, None, 1.0) for name in "ab"])
    assert "| measured (unprotected) | noise multiplier 5 |" in text
    assert "| a (accuracy) |" in text
    assert "| b (unprotected/norms/mean) |" in text


def test_one_seed_has_no_bar_and_no_band(tmp_path):
    def shown(experiment, spread):
        curve = [Series("", [1.0, 2.0], [50.0, 60.0], [] if spread is None else [spread, spread])]
        rows = [
            ResultRow("DP-SGD", value, None, None, 60.0, spread, 1, None, 1.0, None, 1.0, curve)
            for value in (5.0, 20.0)
        ]
        return figures(experiment, rows)[0]

    lines, curves = toy(tmp_path), toy(tmp_path, over="epoch")
    assert not shown(lines, None).figure.axes[0].containers[0].has_yerr
    assert "(lines, one seed)." in shown(lines, None).caption
    assert shown(lines, 1.5).figure.axes[0].containers[0].has_yerr
    assert "with error bars of one standard deviation over seeds" in shown(lines, 1.5).caption
    assert not shown(curves, None).figure.axes[0].collections
    assert shown(curves, None).caption.endswith("One seed.")
    assert shown(curves, 1.5).figure.axes[0].collections
    assert shown(curves, 1.5).caption.endswith("with bands of one standard deviation over seeds.")


def test_an_axis_of_budgets_finds_its_noise(tmp_path):
    experiment = toy(tmp_path, axis="target-epsilon", values=[1.0], **{"paper-epsilon": {}})
    (cell, _) = cells_of(experiment, experiment.lines[0], 1.0)
    spent = epsilon(noise_multiplier=cell.config.noise_multiplier, sample_rate=0.1, steps=10, delta=1e-5)
    assert 0.98 < spent <= 1.0


# -- wrong files and flags -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lines": {}}, "lines"),
        ({"lines": {"a": {"methd": "dp-sgd"}}}, "methd"),
        ({"lines": {"a": {}}}, "method"),
        ({"valeus": [1]}, "valeus"),
        ({"seeds": 0}, "seeds"),
        ({"as-coded": "somehow"}, "somehow"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, change, named):
    with pytest.raises(SettingError, match=named):
        toy(tmp_path, **change)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("DP-SGD@6,PCDP-SGD, one subspace@22", ["DP-SGD@6", "PCDP-SGD, one subspace@22"]),
        ("PDP-SGD, k = 100@*,RSDP*", ["PDP-SGD, k = 100@*", "RSDP*"]),
        ("public records*,DP-SGD@6", ["public records*", "DP-SGD@6"]),
        ("PDP-SGD*, k = 100@6", ["PDP-SGD*, k = 100@6"]),
        ("DP-SGD@6, DP-SGD@10,", ["DP-SGD@6", "DP-SGD@10"]),
        ("DP-SGD@6,PCDP-SGD, two@22,nobody", ["DP-SGD@6", "PCDP-SGD, two@22", "nobody"]),
        ("", []),
    ],
)
def test_names_of_cells_may_have_commas(text, found):
    assert read_experiment("pcdp-table2").patterns(text) == found


def test_a_pattern_that_matches_nothing_is_named():
    table = read_experiment("pcdp-table2")
    with pytest.raises(SettingError, match="PCDP-SGD, two@22"):
        table.chosen(["DP-SGD@6", "PCDP-SGD, two@22"])


def test_no_cell_is_lost_where_names_are_alike_and_no_seeds_are_refused(tmp_path):
    close = toy(tmp_path, values=[0.12345671, 0.12345672], **{"paper-epsilon": {}})
    assert len(close.chosen()) == 6
    assert len(close.chosen(["DP-SGD@*"])) == 2
    with pytest.raises(SettingError, match="seeds = 0"):
        reproduce(close, tmp_path / "out", seeds=0, only_done=True)


@pytest.mark.parametrize("name", available())
def test_the_command_that_is_kept_names_the_rows(name):
    experiment = read_experiment(name)
    some = experiment.chosen()[::2]
    rows = [ResultRow(line.name, value, None, None, 1.0, None, 1, None, 1.0, None, 1.0) for line, value in some]
    _, _, text = command(experiment, rows).partition(" --cells ")
    patterns = experiment.patterns(*shlex.split(text)) if text else []
    assert experiment.chosen(patterns) == some


def test_the_command_lists_runs_and_names_mistakes(tmp_path, capsys):
    toy(tmp_path)
    path, out = str(tmp_path / "toy.yaml"), str(tmp_path / "out")
    assert main(["reproduce", path, "--fast", "--cells", "public@*", "--out", out, "--quiet", "--workers", "1"]) == 0
    assert "public" in capsys.readouterr().out
    assert main(["reproduce", "pcdp-table9"]) == 2
    assert "pcdp-table2" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert "--list" in capsys.readouterr().err
    assert main(["reproduce", path, "--cells", "nothing@1", "--out", out]) == 2
    assert "DP-SGD@5" in capsys.readouterr().err
    assert main(["reproduce", "pcdp-table2", "--fast", "--data-dir", "/nowhere", "--out", out]) == 2
    assert "/nowhere" in capsys.readouterr().err


def test_the_list_names_every_experiment_with_its_runs(capsys):
    assert main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out
    for name in available():
        assert re.search(rf"^{name} .*\({read_experiment(name).runs} runs?\)$", listed, re.MULTILINE)
    assert "experiments/federated.py" in listed


@pytest.mark.data
def test_a_table_of_the_package_runs_shortened_on_real_records(tmp_path, capsys):
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(f"needs MNIST in the folder that GNOMON_DATA names ({error})")
    path = tmp_path / "short.yaml"
    path.write_text("like: pcdp-table2\nseeds: 1\nvalues: [6, 22]\nsettings: {private: 1000, epochs: 0.5}\n")
    assert main(["reproduce", str(path), "--out", str(tmp_path / "out"), "--workers", "1", "--quiet"]) == 0
    table = capsys.readouterr().out
    experiment = read_experiment("pcdp-table2")
    for line in experiment.lines:
        assert re.search(rf"^\| {re.escape(line.name)} \| \*\*[\d.]+\*\*.*\| \*\*[\d.]+\*\*", table, re.MULTILINE)
    assert "(91.9 ± 0.6;" in table
    assert (tmp_path / "out/short/result.png").exists()


def test_a_setting_that_a_method_does_not_have_is_refused_before_anything_runs(tmp_path):
    experiment = toy(tmp_path, lines={"a": {"method": "dp-sgd", "settings": {"rank": 5}}})
    with pytest.raises(SettingError, match=r"rank applies to .* only, not to dp-sgd"):
        reproduce(experiment, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
