"""The page about runs: complete in itself, honest about what is protected, and it works in a browser."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from gnomon.cli.federate import add_command as add_federate
from gnomon.cli.main import main
from gnomon.cli.settings import settings_of
from gnomon.cli.train import add_command as add_train
from gnomon.errors import DataError, SettingError
from gnomon.figures.curve import training_curve
from gnomon.figures.picture import WARNING, Picture, blank
from gnomon.figures.training import training_pictures
from gnomon.report import render
from gnomon.report import report as report_with_figures
from gnomon.report.commands import run_command
from gnomon.report.page import Section, read_folder
from gnomon.runs.config import TrainConfig, default_settings
from gnomon.runs.federate_config import FederateConfig, federated_defaults
from gnomon.runs.train import train
from gnomon.statement.explanation import explain, guessing_accuracy
from gnomon.studies.reproduce import read_experiment
from gnomon.studies.reproduce.run import done_rows, write
from tests.report.browser import CHROMIUM, WHY_NOT, Browser

KEPT = Path(__file__).parents[2] / "experiments/results"
STATEMENT = {
    "epsilon": 1.0, "delta": 1e-5, "unit": "one record", "adjacency": "add-remove", "sampler": "Poisson q = 0.1",
    "accountant": "PLD", "noise_multiplier": 13.18, "max_grad_norm": 1.0, "expected_batch_size": 10.0, "steps": 1234,
    "method": "dp-sgd: gradient, flat clipping", "guarantee": True, "caveats": [], "not_covered": ["side channels"],
}  # fmt: skip
AUDIT = {
    "sentence": "claimed epsilon 1.00, audited lower bound 0.71", "confidence": 0.999, "violated": [],
    "bounds": [{"name": "S and W", "mu": 0.3, "epsilon": 0.71}, {"name": "K", "mu": 0.1, "epsilon": None}],
}  # fmt: skip
LEDGER = {"epsilon": 2.5, "runs": 3, "steps": 77, "budget": {"epsilon": 4.0, "delta": 1e-5}, "accountant": "PLD"}
LEDGER |= {"dataset": "name:scans"}


def history(epochs: int = 3) -> list[dict]:
    return [
        {"epoch": float(n), "step": 6 * n, "epsilon": 0.3 * n, "seconds": 1.5 * n, "validation/accuracy": 0.8 + n / 50,
         "validation/loss": 2.0 / n, "unprotected/loss": 2.5 / n, "unprotected/clipped": 0.5,
         **{f"unprotected/incremental/{name}": 1.0 / n for name in ("mean", "q25", "q50", "q75")}}
        for n in range(1, epochs + 1)
    ]  # fmt: skip


def folder_of_a_run(place, statement=STATEMENT, **files):
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.yaml").write_text(TrainConfig(target_epsilon=1.0, epochs=3.0).to_yaml())
    (place / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in history()) + "\n")
    (place / "statement.json").write_text(json.dumps(statement))
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    return place


def folder_of_a_comparison(place):
    (place / "cells").mkdir(parents=True)
    rows = [
        ("dp-sgd", 2.0, 1.0, 0.9),
        ("dp-sgd", 8.0, 0.2, 0.5),
        ("pcdp", 2.0, 1.0, 0.8),
        ("public-only", "", 0.0, 0.7),
    ]
    with (place / "comparison.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "noise_multiplier", "epsilon", "mean", "deviation", "seeds", "seconds"])
        writer.writerows([[*row, 0.01, 2, 11.0 * n] for n, row in enumerate(rows)])
    cell = {"label": "dp-sgd", "noise_multiplier": 8.0, "history": history(), "settings": {"data": "digits"}}
    (place / "cells/a.json").write_text(json.dumps(cell))
    (place / "cells/stale.json").write_text(json.dumps(cell | {"label": "an-earlier-grid"}))
    plan = {"settings": {"data": "digits", "epochs": 3.0}, "methods": ["dp-sgd", "pcdp"], "cells": [["dp-sgd", "a"]],
            "noise_multipliers": [2.0, 8.0], "seeds": 2}  # fmt: skip
    (place / "comparison.json").write_text(json.dumps(plan))
    return place


def report(folders, out=None, **settings):
    return report_with_figures(folders, out, figures=False, **settings)


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.1, 1e-5), (1.0, 1e-5), (3.0, 1e-3), (900.0, 1e-5)])
def test_the_guess_is_what_the_best_test_between_two_neighbours_reaches(epsilon, delta):
    # the extreme mechanism of (epsilon, delta): with probability delta it tells, else randomised response
    told = delta + (1 - delta) / (1 + math.exp(-epsilon))
    assert guessing_accuracy(epsilon, delta) == pytest.approx(told if epsilon < 700 else 1.0, abs=1e-9)


def test_no_guarantee_is_said_in_so_many_words():
    assert "no privacy claim" in explain(STATEMENT | {"guarantee": False})[0]
    assert "nothing is promised" in explain(STATEMENT | {"epsilon": None, "guarantee": False})[0]
    assert "differentially private" in explain(STATEMENT)[0]


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_the_promise_is_about_what_the_statement_protects(adjacency, tmp_path):
    records = STATEMENT | {"adjacency": adjacency}
    clients = records | {"unit": "one client with all its records"}
    assert "client" not in " ".join(explain(records))
    assert "record" not in " ".join(explain(clients))
    assert "because a client was in the data" in explain(clients)[-1]
    page = report([folder_of_a_run(tmp_path / "run", clients)]).read_text()
    assert "one client " in re.search(r"neighbouring data</th><td>([^<]*)", page)[1]
    assert "10 clients per step" in page
    assert "record" not in " ".join(explain(clients | {"adjacency": "of its own"}))


# -- the page --------------------------------------------------------------------------------------


def test_a_page_holds_the_promise_the_pictures_and_the_command(tmp_path):
    page = report([folder_of_a_run(tmp_path / "run")]).read_text()
    assert "epsilon = 1.000 at delta = 1e-05" in page
    assert "73.2 %" in page
    assert "1,234" in page
    assert "gnomon train --data digits --target-epsilon 1 --epochs 3" in page
    assert page.count('role="img"') == 5
    assert all(len(alt) > 20 for alt in re.findall(r'aria-label="([^"]*)"', page) if "against" in alt)


def test_a_page_loads_nothing_and_shares_no_id(tmp_path):
    page = report([folder_of_a_run(tmp_path / "a"), folder_of_a_run(tmp_path / "b")], tmp_path / "p.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:,)', page)
    assert not re.findall(r"url\((?!#)|@import|https?://", page)
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    for used in re.findall(r'(?:url\(|href=")#([\w]+)', page):
        assert used in ids


def test_what_a_run_says_is_text_on_the_page_and_never_markup(tmp_path):
    place = folder_of_a_run(tmp_path / "run", STATEMENT | {"caveats": ["<script>alert(1)</script>"]})
    assert "<script>alert" not in report([place]).read_text()
    assert "<img" not in render([Section("<img src=x>", "a", "run", [], "gnomon")])
    figure, (axes,) = blank()
    axes.set_title("</svg><script>alert(1)</script>")
    assert "<script>" not in Picture("a", "b", '"><script>', figure).inline()


def test_unprotected_values_are_marked_or_left_out(tmp_path):
    place = folder_of_a_run(tmp_path / "run")
    marked = report([place], tmp_path / "all.html").read_text()
    assert "Keep this page with the data holder" in marked
    assert marked.count('<span class="tag">unprotected</span>') == 3  # twice at a picture, once in the warning
    clean = report([place], tmp_path / "clean.html", unprotected=False).read_text()
    assert "Keep this page" not in clean
    assert 'class="tag"' not in clean
    assert clean.count('role="img"') == 4  # the picture of norms is gone


def test_audit_and_ledger_are_shown_when_they_are_there(tmp_path):
    page = report([folder_of_a_run(tmp_path / "run", STATEMENT | {"ledger": LEDGER}, audit=AUDIT)]).read_text()
    assert "audited lower bound 0.71" in page
    assert "infinite" in page
    assert "epsilon of all runs together" in page
    assert "epsilon 4 at delta = 1e-05" in page
    assert ">3<" in page
    for about in (LEDGER | {"dataset": "3f2a90c1d4e5b607"}, {"run": "0123456789ab", "head": "4:ab"}):
        folder = folder_of_a_run(tmp_path / about.get("run", "older"), STATEMENT | {"ledger": about})
        page = report([folder]).read_text()
        assert "for the data holder: `gnomon ledger show`" in page
        assert "epsilon 4 at" not in page, "known by its records: also of a version that stated the total"
    without = report([folder_of_a_run(tmp_path / "other")]).read_text()
    assert "Audit" not in without
    assert "Ledger" not in without


def test_a_comparison_shows_its_own_cells_and_the_public_line(tmp_path):
    page = report([folder_of_a_comparison(tmp_path / "c")]).read_text()
    assert "an-earlier-grid" not in page
    assert "public-only, epsilon 0" in page
    assert "makes a privacy claim" in page.replace("\n", " ")
    assert "gnomon compare --methods dp-sgd,pcdp --noise-multipliers 2,8 --seeds 2 --data digits --epochs 3" in page


def test_a_killed_run_still_has_a_page(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    (place / "metrics.jsonl").write_text(json.dumps(history()[0]) + '\n{"epoch": 2, "eps')
    page = report([place]).read_text()
    assert "did not finish" in page
    assert len(read_folder(place).history) == 1


def test_broken_and_missing_folders_are_named(tmp_path):
    place = folder_of_a_run(tmp_path / "run")
    (place / "audit.json").write_text("{")
    with pytest.raises(DataError, match=r"audit\.json"):
        report([place])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match="empty"):
        report([tmp_path / "empty"])
    (place / "audit.json").unlink()
    (place / "metrics.jsonl").write_text("{\n{}\n")
    with pytest.raises(DataError, match="line 1"):
        report([place])
    assert not (place / "report.html").exists()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("comparison.json", '{"settings": {"data": "digits"}, "cells": []}'),
        ("cells/a.json", '{"label": "dp-sgd", "noise_multiplier": 8.0, "history": [1, 2]}'),
    ],
)
def test_files_that_do_not_fit_together_are_told_with_their_folder(tmp_path, file, text):
    place = folder_of_a_comparison(tmp_path / "compared")
    (place / file).write_text(text)
    with pytest.raises(DataError, match=r"compared.*damaged or was edited") as raised:
        report([place])
    assert raised.value.__cause__ is not None
    assert not (place / "report.html").exists()


def test_pictures_are_files_too(tmp_path):
    page = report_with_figures([folder_of_a_run(tmp_path / "run")])
    figures = page.with_name("report-figures")
    names = ("accuracy", "price", "loss-unprotected", "budget", "norms-unprotected")
    assert {path.name for path in figures.iterdir()} == {f"{name}.{end}" for name in names for end in ("png", "svg")}
    assert (figures / "norms-unprotected.png").read_bytes().startswith(b"\x89PNG")


def test_every_picture_of_unprotected_values_says_so_in_its_name_its_image_and_on_the_page(tmp_path):
    points = {"whole": [[0.0, 1.0], [1.0, 0.0]], "projected": [[0.5, 0.5]]}
    values = {
        "spectrum": [2.0, 1.0], "components": [[1, 0.5], [2, 0.1]], "energy": [0.1] * 5, "norms": [1.0] * 5,
        "bias/cosine": 0.5, "bias/ratio": 0.5, "clipped": 0.5, "signal_to_noise": 0.1, "cloud": points,
    }  # fmt: skip
    looks = [{"epoch": float(n), **{f"unprotected/{name}": value for name, value in values.items()}} for n in (0, 1)]
    looks[0]["public/spectrum"] = [2.0, 1.0]
    place = folder_of_a_run(tmp_path / "run")
    (place / "diagnostics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in looks))
    page = report_with_figures([place])
    raw = {"loss", "norms", "spectrum", "components", "subspace", "lengths", "bias", "signal-to-noise", "cloud"}
    texts = {path.stem: path.read_text() for path in page.with_name("report-figures").glob("*.svg")}
    assert {name for name in texts if name.endswith("unprotected")} == {f"{name}-unprotected" for name in raw}
    assert set(texts) - {f"{name}-unprotected" for name in raw} == {"accuracy", "price", "budget", "spectrum-public"}
    for name, text in texts.items():
        assert (WARNING in text) == name.endswith("unprotected"), name
    assert page.read_text().count(f">{WARNING}<") == len(raw)
    assert page.read_text().count('<figcaption><span class="tag">unprotected</span>') == len(raw)


def test_the_picture_of_a_run_is_drawn_from_released_values_alone(tmp_path):
    seen = [row | {"unprotected/validation/accuracy": 0.9} for row in history()]
    released = [{name: value for name, value in row.items() if "unprotected" not in name} for row in history()]
    for name, rows in (("with", seen), ("without", released)):
        training_curve(rows, "toy", tmp_path / f"{name}.png")
    assert (tmp_path / "with.png").read_bytes() == (tmp_path / "without.png").read_bytes()


def test_a_page_without_unprotected_values_leaves_no_picture_of_them(tmp_path):
    place = folder_of_a_run(tmp_path / "run")
    figures = report_with_figures([place]).with_name("report-figures")
    assert (figures / "norms-unprotected.png").exists()
    (figures / "notes.txt").write_text("somebody else's")
    report_with_figures([place], unprotected=False)
    left = {path.name for path in figures.iterdir()}
    assert "notes.txt" in left
    assert "accuracy.png" in left
    assert not [name for name in left if "unprotected" in name]


def test_values_that_are_missing_or_infinite_leave_gaps():
    assert training_pictures([]) == []
    assert [one.name for one in training_pictures([{"epoch": 1, "epsilon": None, "validation/accuracy": 0.5}])] == [
        "accuracy"
    ]


# -- a statement that does not fit together ---------------------------------------------------------

FORGED = {
    "epsilon": {"epsilon": 0.1},
    "steps": {"epsilon": 0.3, "steps": 10},
    "no noise": {"noise_multiplier": 0.0},
    "no account": {"epsilon": 0.1, "account": None, "sample_rate": None},
    "an account without sense": {"account": {"sampler": {"kind": "poisson"}}},
    "words": {"sampler": "Poisson q = 0.001"},
    "a limit": {"accountant": "GDP limit", "account": None},
    "no epsilon": {"epsilon": None},
    "no number": {"epsilon": float("nan")},
    "no yes": {"guarantee": "no"},
}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A run without a ledger, as it left its folder."""
    out = tmp_path_factory.mktemp("real") / "run"
    train(TrainConfig(epochs=2.0, noise_multiplier=5.0), out, progress=False)
    return out


