"""Comparisons: several methods, noise levels and seeds on the same split of one data set."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnomon.accounting import digits
from gnomon.data import Records, Source, load
from gnomon.diagnose import DiagnosticSchedule
from gnomon.errors import SettingError
from gnomon.figures.comparison import save_comparison
from gnomon.files import write_atomic
from gnomon.memory import keep_memory
from gnomon.runs.builders import (
    build_method,
    build_trainer,
    is_own,
    prepare,
    public_count,
    public_only,
    undeclared_public,
    uses_public,
    without_foreign_settings,
)
from gnomon.runs.config import TrainConfig, default_settings
from gnomon.runs.environment import environment
from gnomon.runs.train import plain
from gnomon.studies.cells import CellsFailed, Result, run_cells, settings_key, stored_cells
from gnomon.studies.method_specs import PUBLIC_ONLY, MethodSpec, method_specs, refuse_unused_settings
from gnomon.training.checks.members import of_members
from gnomon.training.evaluate import evaluate
from gnomon.validate import positive, whole

DEFAULT_METHODS = ("dp-sgd", "pdp", "pcdp", "rpdp", "rsdp", PUBLIC_ONLY)
"""The methods that are compared by default."""

DEFAULT_NOISE_MULTIPLIERS = (5.0, 10.0, 20.0, 40.0)
"""The noise levels that are compared by default."""

TRAIN_ACCURACY = "unprotected/train/accuracy"
"""The accuracy on the private records at the end of a run, computed without noise."""

PUBLIC_START_ACCURACY = "public-start/accuracy"
"""The test accuracy of the model from which a run starts, if it was trained on the public records alone: epsilon 0."""

PUBLIC_TRAINING: Result = {"public_training": "converged"}
"""Mark of results that depend on training on public records alone. Stored results without the mark are older: their
public training was 200 steps of Adam without weight decay. They keep their keys."""


@dataclass(frozen=True)
class ComparisonCell:
    """One run of a comparison."""

    label: str
    """The method, with the settings that differ from the common ones."""
    config: TrainConfig
    looks: DiagnosticSchedule | None = None
    """The diagnostics to record during training, if any."""
    scored_on_train: bool = False
    """Whether the run must record its accuracy on the private records, which old stored results lack."""
    public_only: bool = False
    """Whether the run trains on the public records alone."""

    @property
    def key(self) -> str:
        """The name of the stored result. It changes with every setting that could change the result, not with the
        label."""
        more: dict[str, Any] = {"label": PUBLIC_ONLY} if self.public_only else {}
        if self.looks is not None:
            more["looks"] = dataclasses.asdict(self.looks)
        if is_own(self.config.data):  # the file may change under the same name
            content = Path(self.config.data.removeprefix("npz:")).read_bytes()
            more["content"] = hashlib.sha256(content).hexdigest()
        return settings_key(self.config, **more)


@dataclass(frozen=True)
class ComparisonRow:
    """The results of one method at one noise level, over all seeds."""

    method: str
    noise_multiplier: float | None
    """None for public-only."""
    epsilon: float
    mean: float
    """The mean test accuracy."""
    deviation: float | None
    """The standard deviation of the test accuracy over seeds; None for one seed."""
    seeds: int
    seconds: float
    """The mean training time of a run."""
    target_epsilon: float | None = None
    """The budget for which the noise multiplier was calibrated, if it was."""


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison, and the settings that repeat it."""

    config: TrainConfig
    """The common settings."""
    methods: tuple[str, ...]
    """The labels of the compared methods."""
    noise_multipliers: tuple[float, ...]
    target_epsilons: tuple[float, ...]
    seeds: int
    cells: tuple[ComparisonCell, ...]
    """All runs of the comparison."""
    results: tuple[Result, ...]
    """The results of the finished runs."""
    folder: Path

    @property
    def rows(self) -> list[ComparisonRow]:
        """The mean and the deviation over seeds, for each method and noise level."""
        return summarise(self.results)

    @property
    def title(self) -> str:
        return f"{self.config.data}, {self.config.epochs:g} epochs, batch {self.config.batch_size}"

    def markdown(self) -> str:
        """Return the results as a Markdown table."""
        return markdown(self.rows)

    def csv(self) -> str:
        """Return the rows as CSV."""
        return csv_table(self.rows)

    def write(self) -> None:
        """Write the table (Markdown and CSV), the figure (PNG and SVG) and the settings (JSON) into the folder.

        `gnomon report` makes a page from these files.
        """
        write_atomic(self.folder / "comparison.md", self.markdown().encode(), shared=True)
        write_atomic(self.folder / "comparison.csv", self.csv().encode(), shared=True)
        for extension in ("png", "svg"):
            save_comparison(self.rows, self.title, self.folder / f"comparison.{extension}")
        plan = {
            "settings": dataclasses.asdict(self.config),
            "methods": list(self.methods),
            "noise_multipliers": list(self.noise_multipliers),
            "target_epsilons": list(self.target_epsilons),
            "seeds": self.seeds,
            "cells": [[cell.label, cell.key] for cell in self.cells],
            "environment": environment(),
        }
        write_atomic(self.folder / "comparison.json", f"{json.dumps(plan, indent=2)}\n".encode(), shared=True)


