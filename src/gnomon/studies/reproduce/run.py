"""Runs an experiment: cells are kept by their settings, so that it goes on where it stopped."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

from gnomon.accounting import Poisson, Shuffled, epsilon, noise_multiplier, steps_of
from gnomon.data import load
from gnomon.errors import SettingError
from gnomon.figures.picture import Picture
from gnomon.files import write_atomic
from gnomon.runs.config import TrainConfig
from gnomon.studies import compare
from gnomon.studies.cells import CellsFailed
from gnomon.studies.reproduce.experiment import BUDGET, NOISE, Experiment, ExperimentLine
from gnomon.studies.reproduce.picture import pictures
from gnomon.studies.reproduce.result import ResultRow, markdown, plain_row, row_of, series_table, table
from gnomon.validate import positive, whole


def reproduce(
    experiment: Experiment,
    out: Path,
    *,
    cells: Sequence[str] = (),
    seeds: int | None = None,
    only_done: bool = False,
    workers: int = 1,
    progress: bool = True,
    say: Callable[[str], None] = print,
) -> list[ResultRow]:
    """Run what is missing, and leave table and picture in the folder of the experiment's name.

    Cells are shared by all experiments in `out`, each under the hash of its settings. `cells` and `seeds` say what to
    run; table and picture show every cell of the experiment that is there. With `only_done` nothing is run and no data
    are needed.

    >>> import tempfile
    >>> from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine
    >>> settings = {"data": "digits", "private-records": 1300, "epochs": 0.5}
    >>> toy = Experiment("toy", "A toy", "nobody", settings, NOISE, (5.0,), 1, (ExperimentLine("DP-SGD", "dp-sgd"),))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     rows = reproduce(toy, Path(place), progress=False, say=lambda text: None)
    >>> [(row.line, row.value, row.seeds) for row in rows]
    [('DP-SGD', 5.0, 1)]
    """
    chosen, failed = experiment.chosen(cells), None
    asked = experiment.seeds if seeds is None else whole("seeds", seeds)
    if not only_done:
        some = dataclasses.replace(experiment, seeds=asked)
        every = [cell for line, value in chosen for cell in cells_of(some, line, value)]
        load(experiment.base.data, experiment.base.data_dir)  # missing data are named before anything runs
        failed = _run(every, out, workers, progress)
    rows = done_rows(experiment, out, max(asked, experiment.seeds))
    if not rows:
        if failed is not None:
            raise failed
        raise SettingError("out", str(out), f"a folder with finished cells of {experiment.name}, or no --only-done")
    folder = out / (experiment.name + ("-fast" if experiment.is_fast else ""))
    drawn = write(experiment, rows, folder)
    say(markdown(experiment, rows))
    say(f"table    {folder / 'result.md'} and .csv")
    for picture in drawn:
        say(f"picture  {folder / picture.file}.png and .svg")
    if failed is not None:
        raise failed
    return rows


def _run(cells: Sequence[compare.ComparisonCell], out: Path, workers: int, progress: bool) -> CellsFailed | None:
    """Run cells; what failed, if anything, to be raised when the table of the others is written."""
    try:
        compare.run(cells, out, workers=workers, progress=progress)
    except CellsFailed as error:
        return error
    return None


def done_rows(experiment: Experiment, out: Path, seeds: int | None = None) -> list[ResultRow]:
    """A row for each line and value of which at least one seed has been run; more seeds than planned if asked.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> done_rows(read_experiment("pcdp-table2"), Path("nowhere"))
    []
    """
    rows = []
    shown = dataclasses.replace(experiment, seeds=seeds or experiment.seeds)
    for line, value in experiment.chosen():
        group = cells_of(shown, line, value)
        if results := compare.done(group, out):
            rows.append(row_of(experiment, line, value, results, as_coded(experiment, group[0].config)))
    return rows


def cells_of(experiment: Experiment, line: ExperimentLine, value: float) -> list[compare.ComparisonCell]:
    """The runs of one line at one value, one for each seed.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> table = read_experiment("pcdp-table2")
    >>> [cell.config.noise_multiplier for cell in cells_of(table, table.lines[0], 6.0)]
    [6.0, 6.0, 6.0, 6.0]
    """
    base, label = experiment.base, line.label(experiment.axis, value)
    if line.method == compare.PUBLIC_ONLY and not experiment.varies_public_records:
        label = compare.PUBLIC_ONLY  # nothing but the public records matters to it
    if label == compare.PUBLIC_ONLY:
        return compare.grid(base, [label], [1.0], experiment.seeds)
    level = _level(experiment, base, line, value)
    cells = compare.grid(base, [label], [level], experiment.seeds, experiment.looking)
    asked = experiment.measure_of(line) == compare.TRAIN_ACCURACY
    return [dataclasses.replace(cell, scored_on_train=asked) for cell in cells]


def _level(experiment: Experiment, base: TrainConfig, line: ExperimentLine, value: float) -> float:
    if experiment.axis == NOISE:
        return positive(NOISE, value)
    if experiment.axis == BUDGET:
        given = base.with_settings(line.settings | line.at.get(value, {}))
        if given.private_records is None:
            raise SettingError("private-records", None, f"the number of private records, for an axis of {BUDGET}")
        if (given.sampler, given.accountant, given.adjacency) != ("poisson", "pld", None):
            allowed = (
                f"poisson, pld and no adjacency of its own, for an axis of {BUDGET}; others can be run at given noise"
            )
            raise SettingError(
                "sampler, accountant, adjacency", (given.sampler, given.accountant, given.adjacency), allowed
            )
        rate = given.batch_size / (given.dataset_size or given.private_records)
        return calibrated(value, rate, steps_of(given.epochs, Poisson(rate)), given.target_delta)
    if base.noise_multiplier is None:
        raise SettingError(NOISE, None, f"a noise multiplier in the settings, for an axis of {experiment.axis}")
    return base.noise_multiplier


@cache
def calibrated(target_epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The noise for a budget; lines that share it work it out once.

    >>> round(calibrated(1.0, 0.025, 100, 1e-5), 2)
    1.31
    """
    return noise_multiplier(target_epsilon=target_epsilon, sample_rate=sample_rate, steps=steps, delta=delta)