def copied(real, place, **changes):
    shutil.copytree(real, place)
    statement = json.loads((real / "statement.json").read_text()) | changes
    (place / "statement.json").write_text(json.dumps(statement))
    return place


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_a_forged_statement_gets_no_promise(real, tmp_path, changes):
    page = report([copied(real, tmp_path / "run", **changes)]).read_text()
    assert "numbers of the statement contradict each other" in page
    assert "This page makes no claim" in page
    assert "No guarantee" in page
    assert "is differentially private" not in page


def test_an_untouched_statement_keeps_its_promise_and_two_runs_stay_apart(real, tmp_path):
    assert "is differentially private" in report([copied(real, tmp_path / "run")]).read_text()
    forged = copied(real, tmp_path / "forged", epsilon=0.01)
    table = report([real, forged], tmp_path / "both.html").read_text().split("</table>")[0]
    assert (table.count(">yes<"), table.count(">no<")) == (1, 1)
    assert "0.010" not in table


def test_an_old_statement_or_one_with_a_sketch_that_cannot_be_recomputed_is_taken_at_its_word(real, tmp_path):
    old = {"account": None, "files": None, "accountant": "exact sketched Gaussian", "epsilon": 0.1}
    page = report([copied(real, tmp_path / "run", **old)]).read_text()
    assert "is differentially private" in page
    assert "could not be recomputed" in page
    assert "could not be recomputed" not in report([real]).read_text()


