"""Comparisons: one split, kept cells, the honest baseline, a table and a picture."""

from __future__ import annotations

import csv
import dataclasses
import json
import shlex
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import gnomon
from gnomon import data, files, models
from gnomon.cli.main import main
from gnomon.errors import SettingError
from gnomon.figures.comparison import comparison_pictures
from gnomon.report import report
from gnomon.report.page import read_folder
from gnomon.runs.builders import records
from gnomon.runs.config import TrainConfig
from gnomon.studies import compare
from gnomon.studies.cells import CellsFailed
from gnomon.studies.method_specs import MethodSpec, method_specs, refuse_unused_settings, split_methods
from gnomon.training import evaluate, train_on_public

SMALL = TrainConfig(epochs=2.0, public_records=40, rank=10)


def test_every_method_of_a_comparison_trains_on_the_same_private_records():
    source = data.load("digits")
    cells = compare.grid(SMALL, ["dp-sgd", "pcdp", "public-only"], [2.0], 1)
    splits = [records(cell.config, source) for cell in cells]
    assert torch.equal(splits[0].private.inputs, splits[1].private.inputs)
    assert torch.equal(splits[1].public.inputs, splits[2].public.inputs)
    assert {cell.config.dataset_size for cell in cells} == {len(source.train) - 40}


def test_finished_cells_are_kept_and_the_rest_goes_on(tmp_path, monkeypatch):
    cells = compare.grid(SMALL, ["dp-sgd", "rsdp"], [2.0, 8.0], 1)
    first = compare.run_grid(cells[:2], tmp_path, progress=False)
    ran = []
    real = compare.run_cell
    monkeypatch.setattr(compare, "run_cell", lambda cell: ran.append(cell.label) or real(cell))
    every = compare.run_grid(cells, tmp_path, progress=False)
    assert ran == ["rsdp", "rsdp"]
    assert every[:2] == first


@pytest.mark.parametrize(
    "content",
    ['{"accuracy": 0.5, "hist', "", "[]", "{}", '{"accuracy": 1, "history": {"epoch": [1], "loss": []}}', "\xff"],
)
def test_a_damaged_cell_is_named_and_run_again(tmp_path, content):
    cells = compare.grid(SMALL, ["dp-sgd"], [2.0, 8.0], 1)
    first = compare.run_grid(cells, tmp_path, progress=False)
    path = tmp_path / "cells" / f"{cells[0].key}.json"
    path.write_text(content, encoding="latin-1")
    with pytest.warns(UserWarning, match=f"{cells[0].key}.json"):
        assert compare.stored_results(cells, tmp_path) == first[1:]
    with pytest.warns(UserWarning, match=f"{cells[0].key}.json"):
        again = compare.run_grid(cells, tmp_path, progress=False)
    assert [one["accuracy"] for one in again] == [one["accuracy"] for one in first]


def test_a_cell_s_name_changes_with_its_settings():
    keys = {cell.key for cell in compare.grid(SMALL, ["dp-sgd", "pcdp", "pcdp:rank=5"], [1.0, 2.0], 2)}
    assert len(keys) == 12


def test_a_cell_keeps_its_name_under_another_label_and_is_small(tmp_path):
    (plain,) = compare.grid(SMALL, ["pcdp"], [2.0], 1)
    (spelt,) = compare.grid(SMALL, ["pcdp:rank=10"], [2.0], 1)
    (public,) = compare.grid(SMALL, ["public-only"], [2.0], 1)
    assert plain.key == spelt.key != public.key
    (found,) = compare.run_grid([plain], tmp_path, progress=False)
    (again,) = compare.stored_results([spelt], tmp_path)
    assert again == found | {"label": "pcdp:rank=10"}
    assert [row["epoch"] for row in found["history"]] == [1.0, 2.0]
    (path,) = (tmp_path / "cells").glob("*.json")
    assert path.stat().st_size < 4000


def test_a_run_of_a_study_ends_with_the_accuracy_on_its_own_records_marked_as_unprotected(tmp_path):
    (cell,) = compare.grid(dataclasses.replace(SMALL, epochs=20, lr=2.0), ["dp-sgd"], [0.01], 1)
    (found,) = compare.run_grid([cell], tmp_path, progress=False)
    seen = [compare.TRAIN_ACCURACY in row for row in found["history"]]
    assert seen == [False] * 19 + [True]
    assert found["history"][-1][compare.TRAIN_ACCURACY] > 0.9