class ComparisonFailed(CellsFailed):
    """Some runs of a comparison failed; `comparison` has the results of the others."""

    def __init__(self, error: CellsFailed, comparison: Comparison) -> None:
        super().__init__(error.failures, error.runs)
        self.comparison = comparison


def compare(
    config: TrainConfig | Mapping[str, Any],
    methods: Sequence[str | MethodSpec] = DEFAULT_METHODS,
    *,
    noise_multipliers: Sequence[float] = (),
    target_epsilons: Sequence[float] = (),
    seeds: int = 2,
    folder: Path | str | None = None,
    workers: int = 1,
    progress: bool = True,
) -> Comparison:
    """Compare methods at several noise levels, over seeds, on the same private records.

    Finished runs are stored in the folder: calling the function again runs only the missing ones. Tables and figures
    are written there too. The public-only baseline is always included where there are public records.

    The noise is seeded so that the comparison can be repeated. A comparison therefore makes no privacy claim; each
    epsilon is what the settings would guarantee for one run with secret noise.

    Args:
        config: the common settings, or a mapping of setting names to values. A setting that only some methods have
            applies to these.
        methods: the methods to compare. A method may have settings of its own: `"pcdp:rank=50"`, or
            `MethodSpec("pcdp", {"rank": 50})`.
        noise_multipliers: the noise levels (default: 5, 10, 20 and 40).
        target_epsilons: budgets in place of noise levels; the noise multiplier is calibrated for each.
        seeds: the number of runs per method and noise level.
        folder: the output folder (default: `runs/compare-<data>`).
        workers: the number of processes. A script that uses more than one needs an `if __name__ == "__main__"` guard.
        progress: whether to show a progress bar.

    Returns:
        The results, one row per method and noise level.

    Raises:
        SettingError: a method or a setting is invalid, or a setting applies to no method.
        ComparisonFailed: at least one run failed. Raised after all other runs have finished and their results have
            been written.

    >>> import tempfile
    >>> settings = {"data": "digits", "epochs": 1, "public-records": 40}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = compare(settings, ["dp-sgd"], noise_multipliers=[4.0], seeds=1, folder=folder, progress=False)
    >>> [(row.method, round(row.epsilon, 2), row.seeds) for row in result.rows]
    [('dp-sgd', 0.42, 1), ('public-only', 0.0, 1)]
    """
    base = _common_settings(config)
    specs = method_specs(methods)
    refuse_unused_settings(base, specs)
    if needs_public_records(base, specs, _own_source(base)) and PUBLIC_ONLY not in [spec.label for spec in specs]:
        specs.append(MethodSpec(PUBLIC_ONLY))  # no comparison without the honest baseline
    if not noise_multipliers and not target_epsilons:
        noise_multipliers = DEFAULT_NOISE_MULTIPLIERS
    cells = grid(base, specs, noise_multipliers, seeds, target_epsilons=target_epsilons)
    place = Path("runs") / f"compare-{base.data_name}" if folder is None else Path(folder)
    failure = None
    try:
        run_grid(cells, place, workers=workers, progress=progress)
    except CellsFailed as error:
        failure = error
    comparison = Comparison(
        base,
        tuple(spec.label for spec in specs),
        tuple(noise_multipliers),
        tuple(target_epsilons),
        seeds,
        tuple(cells),
        tuple(stored_results(cells, place)),
        place,
    )
    if comparison.results:
        comparison.write()
    if failure is not None:
        raise ComparisonFailed(failure, comparison) from failure.__cause__
    return comparison