def test_a_run_that_went_on_after_its_statement_gets_no_promise(real, tmp_path):
    place = copied(real, tmp_path / "run")
    rows = (place / "metrics.jsonl").read_text()
    last = json.loads(rows.splitlines()[-1])
    (place / "metrics.jsonl").write_text(rows + json.dumps(last | {"step": last["step"] + 100, "epoch": 20.0}) + "\n")
    page = report([place]).read_text()
    assert f"covers {last['step']} steps, but the run continued to step {last['step'] + 100}" in page
    assert "is differentially private" not in page
    (place / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows.splitlines()[:-1]))
    assert "test accuracy after" in report([place]).read_text(), "its last line was lost"


def test_a_run_that_was_killed_before_its_first_record_has_a_page(real, tmp_path):
    place = tmp_path / "killed"
    place.mkdir()
    shutil.copy(real / "config.yaml", place)
    assert "it did not finish" in report([place]).read_text()


def test_a_run_without_a_claim_shows_no_epsilon_as_its_own(tmp_path):
    out = tmp_path / "run"
    train(TrainConfig(epochs=1.0, noise_multiplier=5.0, insecure_noise_seed=0), out, progress=False)
    page = report([out]).read_text()
    assert "<dt>epsilon</dt><dd>no claim</dd>" in page
    assert "computed from the settings: the run makes no privacy claim" in page
    assert "epsilon spent" not in page