def test_a_run_kept_without_the_accuracy_on_its_own_records_is_made_again_where_that_is_asked(tmp_path):
    (cell,) = compare.grid(SMALL, ["dp-sgd"], [2.0], 1)
    compare.run_grid([cell], tmp_path, progress=False)
    path = tmp_path / "cells" / f"{cell.key}.json"
    whole = path.read_text()
    old = json.loads(whole)
    del old["history"][compare.TRAIN_ACCURACY]
    path.write_text(json.dumps(old))
    asked = dataclasses.replace(cell, scored_on_train=True)
    assert asked.key == cell.key
    (kept,) = compare.run_grid([cell], tmp_path, progress=False)
    assert compare.TRAIN_ACCURACY not in kept["history"][-1]
    assert compare.stored_results([asked], tmp_path) == []
    again, _ = compare.run_grid([cell, asked], tmp_path, progress=False)
    assert again["history"][-1][compare.TRAIN_ACCURACY] == json.loads(whole)["history"][compare.TRAIN_ACCURACY][-1]


def test_all_methods_protect_the_same_records_also_where_some_have_copies(tmp_path):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 4, generator=generator)
    inputs[200:] = inputs[:100]
    np.savez(tmp_path / "own.npz", x_train=inputs, y_train=(inputs[:, 0] > 0).long(), x_test=inputs[:9] + 9,
             y_test=torch.zeros(9).long(), classes=2, x_public=inputs[:60] + 5, y_public=torch.zeros(60).long(),
             )  # fmt: skip
    base = TrainConfig(data=f"npz:{tmp_path / 'own.npz'}", dataset_size=250, public_records=50, epochs=1.0)
    cells = compare.grid(base, ["dp-sgd", "pcdp:rank=5", "public-only", "dp-sgd:warm-start=public"], [2.0], 1)
    splits = [records(cell.config, data.load(base.data)) for cell in cells]
    assert [len(one.public) for one in splits] == [0, 50, 50, 50]
    assert {len(one.private) for one in splits} == {300}
    for one in splits:
        assert torch.equal(one.private.inputs, splits[0].private.inputs)
        assert data.overlap(one.private, splits[1].public) == 0


def test_methods_are_not_compared_by_their_own_training_records(tmp_path):
    inputs = torch.randn(60, 4)
    labels = (inputs[:, 0] > 0).long()
    np.savez(tmp_path / "own.npz", x_train=inputs, y_train=labels, x_test=inputs[:20], y_test=labels[:20], classes=2)
    base = TrainConfig(data=f"npz:{tmp_path / 'own.npz'}", dataset_size=60, epochs=1.0)
    with pytest.raises(CellsFailed, match="test records that are not training records"):
        compare.run_grid(compare.grid(base, ["dp-sgd"], [2.0], 1), tmp_path, progress=False)


def test_cells_run_in_parallel_processes(tmp_path):
    cells = compare.grid(SMALL, ["dp-sgd"], [2.0], 2)
    found = compare.run_grid(cells, tmp_path, workers=2, progress=False)
    assert [one["label"] for one in found] == ["dp-sgd", "dp-sgd"]
    assert found[0]["accuracy"] != found[1]["accuracy"]


