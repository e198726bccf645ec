"""Running an experiment: its runs are stored by their settings, so that a stopped experiment continues later."""

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
from gnomon.studies.cells import CellsFailed
from gnomon.studies.compare import TRAIN_ACCURACY, ComparisonCell, grid, run_grid, stored_results
from gnomon.studies.reproduce.experiment import BUDGET, NOISE, Experiment, ExperimentLine
from gnomon.studies.reproduce.figures import figures
from gnomon.studies.reproduce.results import ResultRow, result_row
from gnomon.studies.reproduce.tables import csv_table, markdown, series_csv
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
    """Run the missing runs of an experiment, and write its table and figure into a folder of its name.

    The table and the figure show all finished runs of the experiment, also those of earlier calls.

    Args:
        experiment: the experiment.
        out: the output folder. All experiments in it share their runs, which are stored by their settings.
        cells: patterns of the cells LINE@VALUE to run (default: all).
        seeds: the number of runs per cell (default: as the experiment plans).
        only_done: run nothing and read no data; only write the table and the figure.
        workers: the number of processes.
        progress: whether to show a progress bar.
        say: receives the table and the paths of the written files.

    Returns:
        A row for each line and value of the axis that has at least one finished run.

    Raises:
        SettingError: a setting is invalid, or there are no finished runs.
        CellsFailed: at least one run failed. Raised after the results of the others have been written.

    >>> import tempfile
    >>> from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine
    >>> settings = {"data": "digits", "private-records": 1300, "epochs": 0.5}
    >>> toy = Experiment("toy", "A toy", "nobody", settings, NOISE, (5.0,), 1, (ExperimentLine("DP-SGD", "dp-sgd"),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = reproduce(toy, Path(folder), progress=False, say=lambda text: None)
    >>> [(row.line, row.value, row.seeds) for row in rows]
    [('DP-SGD', 5.0, 1)]
    """
    selected, failure = experiment.chosen(cells), None
    runs = experiment.seeds if seeds is None else whole("seeds", seeds)
    if not only_done:
        planned = dataclasses.replace(experiment, seeds=runs)
        grid_cells = [cell for line, value in selected for cell in cells_of(planned, line, value)]
        load(experiment.base.data, experiment.base.data_dir)  # raises an error for missing data before any run starts
        try:
            run_grid(grid_cells, out, workers=workers, progress=progress)
        except CellsFailed as error:
            failure = error
    rows = done_rows(experiment, out, max(runs, experiment.seeds))
    if not rows:
        if failure is not None:
            raise failure
        raise SettingError("out", str(out), f"a folder with finished cells of {experiment.name}, or no --only-done")
    folder = out / (experiment.name + ("-fast" if experiment.is_fast else ""))
    pictures = write(experiment, rows, folder)
    say(markdown(experiment, rows))
    say(f"table    {folder / 'result.md'} and .csv")
    for picture in pictures:
        say(f"figure   {folder / picture.file}.png and .svg")
    if failure is not None:
        raise failure
    return rows


def done_rows(experiment: Experiment, out: Path, seeds: int | None = None) -> list[ResultRow]:
    """Return a row for each line and value of the axis that has at least one finished run.

    Args:
        experiment: the experiment.
        out: the output folder with the stored runs.
        seeds: the number of runs per cell to look for (default: as the experiment plans).

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> done_rows(read_experiment("pcdp-table2"), Path("nowhere"))
    []
    """
    rows = []
    planned = dataclasses.replace(experiment, seeds=seeds or experiment.seeds)
    for line, value in experiment.chosen():
        cells = cells_of(planned, line, value)
        if results := stored_results(cells, out):
            rows.append(result_row(experiment, line, value, results, as_coded_epsilon(experiment, cells[0].config)))
    return rows


def cells_of(experiment: Experiment, line: ExperimentLine, value: float) -> list[ComparisonCell]:
    """Return the runs of one line at one value of the axis, one for each seed.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> table = read_experiment("pcdp-table2")
    >>> [cell.config.noise_multiplier for cell in cells_of(table, table.lines[0], 6.0)]
    [6.0, 6.0, 6.0, 6.0]
    """
    base, spec = experiment.base, experiment.spec(line, value)
    redraw = experiment.redraw_splits
    if experiment.axis == BUDGET and base.with_settings(dict(spec.settings)).recipe is not None:
        cells = grid(base, [spec], (), experiment.seeds, target_epsilons=[value], redraw_splits=redraw)
    else:
        level = 1.0 if spec.is_public_only else _noise_multiplier(experiment, base, line, value)  # the former has none
        cells = grid(base, [spec], [level], experiment.seeds, experiment.looking, redraw_splits=redraw)
    scored_on_train = experiment.measure_of(line) == TRAIN_ACCURACY and not spec.is_public_only
    return [dataclasses.replace(cell, scored_on_train=scored_on_train) for cell in cells]