def test_pictures_that_no_page_wrote_stay(real, tmp_path):
    own = tmp_path / "paper-figures" / "mine.png"
    own.parent.mkdir()
    own.write_bytes(b"mine")
    for unprotected in (True, False):
        report_with_figures([real], tmp_path / "paper.html", unprotected=unprotected)
        assert own.read_bytes() == b"mine"
        assert (own.parent / "norms-unprotected.png").exists() == unprotected


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml"])
def test_a_statement_written_for_another_file_gets_no_promise(real, tmp_path, name):
    place = copied(real, tmp_path / "run")
    (place / name).write_bytes((place / name).read_bytes() + b"\n")
    page = report([place]).read_text()
    assert f"written for another version of {name}" in page
    assert "is differentially private" not in page
    (place / name).unlink()
    assert "is differentially private" in report([place]).read_text(), "a file that was not handed on"


def test_a_promise_for_seeded_noise_is_not_repeated(tmp_path):
    place = folder_of_a_run(tmp_path / "run")
    (place / "config.yaml").write_text(TrainConfig(target_epsilon=1.0, insecure_noise_seed=3).to_yaml())
    page = report([place]).read_text()
    assert "config.yaml seeds the noise" in page
    assert "is differentially private" not in page


# -- from the command line --------------------------------------------------------------------------