def _common_settings(config: TrainConfig | Mapping[str, Any]) -> TrainConfig:
    if isinstance(config, TrainConfig):
        return config
    return default_settings(str(config.get("data", TrainConfig().data))).with_settings(dict(config))


def grid(
    base: TrainConfig,
    methods: Sequence[str | MethodSpec],
    noise_multipliers: Sequence[float],
    seeds: int,
    looks: DiagnosticSchedule | None = None,
    *,
    target_epsilons: Sequence[float] = (),
    redraw_splits: bool = False,
) -> list[ComparisonCell]:
    """Return the runs of a comparison: every method at every noise level with every seed.

    Args:
        base: the common settings.
        methods: the methods, each with settings of its own if needed.
        noise_multipliers: the noise levels; empty if `target_epsilons` are given.
        seeds: the number of runs per method and noise level.
        looks: the diagnostics to record during training.
        target_epsilons: budgets; each run calibrates the noise multiplier for its own sampling.
        redraw_splits: whether each seed also draws its own private and public records.

    >>> [cell.label for cell in grid(TrainConfig(), ["dp-sgd", "pcdp:rank=20"], [2.0], 1)]
    ['dp-sgd', 'pcdp:rank=20']
    """
    specs = method_specs(methods)
    # All methods train on the same private records, whether they use the public records or not.
    source = _own_source(base)
    needed = needs_public_records(base, specs, source)
    if source is not None:
        if needed and source.public is None:
            raise undeclared_public(base.data, _reader_of_public(base, specs) or "public-records")
        public = public_count(base, source) if needed else 0
        private = base.private_records or len(source.train)
    else:  # a benchmark is not loaded where the settings say enough, so that stored results are found without its files
        public = whole("public-records", 100 if base.public_records is None else base.public_records) if needed else 0
        private = base.private_records or len(load(base.data, base.data_dir).train) - public
    if is_own(base.data) and base.dataset_size is None:
        raise SettingError.with_message(
            "dataset-size is required for npz files: the number of records that you declare in public",
            name="dataset-size",
        )
    base = dataclasses.replace(
        base,
        private_records=private,
        public_records=public,
        dataset_size=base.dataset_size or private,
        target_epsilon=None,
    )
    levels = _levels(noise_multipliers, target_epsilons)
    cells = []
    for spec in specs:
        for level in [{"noise_multiplier": None}] if spec.is_public_only else levels:
            for seed in range(whole("seeds", seeds)):
                settings = level | {"seed": seed, "insecure_noise_seed": seed} | dict(spec.settings)
                if redraw_splits:
                    settings["split_seed"] = seed
                if "noise_multiplier" in spec.settings:
                    settings |= {"target_epsilon": spec.settings.get("target_epsilon")}
                method = "pcdp" if spec.is_public_only else spec.name  # public-only uses the same public records
                config = without_foreign_settings(dataclasses.replace(base, method=method)).with_settings(settings)
                # Building the method refuses invalid settings before any run starts.
                build_method(config, Records(torch.zeros(public, 1), torch.zeros(public)))
                cells.append(
                    ComparisonCell(
                        spec.label,
                        config,
                        looks=None if spec.is_public_only else looks,
                        public_only=spec.is_public_only,
                    )
                )
    return list(dict.fromkeys(cells))  # a method that sets its own noise is the same at every level


def _levels(noise_multipliers: Sequence[float], target_epsilons: Sequence[float]) -> list[dict[str, Any]]:
    """Return the settings of each noise level."""
    if bool(noise_multipliers) == bool(target_epsilons):
        raise SettingError.with_message("set either noise-multipliers or target-epsilons, not both or neither")
    if target_epsilons:
        return [
            {"noise_multiplier": None, "target_epsilon": positive("target-epsilons", value)}
            for value in target_epsilons
        ]
    return [{"noise_multiplier": positive("noise-multipliers", value)} for value in noise_multipliers]