def as_coded(experiment: Experiment, config: TrainConfig) -> float | None:
    """What the published code's batches, the same blocks in every epoch, really cost at these settings.

    Where it clips the mean of several records, one record can turn it round: it moves the sum by twice the bound.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> table = read_experiment("pcdp-table2")
    >>> found = as_coded(table, cells_of(table, table.lines[0], 6.0)[0].config)
    >>> round(found, 1)
    7.0
    """
    if not experiment.as_coded or config.noise_multiplier is None or config.private_records is None:
        return None
    per_epoch = max(1, round(config.private_records / config.batch_size))
    steps = max(1, round(config.epochs * per_epoch))
    noise = config.noise_multiplier / (2 if experiment.micro_batch > 1 else 1)
    return of_blocks(noise, per_epoch, steps, config.target_delta)


@cache
def of_blocks(noise: float, per_epoch: int, steps: int, delta: float) -> float:
    """Epsilon of batches that are the same blocks in every epoch; lines that share it work it out once.

    >>> round(of_blocks(6.0, 40, 3200, 1e-5), 1)
    7.0
    """
    return float(epsilon(noise_multiplier=noise, sampler=Shuffled(per_epoch), steps=steps, delta=delta))


def command(experiment: Experiment, rows: Sequence[ResultRow]) -> str:
    """What runs the cells behind these rows.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> row = ResultRow("PDP-SGD, k = 100", 6.0, None, None, 90.3, None, 1, None, 0.88, None, 1.0)
    >>> command(read_experiment("pcdp-table2"), [row])
    "gnomon reproduce pcdp-table2 --seeds 1 --cells 'PDP-SGD, k = 100@6'"
    """
    words = ["gnomon", "reproduce", experiment.source or experiment.name]
    words += ["--seeds", str(max(max(row.seeds, row.runs) for row in rows))] + (
        ["--fast"] if experiment.is_fast else []
    )
    cells = []
    for name in dict.fromkeys(row.line for row in rows):
        values = [row.value for row in rows if row.line == name]
        whole_line = len(values) == len(experiment.values)
        cells += [f"{escape(name)}@{value}" for value in (["*"] if whole_line else [f"{one:g}" for one in values])]
    complete = len(rows) == len(experiment.chosen())
    return shlex.join(words if complete else [*words, "--cells", ",".join(cells)])


def write(experiment: Experiment, rows: list[ResultRow], folder: Path) -> list[Picture]:
    """Table as CSV and Markdown, picture as PNG and SVG, and everything for `gnomon report`; returns the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "result.csv", table(rows).encode(), shared=True)
    write_atomic(folder / "result.md", markdown(experiment, rows).encode(), shared=True)
    if any(row.series for row in rows):
        write_atomic(folder / "series.csv", series_table(rows).encode(), shared=True)
    drawn = pictures(experiment, rows)
    for one in drawn:
        for ending in ("png", "svg"):  # of an earlier version, whose name did not say what it showed
            (folder / f"{one.name}.{ending}").unlink(missing_ok=True)
        one.save(folder)
    settings = {name: value for name, value in experiment.settings.items() if name != "data-dir"}  # nobody else's
    kept: dict[str, Any] = {
        "experiment": dataclasses.asdict(experiment) | {"settings": settings},
        "rows": [plain_row(row) for row in rows],
        "command": command(experiment, rows),
    }
    write_atomic(folder / "reproduction.json", f"{json.dumps(kept, indent=1)}\n".encode(), shared=True)
    return drawn
