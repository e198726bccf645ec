"""The benchmarks: every row runs, engines that compute something else are refused, and tables say why."""

from __future__ import annotations

import json
import math
import pickle
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from tests.helpers import benchmark

engines, measure, workloads = benchmark("engines"), benchmark("measure"), benchmark("workloads")
steps, growth = benchmark("steps"), benchmark("growth")
LINEAR = workloads.Row("linear", partial(nn.Linear, 8, 10), partial(workloads.labelled, (8,)), 4)


@pytest.mark.parametrize("row", [row for row in workloads.ROWS if row.threads == 1], ids=lambda row: row.name)
def test_every_row_builds_its_model_and_takes_a_plain_step(row):
    for name in row.needs:
        pytest.importorskip(name)
    small = pickle.loads(pickle.dumps(replace(row, batch=2)))  # a new process measures memory
    before = torch.random.get_rng_state()
    engines.prepare(small, engines.PLAIN)()
    torch.random.set_rng_state(before)


def test_names_of_rows_engines_and_charts_are_unique():
    for names in (
        [row.name for row in workloads.ROWS],
        [engine.name for engine in engines.ENGINES],
        [engine.colour for engine in engines.ENGINES],
        [sweep.name for sweep in growth.SWEEPS],
    ):
        assert len(set(names)) == len(names)
    assert engines.ENGINES[0] is engines.PLAIN


def test_a_basis_that_lasts_several_steps_is_timed_over_all_of_them():
    for row in workloads.ROWS:
        assert row.steps_per_turn % getattr(row.method, "every", 1) == 0


def test_every_point_of_a_chart_has_a_row_that_can_be_sent_to_another_process():
    for sweep in growth.SWEEPS:
        for line in sweep.lines:
            for value in sweep.values:
                assert pickle.loads(pickle.dumps(line.row(value))).batch == line.row(value).batch
    sizes = [growth.x_value(growth.SWEEPS[0], width) for width in growth.SWEEPS[0].values]
    assert sizes[0] <= 1e4
    assert sizes[-1] >= 9.9e7


@pytest.mark.parametrize("engine", [e for e in engines.ENGINES if e.private], ids=lambda engine: engine.name)
def test_engines_take_the_step_that_dp_sgd_defines(engine):
    for name in engine.needs:
        pytest.importorskip(name)
    engines.refuse_wrong_steps(LINEAR, engine)
    engines.refuse_wrong_steps(replace(LINEAR, max_physical_batch_size=2), engine)


@pytest.mark.parametrize(("fault", "message"), [("not clipped", "wrong by"), ("bias left out", "1 of 2 tensors")])
def test_an_engine_that_takes_another_step_is_refused(fault, message):
    def build(row, model, settings):
        training = engines.with_vmap(row, model, settings)
        if fault == "not clipped":
            return engines.plain_sgd(row, model, settings)

        def step(x, y):
            bias = model.bias.detach().clone()
            training.step(x, y)
            model.bias.data.copy_(bias)

        return engines.Training(model, step)

    with pytest.raises(measure.Cannot, match=message):
        engines.refuse_wrong_steps(LINEAR, replace(engines.VMAP, build=build))


def test_an_engine_without_the_method_gives_the_reason():
    opacus = next(engine for engine in engines.ENGINES if engine.name == "Opacus hooks")
    with pytest.raises(measure.Cannot, match=engines.ONLY_DP_SGD):
        engines.prepare(replace(LINEAR, method=workloads.DpLsgd()), opacus)


def test_dense_matrices_that_do_not_fit_are_refused():
    row = replace(LINEAR, model=partial(nn.Linear, 8, 10, device="meta"), batch=10**7)
    with pytest.raises(measure.Cannot, match="GiB"):
        engines.VMAP.build(row, row.model(), engines.Settings())


def test_ratios_are_those_of_the_times_and_slow_engines_take_fewer_turns():
    pauses = {"base": 0.002, "slow": 0.02}
    times = measure.interleaved_times(
        {name: partial(time.sleep, pause) for name, pause in pauses.items()}, "base", 6, seconds=0.1, minimum=2
    )
    assert times["base"]["ratio"] == 1
    assert 2 < times["slow"]["ratio"] < 11
    assert times["slow"]["turns"] == 2


def test_rows_are_added_to_those_of_earlier_runs(tmp_path):
    path = tmp_path / "results" / "steps.json"
    measure.save(path, {"a": 1, "b": 1})
    assert measure.save(path, {"b": 2}) == {"a": 1, "b": 2}
    assert json.loads(path.read_text())["rows"] == {"a": 1, "b": 2}


def test_the_table_has_one_footnote_per_reason():
    numbers = {"milliseconds": 2.0, "cpu_milliseconds": 2.0, "ratio": 1.0, "cpu_ratio": 1.0}
    cannot = {"cannot": engines.ONLY_DP_SGD}
    done = {"plain SGD": numbers, "Gnomon": {**numbers, "ratio": 1.25}, "Opacus hooks": numbers, "FastDP": numbers}
    refused = {"plain SGD": numbers, "Gnomon": numbers, "Opacus hooks": cannot, "FastDP": cannot}
    text = steps.table({"x": {"threads": 1, "engines": done}, "y": {"threads": 2, "engines": refused}})
    assert "| x | time | 2.00 ms | 1.25 | 1.00 | 1.00 |" in text
    assert "| y | time | 2.00 ms | 1.00 | – [1] | – [1] |" in text
    assert "| y | cpu time" not in text
    assert text.endswith("1. Cannot: offers DP-SGD only.\n")


def test_an_unknown_selection_lists_the_rows(capsys):
    parser = steps.arguments()
    with pytest.raises(SystemExit):
        steps.selected(parser.parse_args(["--only", "no such row"]), parser)
    error = capsys.readouterr().err
    assert "no such row" in error
    assert all(row.name in error for row in workloads.ROWS)


def test_options_select_rows():
    parser = steps.arguments()
    select = lambda *words: steps.selected(parser.parse_args(words), parser)
    assert [row.name for row in select("--only", "vit", "resnet")] == [
        "DP-SGD, ViT, 32x32 images, B = 64",
        "DP-LSGD K = 10, ResNet-20, B = 64",
    ]
    assert {row.threads for row in select("--threads", "2")} == {2}
    assert not any(row.large for row in select())
    assert any(row.large for row in select("--large"))


def test_extrapolation_counts_what_a_run_costs_once_only_once(monkeypatch):
    row = replace(LINEAR, run_steps=1000, dataset=20)
    seconds = {"plain SGD": 1.0, "plain SGD, short": 0.2, "Gnomon": 2 + 2.0, "Gnomon, short": 2 + 0.4}  # 2 s at once
    times = {name: {"milliseconds": 1e3 * s, "cpu_milliseconds": 1e3 * s} for name, s in seconds.items()}
    monkeypatch.setattr(steps, "interleaved_times", lambda *_, **__: times)
    args = steps.arguments().parse_args([])
    found = steps.study(row, {"plain SGD": print, "Gnomon": print}, 100, args)
    assert math.isclose(found["plain SGD"]["seconds"], 10)
    assert math.isclose(found["Gnomon"]["seconds"], 22)
    assert math.isclose(found["Gnomon"]["ratio"], 2.2)