def needs_public_records(base: TrainConfig, methods: Sequence[str | MethodSpec], own: Source | None) -> bool:
    """Return whether a comparison has public records.

    Benchmark data sets always have public records. A user's own data have them if the file declares some; if it does
    not, they are needed if their number is given or if a method uses them, and the comparison is then refused.

    Args:
        base: the common settings.
        methods: the methods to compare.
        own: the user's own data, or None for a benchmark.

    >>> own = load("digits")  # as if a file without x_public held them
    >>> base = TrainConfig(data="npz:own.npz")
    >>> [needs_public_records(base, methods, own) for methods in (["dp-sgd"], ["dp-sgd", "pdp"])]
    [False, True]
    """
    if own is None or own.public is not None or base.public_records:
        return True
    return _reader_of_public(base, methods) is not None


def _reader_of_public(base: TrainConfig, methods: Sequence[str | MethodSpec]) -> str | None:
    """Return the label of the first method that reads public records, or None."""
    for spec in method_specs(methods):
        if spec.is_public_only or uses_public(
            dataclasses.replace(base, method=spec.name).with_settings(dict(spec.settings))
        ):
            return spec.label
    return None


def _own_source(base: TrainConfig) -> Source | None:
    """Return the user's own data, or None for a benchmark."""
    return load(base.data, base.data_dir) if is_own(base.data) else None


def run_cell(cell: ComparisonCell) -> Result:
    """Train one run on one thread and return its result as plain values."""
    torch.set_num_threads(1)
    keep_memory()
    prepared = prepare(cell.config, progress=False)
    config, source, split = prepared.config, prepared.source, prepared.split
    if cell.public_only:
        scores = public_only(config, source, split.public)
        plain_scores = {"epsilon": 0.0, "accuracy": scores["accuracy"], "seconds": 0.0}
        return {"label": cell.label, **plain_scores, "history": [], **PUBLIC_TRAINING}
    if of_members(source.test, split.private):
        raise SettingError(
            "data", cell.config.data, "test records that are not training records, because methods are compared on them"
        )
    trainer = build_trainer(config, source, split.public, progress=False, feature_map=prepared.feature_map)
    start = evaluate(trainer.model, trainer.loss, source.test) if config.warm_start == "public" else {}
    diagnostics = cell.looks.attach(trainer, split.private) if cell.looks is not None else None
    history: list[dict[str, float]] = []
    result = trainer.fit(split.private, source.test, on_epoch=history.append, evaluate_every=cell.config.evaluate_every)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    if "accuracy" in (scores := evaluate(trainer.final, trainer.loss, split.private)):
        history[-1][TRAIN_ACCURACY] = scores["accuracy"]
    if "accuracy" in start:
        history[-1][PUBLIC_START_ACCURACY] = start["accuracy"]
    return {
        "label": cell.label,
        "noise_multiplier": trainer.account.noise_multiplier,
        "epsilon": float(result.epsilon),
        "accuracy": history[-1]["validation/accuracy"],
        "seconds": history[-1]["seconds"],
        "history": [plain(row) for row in history],
        **(PUBLIC_TRAINING if cell.config.warm_start == "public" else {}),
    } | ({} if diagnostics is None else {"diagnostics": diagnostics})


def run_grid(cells: Sequence[ComparisonCell], folder: Path, *, workers: int = 1, progress: bool = True) -> list[Result]:
    """Run the cells that have no stored result yet, store every result, and return the results of all cells.

    Features of benchmarks are computed once and kept in the subfolder `features`. Those of a user's own records are
    kept only where the settings say so, because they are as private as the records.
    """
    cells = [_with_feature_cache(cell, folder / "features") for cell in cells]
    return run_cells(cells, folder, run_cell, workers=workers, progress=progress, complete=_is_complete)