def _noise_multiplier(experiment: Experiment, base: TrainConfig, line: ExperimentLine, value: float) -> float:
    """Return the noise multiplier of a line at a value of the axis."""
    if experiment.axis == NOISE:
        return positive(NOISE, value)
    if experiment.axis == BUDGET:
        config = base.with_settings(line.settings | line.at.get(value, {}))
        if config.private_records is None:
            raise SettingError("private-records", None, f"the number of private records, for an axis of {BUDGET}")
        accounting = (config.sampler, config.accountant, config.adjacency)
        if accounting != ("poisson", "pld", None):
            raise SettingError(
                "sampler, accountant, adjacency",
                accounting,
                f"poisson, pld and the default adjacency on an axis of {BUDGET}; use an axis of {NOISE} for others",
            )
        rate = config.batch_size / (config.dataset_size or config.private_records)
        return calibrated(value, rate, steps_of(config.epochs, Poisson(rate)), config.target_delta)
    if base.noise_multiplier is None:
        raise SettingError(NOISE, None, f"a noise multiplier in the settings, for an axis of {experiment.axis}")
    return base.noise_multiplier


@cache
def calibrated(target_epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """Return the noise multiplier for a budget. Results are cached, because lines of an experiment share budgets.

    >>> round(calibrated(1.0, 0.025, 100, 1e-5), 2)
    1.31
    """
    return noise_multiplier(target_epsilon=target_epsilon, sample_rate=sample_rate, steps=steps, delta=delta)


def as_coded_epsilon(experiment: Experiment, config: TrainConfig) -> float | None:
    """Return the epsilon of the published code's batches, which are the same blocks in every epoch.

    Where the published code clips the mean of several records, one record can reverse the clipped mean and so move the
    sum by twice the clip bound.

    Returns:
        The epsilon, or None if the experiment says nothing about the published code.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> table = read_experiment("pcdp-table2")
    >>> round(as_coded_epsilon(table, cells_of(table, table.lines[0], 6.0)[0].config), 1)
    7.0
    """
    if not experiment.as_coded or config.noise_multiplier is None or config.private_records is None:
        return None
    per_epoch = max(1, round(config.private_records / config.batch_size))
    steps = max(1, round(config.epochs * per_epoch))
    noise = config.noise_multiplier / (2 if experiment.micro_batch > 1 else 1)
    return fixed_blocks_epsilon(noise, per_epoch, steps, config.target_delta)


@cache
def fixed_blocks_epsilon(noise: float, per_epoch: int, steps: int, delta: float) -> float:
    """Return the epsilon of batches that are the same blocks in every epoch. Results are cached.

    >>> round(fixed_blocks_epsilon(6.0, 40, 3200, 1e-5), 1)
    7.0
    """
    return float(epsilon(noise_multiplier=noise, sampler=Shuffled(per_epoch), steps=steps, delta=delta))


def command(experiment: Experiment, rows: Sequence[ResultRow]) -> str:
    """Return the command that runs the cells behind rows.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> row = ResultRow("PDP-SGD, k = 100", 6.0, None, None, 90.3, None, 1, None, 0.88, None, 1.0)
    >>> command(read_experiment("pcdp-table2"), [row])
    "gnomon reproduce pcdp-table2 --seeds 1 --cells 'PDP-SGD, k = 100@6'"
    """
    words = ["gnomon", "reproduce", experiment.source or experiment.name]
    words += ["--seeds", str(max(max(row.seeds, row.runs) for row in rows))]
    words += ["--fast"] if experiment.is_fast else []
    patterns = []
    for name in dict.fromkeys(row.line for row in rows):
        values = [row.value for row in rows if row.line == name]
        texts = ["*"] if len(values) == len(experiment.values) else [f"{value:g}" for value in values]
        patterns += [f"{escape(name)}@{text}" for text in texts]
    complete = len(rows) == len(experiment.chosen())
    return shlex.join(words if complete else [*words, "--cells", ",".join(patterns)])


def write(experiment: Experiment, rows: list[ResultRow], folder: Path) -> list[Picture]:
    """Write the table (CSV and Markdown), the figures (PNG and SVG) and the data for `gnomon report` into a folder.

    Returns:
        The figures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "result.csv", csv_table(rows).encode(), shared=True)
    write_atomic(folder / "result.md", markdown(experiment, rows).encode(), shared=True)
    if any(row.series for row in rows):
        write_atomic(folder / "series.csv", series_csv(rows).encode(), shared=True)
    pictures = figures(experiment, rows)
    for picture in pictures:
        # An earlier version wrote figures of unprotected values without `-unprotected` in their names.
        for extension in ("png", "svg"):
            (folder / f"{picture.name}.{extension}").unlink(missing_ok=True)
        picture.save(folder)
    # The data folder of this machine is of no use elsewhere.
    settings = {name: value for name, value in experiment.settings.items() if name != "data-dir"}
    content: dict[str, Any] = {
        "experiment": dataclasses.asdict(experiment) | {"settings": settings},
        "rows": [row.to_dict() for row in rows],
        "command": command(experiment, rows),
    }
    write_atomic(folder / "reproduction.json", f"{json.dumps(content, indent=1)}\n".encode(), shared=True)
    return pictures