def test_a_real_run_and_its_page_and_event_files(tmp_path, capsys):
    out = tmp_path / "run"
    flags = ["--epochs", "2", "--noise-multiplier", "5", "--quiet", "--tensorboard", "--out", str(out)]
    pytest.importorskip("tensorboard", reason="needs the optional package tensorboard")
    assert main(["train", *flags]) == 0
    assert main(["report", str(out)]) == 0
    assert str(out / "report.html") in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "gnomon train --data digits --noise-multiplier 5 --epochs 2" in page
    assert "torch" in page
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard")).Reload()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [one.value for one in events.Scalars("validation/accuracy")] == pytest.approx(
        [line["validation/accuracy"] for line in lines]
    )
    assert "unprotected/loss" in events.Tags()["scalars"]
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_run_with_public_records_says_what_these_give_alone(tmp_path, capsys):
    flags = [
        "--method",
        "pcdp",
        "--rank",
        "10",
        "--epochs",
        "1",
        "--noise-multiplier",
        "5",
        "--quiet",
        "--ledger",
        "none",
    ]
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    alone = json.loads((tmp_path / "run/public-only.json").read_text())
    said = f"{100 * alone['accuracy']:.1f} %"
    assert alone["public records"] == 100
    assert f"public alone   {said}" in capsys.readouterr().out
    page = report([tmp_path / "run"]).read_text()
    assert f"The public records alone give {said}" in page
    train(TrainConfig(epochs=0.2, insecure_noise_seed=0), tmp_path / "plain", progress=False)
    assert not (tmp_path / "plain/public-only.json").exists()