def test_the_command_writes_table_and_picture_and_adds_the_public_line(tmp_path, capsys):
    settings = [
        "--epochs",
        "1",
        "--public-records",
        "40",
        "--seeds",
        "2",
        "--noise-multipliers",
        "4,8",
        "--workers",
        "1",
    ]
    assert main(["compare", *settings, "--methods", "dp-sgd,pcdp", "--quiet", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "public-only" in said
    assert "±" in said
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    assert len(rows) == 5
    assert {row["method"] for row in rows} == {"dp-sgd", "pcdp", "public-only"}
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "comparison.svg").read_text()
    kept = json.loads(next((tmp_path / "cells").glob("*.json")).read_text())
    assert "settings" in kept


def test_python_and_the_command_line_write_the_same_comparison(tmp_path):
    settings = {"data": "digits", "epochs": 1, "public-records": 40}
    methods = ["dp-sgd", MethodSpec("pcdp", {"rank": 5})]
    result = gnomon.compare(
        settings, methods, noise_multipliers=[4.0], seeds=1, folder=tmp_path / "python", progress=False
    )
    flags = [
        "--epochs",
        "1",
        "--public-records",
        "40",
        "--noise-multipliers",
        "4",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--quiet",
    ]
    assert main(["compare", *flags, "--methods", "dp-sgd,pcdp:rank=5", "--out", str(tmp_path / "command")]) == 0
    assert [row.method for row in result.rows] == ["dp-sgd", "pcdp:rank=5", "public-only"]
    for name in ("comparison.md", "comparison.json"):
        assert (tmp_path / "python" / name).read_text() == (tmp_path / "command" / name).read_text()
    assert result.markdown() == (tmp_path / "python/comparison.md").read_text()
    names = ["comparison.csv", "comparison.json", "comparison.md", "comparison.png", "comparison.svg"]
    assert sorted(path.name for path in (tmp_path / "python").glob("comparison.*")) == names


def test_a_comparison_whose_runs_failed_in_part_has_the_others(tmp_path, monkeypatch):
    real, config = compare.run_cell, dataclasses.replace(SMALL, rank=None)

    def broken(cell):
        if cell.label == "rsdp":
            raise ArithmeticError("no mask")
        return real(cell)

    monkeypatch.setattr(compare, "run_cell", broken)
    with pytest.raises(compare.ComparisonFailed, match="no mask") as raised:
        compare.compare(config, ["dp-sgd", "rsdp"], noise_multipliers=[4.0], seeds=1, folder=tmp_path, progress=False)
    assert [row.method for row in raised.value.comparison.rows] == ["dp-sgd", "public-only"]
    assert (tmp_path / "comparison.md").exists()


def test_a_method_as_data_is_the_method_as_text():
    for text, spec in (
        ("pcdp:rank=50,subspace-scope=per-tensor", MethodSpec("pcdp", {"rank": 50.0, "subspace-scope": "per-tensor"})),
        ("pcdp:rank=50,scope=per-tensor", MethodSpec("pcdp", {"rank": 50.0, "scope": "per-tensor"})),
        ("dp-lsgd:local-steps=3,local-lr=0.1", MethodSpec("dp-lsgd", {"local_steps": 3, "local-lr": 0.1})),
        ("public-only", MethodSpec("public-only")),
    ):
        assert spec.label == text
        (parsed,), (given,) = (compare.grid(TrainConfig(), [method], [2.0], 1) for method in (text, spec))
        assert parsed == given
    with pytest.raises(SettingError, match="--seeds"):
        MethodSpec("dp-sgd", {"seed": 3})


def test_a_method_under_a_former_setting_name_is_the_same_run():
    """Labels in kept results have former names; the key of a run depends on its settings, not on the label."""
    labels = ["pcdp:rank=5,scope=per-tensor", "pcdp:rank=5,subspace-scope=per-tensor"]
    former, current = (compare.grid(TrainConfig(), [label], [2.0], 1)[0] for label in labels)
    assert [former.label, current.label] == labels
    assert former.config == current.config
    assert former.key == current.key
    assert MethodSpec("pcdp", {"scope": "per-tensor"}).settings == {"subspace_scope": "per-tensor"}
    with pytest.raises(SettingError, match="own"):
        compare.refuse_unused_settings(
            TrainConfig(subspace_scope="per-tensor"), [MethodSpec("pcdp", {"scope": "global"})]
        )


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--methods", "dp-sgd,magic"], "magic"),
        (["--methods", "pcdp:rank"], "pcdp:rank"),
        (["--methods", "pcdp:rnak=3"], "rank"),
        (["--noise-multipliers", "four"], "four"),
        (["--seeds", "0"], "seeds = 0"),
        (["--workers", "-2"], "workers = -2"),
        (["--noise-multipliers", "4,nan"], "nan"),
        (["--noise-multipliers", "0"], "noise-multipliers = 0"),
        (["--public-records", "0"], "--public-records = 0"),
        (["--methods", "dp-sgd:seed=3"], "seed = 3 cannot be set for one method"),
        (["--methods", "dp-sgd:insecure_noise_seed=3"], "--seeds"),
        (["--local-steps", "3", "--methods", "pcdp"], "write pcdp:local-steps=3"),
        (["--local-lr", "0.0123456789", "--methods", "dp-sgd"], "write dp-sgd:local-lr=0.0123456789"),
        (
            ["--mask-rate", "0.5", "--methods", "dp-sgd,pcdp"],
            "mask-rate = 0.5 has no effect on the compared methods; add a method that has this setting: rsdp",
        ),
        (["--rank", "20", "--methods", "pcdp:rank=50,public-only"], "rank = 20"),
        (["--target-epsilons", "one"], "target-epsilons = 'one'"),
        (["--target-epsilons", "-1"], "target-epsilons = -1.0"),
        (["--target-epsilons", "1", "--noise-multipliers", "2"], "not both"),
    ],
)
def test_a_wrong_comparison_is_named(flags, named, tmp_path, capsys):
    assert main(["compare", *flags, "--quiet", "--out", str(tmp_path / "x")]) == 2
    assert named in capsys.readouterr().err