def _with_feature_cache(cell: ComparisonCell, folder: Path) -> ComparisonCell:
    config = cell.config
    mapped = config.recipe is not None or config.features is not None
    if not mapped or config.feature_cache is not None or is_own(config.data):
        return cell
    return dataclasses.replace(cell, config=dataclasses.replace(config, feature_cache=str(folder)))


def stored_results(cells: Sequence[ComparisonCell], folder: Path) -> list[Result]:
    """Return the stored results of cells, each under its cell's label."""
    return [result for cell, result in stored_cells(cells, folder) if _is_complete(cell, result)]


def _is_complete(cell: ComparisonCell, result: Result) -> bool:
    """Return whether a stored result has everything that its cell needs."""
    return not cell.scored_on_train or any(TRAIN_ACCURACY in row for row in result["history"])


def summarise(results: Sequence[Result]) -> list[ComparisonRow]:
    """Return the mean and the standard deviation over seeds, for each method and noise level.

    >>> runs = [{"label": "dp-sgd", "noise_multiplier": 2.0, "epsilon": 1.0, "accuracy": a, "seconds": 1.0}
    ...         for a in (0.5, 0.7)]
    >>> summarise(runs)[0].mean
    0.6
    """
    groups: dict[tuple[str, float | None], list[Result]] = {}
    for result in results:
        groups.setdefault((result["label"], result.get("noise_multiplier")), []).append(result)
    return [
        ComparisonRow(
            label,
            noise_multiplier,
            group[0]["epsilon"],
            statistics.fmean(result["accuracy"] for result in group),
            statistics.stdev(result["accuracy"] for result in group) if len(group) > 1 else None,
            len(group),
            statistics.fmean(result["seconds"] for result in group),
            _target_epsilon(group[0]),
        )
        for (label, noise_multiplier), group in groups.items()
    ]


def _target_epsilon(result: Result) -> float | None:
    """Return the budget for which a run calibrated its noise, or None if its noise was given."""
    settings = result.get("settings", {})
    fixed = result.get("noise_multiplier") is None or settings.get("noise_multiplier") is not None
    return None if fixed else settings.get("target_epsilon")


def markdown(rows: Sequence[ComparisonRow]) -> str:
    """Return a Markdown table with a row per method and a column per noise level or budget.

    >>> print(markdown([ComparisonRow("dp-sgd", 2.0, 1.0, 0.6, 0.1, 2, 1.0)]), end="")
    | accuracy, % | sigma 2, epsilon 1.000 |
    |---|---|
    | dp-sgd | 60.0 ± 10.0 |
    """
    headings = {_level(row): _heading(row) for row in rows if row.noise_multiplier is not None}
    levels = sorted(headings)
    lines = [
        "| accuracy, % | " + " | ".join(headings[level] for level in levels) + " |",
        "|---" * (len(levels) + 1) + "|",
    ]
    for method in dict.fromkeys(row.method for row in rows):
        by_level = {_level(row): row for row in rows if row.method == method}
        first = next(iter(by_level.values()))
        if first.noise_multiplier is None:
            cells = [_accuracy(first) + " (epsilon 0)"] + ["same"] * (len(levels) - 1)
        else:
            cells = [_accuracy(by_level[level]) if level in by_level else "–" for level in levels]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _level(row: ComparisonRow) -> tuple[float, ...]:
    """Return what identifies a column: the budget, or the noise multiplier and its epsilon."""
    return (row.noise_multiplier or 0.0, row.epsilon) if row.target_epsilon is None else (row.target_epsilon,)


def _heading(row: ComparisonRow) -> str:
    if row.target_epsilon is not None:
        return f"epsilon {row.target_epsilon:.15g}"
    return f"sigma {row.noise_multiplier:.3g}, epsilon {digits(row.epsilon)}"


def _accuracy(row: ComparisonRow) -> str:
    return f"{100 * row.mean:.1f}" + (f" ± {100 * row.deviation:.1f}" if row.deviation is not None else "")


def csv_table(rows: Sequence[ComparisonRow]) -> str:
    """Return the rows as CSV, with the fields of `ComparisonRow` as columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(ComparisonRow)])
    for row in rows:
        writer.writerow(dataclasses.astuple(row))
    return out.getvalue()