def test_the_command_on_the_page_gives_the_same_settings(tmp_path):
    config = TrainConfig(epochs=1.0, noise_multiplier=7.25, max_grad_norm=0.3, method="rsdp", mask_rate=0.5,
                         insecure_noise_seed=3)  # fmt: skip
    train(config, tmp_path / "first", progress=False)
    command = re.search(r"<code>gnomon (.*)</code>", report([tmp_path / "first"]).read_text())[1].split()
    assert main([*command, "--quiet", "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again/config.yaml").read_text() == (tmp_path / "first/config.yaml").read_text()
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "again")]
    assert weights[0] == weights[1]


def read_back(command: str):
    """The settings that the command line makes of a command on a page."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command")
    add_train(commands)
    add_federate(commands)
    args = parser.parse_args(shlex.split(command)[1:])
    return settings_of(args, federated_defaults if args.command == "federate" else default_settings)


OWN = {
    "comp-minibatch": {"sampler": "poisson", "constraint": "box:-1,1"},
    "comp-gd": {"constraint": "l1:5"},
    "comp-sgd": {"constraint": "l2:1", "batch_size": 256},
    "dp-comp-gd": {"constraint": "nuclear:5,10", "sampler": "poisson", "sketch_form": "linear-sketch"},
    "dp-comp-minibatch": {"constraint": "simplex", "noise_multiplier": 0.1 + 0.2},
    "pcdp": {"subspace_scope": "per-tensor", "rank": 0.9},
    "dp-lsgd": {"local_steps": 5, "local_lr": 1.23456789e-7},
    "dp-sgd": {"lr": 1 / 3, "warm_start": "public", "public_records": 50},
}


@pytest.mark.parametrize("data", ["digits", "mnist"])
@pytest.mark.parametrize("method", OWN)
def test_the_command_of_every_kind_of_method_gives_the_same_settings(method, data):
    config = dataclasses.replace(default_settings(data, method), method=method, epochs=2.5, **OWN[method])
    assert read_back(run_command(yaml.safe_load(config.to_yaml()))) == config


@pytest.mark.parametrize("data", ["digits", "mnist"])
@pytest.mark.parametrize("method", ["fedpcdp", "fedavg", "q-ffl", "moon"])
def test_the_command_of_a_simulated_federation_gives_the_same_settings(method, data):
    more = {
        "clients": 3,
        "rounds": 2,
        "partition": "dirichlet:0.1",
        "unit": "client",
        "fairness_exponent": 0.5,
        "batch_size": 256,
    }
    config = dataclasses.replace(federated_defaults(data), method=method, **more)
    command = run_command(yaml.safe_load(config.to_yaml()))
    assert command.startswith("gnomon federate --simulate ")
    assert read_back(command) == config


def test_a_deployed_federation_has_no_command_of_one_line(tmp_path):
    place = folder_of_a_run(tmp_path / "run")
    (place / "config.yaml").write_text(FederateConfig(method="fedavg", clients=3).to_yaml())
    assert "gnomon federate --simulate --data digits --method fedavg --clients 3" in report([place]).read_text()
    (place / "answered.jsonl").write_text("")
    page = report([place]).read_text()
    assert "<code>gnomon" not in page
    assert "<h3>Command</h3>" not in page
    assert "does not record the command" not in page


# -- in a browser ----------------------------------------------------------------------------------

CONTRAST = """(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = getComputedStyle(node).backgroundColor;
      if (!found.startsWith("rgba(0, 0, 0, 0")) return found;
    }
    return "rgb(255, 255, 255)";
  };
  const least = [Infinity, ""];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
    if (!own || ["SCRIPT", "STYLE"].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    const ink = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(ground(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < least[0]) { least[0] = ratio; least[1] = node.outerHTML.slice(0, 120); }
  }
  return least;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip(WHY_NOT)
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    place = tmp_path_factory.mktemp("pages")
    run = folder_of_a_run(place / "run", STATEMENT | {"ledger": LEDGER}, audit=AUDIT)
    compared = folder_of_a_comparison(place / "compared")
    table = read_experiment("pcdp-table3")
    write(table, done_rows(table, KEPT), place / "table")
    watched = place / "watched"
    train(
        TrainConfig(method="pcdp", public_records=40, rank=10.0, epochs=2.0, noise_multiplier=5.0),
        watched,
        progress=False,
    )
    assert main(["diagnose", str(watched)]) == 0
    return {
        "table": report([place / "table"]),
        "watched": report([watched]),
        "run": report([run]),
        "compared": report([compared]),
        "both": report([run, run, compared], place / "b.html"),
    }


@pytest.mark.parametrize("which", ["run", "compared", "both", "table", "watched"])
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, False), (390, True)])
def test_a_page_opens_without_complaint_fits_the_screen_and_is_legible(browser, pages, which, width, dark):
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(pages[which], width=width, dark=dark)
    assert browser.complaints == []
    assert [one for one in browser.requests if not one.startswith(("file:", "data:"))] == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    ratio, where = browser.ask(CONTRAST)
    assert ratio >= 4.5, where
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == dark
    sizes = browser.ask("[...document.querySelectorAll('figure svg')].map((s) => s.getBoundingClientRect().height)")
    assert sizes
    assert min(sizes) > 100
    assert browser.ask("[...document.querySelectorAll('svg')].every((s) => s.getAttribute('aria-label').length > 20)")