@pytest.fixture
def own(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", inputs=rng.normal(size=(300, 6)), targets=rng.integers(0, 2, 300), classes=2)
    flags = ["--data", f"npz:{tmp_path / 'own.npz'}", "--dataset-size", "240", "--batch-size", "40", "--epochs", "1"]
    return [*flags, "--noise-multipliers", "4", "--seeds", "1", "--workers", "1", "--quiet"]


def test_own_data_need_declared_public_records_only_where_a_method_reads_them(own, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert main(["compare", *own, "--methods", "dp-sgd,rsdp", *out]) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open()))
    assert [row["method"] for row in rows] == ["dp-sgd", "rsdp"]
    capsys.readouterr()
    for methods in ("dp-sgd,pcdp", "dp-sgd,public-only", "dp-sgd:warm-start=public"):
        assert main(["compare", *own, "--methods", methods, *out]) == 2
        assert f"{methods.split(',')[-1]} needs public records, and npz:" in capsys.readouterr().err
    assert main(["compare", *own, "--methods", "dp-sgd", "--public-records", "30", *out]) == 2
    assert "public-only needs public records" in capsys.readouterr().err
    arrays = dict(np.load(tmp_path / "own.npz"))
    public = {"x_public": arrays["inputs"][:50] + 9, "y_public": arrays["targets"][:50]}
    np.savez(tmp_path / "own.npz", **arrays, **public)
    assert main(["compare", *own, "--methods", "dp-sgd,pcdp:rank=3", "--public-records", "30", *out]) == 0
    assert "public-only" in capsys.readouterr().out
    result = compare.compare(
        {"data": str(tmp_path / "own.npz"), "dataset-size": 240, "batch-size": 40, "epochs": 1},
        ["dp-sgd"], noise_multipliers=[4.0], seeds=1, folder=tmp_path / "all", progress=False,
    )  # fmt: skip
    assert {cell.config.public_records for cell in result.cells} == {50}
    assert [row.method for row in result.rows] == ["dp-sgd", "public-only"]


def test_an_unknown_method_is_named_before_anything_else(own, tmp_path, capsys):
    assert main(["compare", *own[2:], "--data", "npz:missing.npz", "--methods", "magic"]) == 2
    assert "magic" in capsys.readouterr().err