def test_a_table_of_a_paper_shows_all_its_columns_on_a_wide_screen(browser, pages):
    browser.open(pages["table"], width=1200)
    assert browser.ask("document.querySelectorAll('.scroll').length") == 2
    assert browser.ask("[...document.querySelectorAll('.scroll')].every((s) => s.scrollWidth <= s.clientWidth)")


def test_tables_sort_by_a_click(browser, pages):
    browser.open(pages["compared"])
    column = "[...document.querySelectorAll('table.sortable tbody tr')].map((row) => row.cells[3].textContent)"
    click = "document.querySelectorAll('table.sortable thead button')[3].click()"
    browser.ask(click)
    assert browser.ask(column) == ["50.0", "70.0", "80.0", "90.0"]
    assert browser.ask("document.querySelectorAll('th')[3].getAttribute('aria-sort')") == "ascending"
    browser.ask(click)
    assert browser.ask(column) == ["90.0", "80.0", "70.0", "50.0"]
    browser.ask("document.querySelectorAll('table.sortable thead button')[0].click()")
    names = browser.ask("[...document.querySelectorAll('tbody tr')].map((row) => row.cells[0].textContent)")
    assert names == sorted(names)


def test_the_check_of_the_console_would_notice(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<script>nothing.here()</script><img src='missing.png'>")
    browser.complaints.clear()
    browser.open(page)
    assert len(browser.complaints) >= 2


def test_a_page_prints_light_and_whole_also_from_a_dark_screen(browser, pages):
    browser.open(pages["both"], dark=True, media="print")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask(CONTRAST)[0] >= 4.5
    assert browser.paper().startswith(b"%PDF")