def test_methods_are_compared_at_given_epsilons_whatever_noise_each_needs(tmp_path, capsys):
    settings = ["--epochs", "1", "--public-records", "40", "--seeds", "1", "--target-epsilons", "2,4", "--workers", "1"]
    methods = "dp-sgd,dp-sgd:sampler=truncated"
    assert main(["compare", *settings, "--methods", methods, "--quiet", "--out", str(tmp_path)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "| accuracy, % | epsilon 2 | epsilon 4 |"
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    assert [row["target_epsilon"] for row in rows] == ["2.0", "4.0", "2.0", "4.0", ""]
    assert len({row["noise_multiplier"] for row in rows[:4]}) == 4
    assert all(float(row["epsilon"]) <= float(row["target_epsilon"]) for row in rows[:4])
    repeat = read_folder(tmp_path).section().command
    assert "--target-epsilons 2,4" in repeat
    assert "--noise-multipliers" not in repeat
    assert main([*shlex.split(repeat)[1:], "--quiet", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == table[0]


def test_a_noise_level_in_the_grid_is_no_budget():
    (noise,) = compare.grid(SMALL, ["dp-sgd"], [2.0], 1)
    (budget,) = compare.grid(SMALL, ["dp-sgd"], [], 1, target_epsilons=[2.0])
    assert (noise.config.target_epsilon, budget.config.target_epsilon) == (None, 2.0)
    assert budget.config.noise_multiplier is None
    for noises, targets in (([], []), ([1.0], [1.0])):
        with pytest.raises(SettingError, match="target-epsilons"):
            compare.grid(SMALL, ["dp-sgd"], noises, 1, target_epsilons=targets)


def test_cells_of_built_in_data_keep_their_public_records(tmp_path):
    (cell,) = compare.grid(TrainConfig(), ["dp-sgd"], [2.0], 1)
    assert (cell.config.public_records, cell.config.private_records) == (100, 1337)


def test_methods_may_carry_settings_of_their_own():
    (cell,) = compare.grid(SMALL, ["pcdp:rank=5,subspace-scope=per-tensor"], [1.0], 1)
    assert (cell.config.rank, cell.config.subspace_scope) == (5.0, "per-tensor")
    with pytest.raises(SettingError):
        compare.grid(SMALL, ["pcdp:subspace-scope=sideways"], [1.0], 1)


def test_the_budget_of_a_run_whose_settings_are_taken_ends_no_run_at_a_noise_level():
    (cell,) = compare.grid(dataclasses.replace(SMALL, target_epsilon=1.0), ["dp-sgd"], [5.0], 1)
    assert (cell.config.noise_multiplier, cell.config.target_epsilon) == (5.0, None)


def test_a_method_with_its_own_noise_is_one_cell_whatever_the_budgets():
    (cell,) = compare.grid(SMALL, ["dp-sgd:noise-multiplier=3"], [], 1, target_epsilons=[1.0, 3.0])
    assert (cell.config.noise_multiplier, cell.config.target_epsilon) == (3.0, None)


def test_a_method_with_its_own_noise_is_run_once_for_each_seed():
    cells = compare.grid(SMALL, ["dp-sgd:noise-multiplier=3", "dp-sgd", "dp-sgd"], [2.0, 8.0], 2)
    counts = Counter((cell.label, cell.config.noise_multiplier) for cell in cells)
    assert counts == {("dp-sgd:noise-multiplier=3", 3.0): 2, ("dp-sgd", 2.0): 2, ("dp-sgd", 8.0): 2}
    assert len({cell.key for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    "constraint", ["l1:5", "l2:1", "simplex", "simplex:2", "box:-1,1.5", "group:5,10", "nuclear:5,1e1"]
)
def test_a_value_may_have_a_comma(constraint):
    text = f"dp-comp-minibatch:constraint={constraint},sketch-dimension=50,dp-sgd"
    methods = split_methods(text)
    assert methods == [text.removesuffix(",dp-sgd"), "dp-sgd"]
    first, _ = compare.grid(SMALL, methods, [2.0], 1)
    assert (first.config.constraint, first.config.sketch_dimension) == (constraint, 50)
    last = split_methods(f"dp-sgd,dp-comp-minibatch:sketch-dimension=50,constraint={constraint},public-only")
    assert last[1:] == [f"dp-comp-minibatch:sketch-dimension=50,constraint={constraint}", "public-only"]


def test_common_settings_go_to_the_methods_that_have_them():
    refuse_unused_settings(
        TrainConfig(local_steps=3, rank=20, mask_rate=0.5), method_specs(["dp-lsgd", "pcdp", "rsdp", "dp-sgd"])
    )
    cells = compare.grid(TrainConfig(local_steps=3), ["dp-sgd", "dp-lsgd", "pcdp:local-steps=4"], [2.0], 1)
    assert [cell.config.local_steps for cell in cells] == [None, 3, 4]
    compare.grid(TrainConfig(local_steps=3), ["pcdp"], [2.0], 1)  # a line of an experiment at a time


def test_public_records_alone_teach_something_and_read_nothing_private():
    source = data.load("digits")
    split = data.public_private(source.train, private=1000, public=100)
    model = models.build("logistic", source.input_shape, source.classes)
    loss = nn.CrossEntropyLoss(reduction="none")
    train_on_public(model, loss, split.public)
    assert evaluate(model, loss, source.test)["accuracy"] > 0.6
    assert all(p.grad is None for p in model.parameters())


def test_an_interrupted_cell_is_not_kept_as_finished(tmp_path, monkeypatch):
    cells = compare.grid(SMALL, ["dp-sgd"], [2.0], 1)
    real = compare.build_trainer

    def interrupted(*args, **settings):
        trainer = real(*args, **settings)
        fit = trainer.fit
        trainer.fit = lambda *a, **k: dataclasses.replace(fit(*a, **k), stopped="interrupted")
        return trainer

    monkeypatch.setattr(compare, "build_trainer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare.run_grid(cells, tmp_path, progress=False)
    assert not list((tmp_path / "cells").glob("*.json"))


def test_one_seed_has_no_deviation_and_no_band(tmp_path):
    runs = [
        {"label": "a", "noise_multiplier": s, "epsilon": 1 / s, "accuracy": 0.5, "seconds": 1.0} for s in (1.0, 2.0)
    ]
    one = compare.summarise(runs)
    assert [row.deviation for row in one] == [None, None]
    assert "±" not in compare.markdown(one)
    (tmp_path / "comparison.csv").write_text(compare.csv_table(one))
    assert [row["deviation"] for row in csv.DictReader((tmp_path / "comparison.csv").open())] == ["", ""]
    read = read_folder(tmp_path)
    assert [row.deviation for row in read.rows] == [None, None]
    (picture,) = comparison_pictures(read.rows, [])
    assert picture.caption == "Accuracy against privacy, one seed."
    assert not picture.figure.axes[0].collections
    assert "Accuracy against privacy, one seed." in report([tmp_path], figures=False).read_text()
    (picture,) = comparison_pictures(compare.summarise([*runs, runs[0] | {"accuracy": 0.6}]), [])
    assert "bands of one standard deviation over seeds where there are several" in picture.caption
    assert len(picture.figure.axes[0].collections) == 1


def test_the_page_shows_a_shared_cell_under_the_label_of_its_comparison(tmp_path):
    first = compare.grid(SMALL, ["pcdp"], [2.0], 1)
    compare.run_grid(first, tmp_path, progress=False)
    methods = ["pcdp:rank=10", "dp-sgd"]
    cells = compare.grid(SMALL, methods, [2.0], 1)
    assert cells[0].key == first[0].key
    comparison_of(methods, cells, compare.stored_results(cells, tmp_path), tmp_path).write()
    read = read_folder(tmp_path)
    assert [cell["label"] for cell in read.cells] == ["pcdp:rank=10"]  # dp-sgd has not been run
    assert "learning" in [one.name for one in comparison_pictures(read.rows, read.cells)]
    (tmp_path / "comparison.json").unlink()
    assert read_folder(tmp_path).cells == [], "without its settings, nothing says which runs belong to it"


def comparison_of(methods, cells, results, folder):
    return compare.Comparison(SMALL, tuple(methods), (2.0,), (), 1, tuple(cells), tuple(results), folder)


def test_a_failure_while_writing_leaves_the_results_that_were_there(tmp_path, monkeypatch):
    cells = compare.grid(SMALL, ["dp-sgd"], [2.0], 1)
    run = {"label": "dp-sgd", "noise_multiplier": 2.0, "epsilon": 1.0, "accuracy": 0.5, "seconds": 1.0}
    comparison = comparison_of(["dp-sgd"], cells, [run], tmp_path)
    comparison.write()
    before = {name: (tmp_path / name).read_bytes() for name in ("comparison.json", "comparison.csv", "comparison.md")}

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    for changed in (comparison, dataclasses.replace(comparison, methods=("rsdp",))):
        with pytest.raises(OSError, match="intact"):
            changed.write()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_columns_of_the_table_are_told_apart_by_epsilon():
    rows = [
        compare.ComparisonRow("a", 2.0, 1.0, 0.5, 0.0, 1, 1.0),
        compare.ComparisonRow("b", 2.0, 0.7, 0.5, 0.0, 1, 1.0),
    ]
    table = compare.markdown(rows)
    assert "epsilon 1.000" in table
    assert "epsilon 0.700" in table


@pytest.mark.data
@pytest.mark.slow
def test_a_hundred_public_digits_of_mnist_beat_many_a_private_run():
    try:
        source = data.load("mnist")
    except data.DataError as error:
        pytest.skip(f"needs MNIST in the folder that GNOMON_DATA names ({error})")
    split = data.public_private(source.train, private=10_000, public=100)
    model = models.build("cnn", source.input_shape, source.classes)
    loss = nn.CrossEntropyLoss(reduction="none")
    train_on_public(model, loss, split.public)
    assert evaluate(model, loss, source.test)["accuracy"] > 0.75
