"""Several methods, noise levels and seeds on one split: run, remembered cell by cell, and summed up."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnomon.accounting import digits
from gnomon.data import Records, load
from gnomon.diagnose import Looks
from gnomon.errors import SettingError
from gnomon.figures.comparison import comparison
from gnomon.files import write_atomic
from gnomon.memory import keep_memory
from gnomon.runs.builders import (
    build_method,
    build_trainer,
    is_own,
    public_count,
    public_only,
    records,
    uses_public,
    without_foreign_settings,
)
from gnomon.runs.config import TrainConfig
from gnomon.runs.environment import environment
from gnomon.runs.train import plain
from gnomon.studies.cells import kept_cells, run_cells, settings_key
from gnomon.studies.method_specs import PUBLIC_ONLY, settings_of_label
from gnomon.training.checks.members import of_members
from gnomon.training.evaluate import evaluate
from gnomon.validate import positive, whole

TRAIN_ACCURACY = "unprotected/train/accuracy"
"""At the end of a run, on its private records: what no release pays for."""


@dataclass(frozen=True)
class ComparisonCell:
    """One run of the grid."""

    label: str
    """The method, with its settings where they are not the common ones."""
    config: TrainConfig
    looks: Looks | None = None
    """Looks inside while it trains, if any."""
    scored_on_train: bool = False
    """Whether the accuracy on its own records is asked for, which runs that were kept long ago do not have."""

    @property
    def public_only(self) -> bool:
        """Whether it trains on public records alone."""
        return self.label.partition(":")[0] == PUBLIC_ONLY

    @property
    def key(self) -> str:
        """A name that changes with every setting that could change the result; the label itself does not count."""
        more: dict[str, Any] = {"label": PUBLIC_ONLY} if self.public_only else {}
        if self.looks is not None:
            more["looks"] = dataclasses.asdict(self.looks)
        if is_own(self.config.data):  # the file may change under the same name
            content = Path(self.config.data.removeprefix("npz:")).read_bytes()
            more["content"] = hashlib.sha256(content).hexdigest()
        return settings_key(self.config, **more)


@dataclass(frozen=True)
class ComparisonRow:
    """One method at one noise level, over all seeds."""

    method: str
    noise_multiplier: float | None
    epsilon: float
    mean: float
    deviation: float | None
    """One run has none."""
    seeds: int
    seconds: float
    target_epsilon: float | None = None
    """The budget that the noise was worked out for, if it was."""


def grid(
    base: TrainConfig,
    methods: Sequence[str],
    noise_multipliers: Sequence[float],
    seeds: int,
    looks: Looks | None = None,
    *,
    target_epsilons: Sequence[float] = (),
) -> list[ComparisonCell]:
    """All cells. A method may carry settings of its own: "pcdp:rank=50,subspace-scope=per-tensor".

    Give noise multipliers, or none and target epsilons: each run then works out the noise of its own sampling.

    >>> [cell.label for cell in grid(TrainConfig(), ["dp-sgd", "pcdp:rank=20"], [2.0], 1)]
    ['dp-sgd', 'pcdp:rank=20']
    """
    named = [(label, *settings_of_label(label)) for label in methods]
    # everybody trains on the same private records, whether a method reads the public ones or not
    public = public_count(base) if has_public(base, methods) else 0
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
    every = _levels(noise_multipliers, target_epsilons)
    cells = []
    for label, name, own in named:
        for level in [{"noise_multiplier": None}] if name == PUBLIC_ONLY else every:
            for seed in range(whole("seeds", seeds)):
                settings = level | {"seed": seed, "insecure_noise_seed": seed} | own
                if "noise-multiplier" in own or "noise_multiplier" in own:
                    settings |= {"target_epsilon": own.get("target-epsilon", own.get("target_epsilon"))}
                method = "pcdp" if name == PUBLIC_ONLY else name  # public-only reads the same public records
                config = without_foreign_settings(dataclasses.replace(base, method=method)).with_settings(settings)
                build_method(config, Records(torch.zeros(public, 1), torch.zeros(public)))  # wrong settings fail now
                cells.append(ComparisonCell(label, config, None if name == PUBLIC_ONLY else looks))
    return list(dict.fromkeys(cells))  # a method with its own noise is the same at every level


def _levels(noise_multipliers: Sequence[float], target_epsilons: Sequence[float]) -> list[dict[str, Any]]:
    """The settings of each level of noise."""
    if bool(noise_multipliers) == bool(target_epsilons):
        allowed = "either noise multipliers or target epsilons, and not both"
        raise SettingError("target-epsilons", list(target_epsilons), allowed)
    budgets = [{"noise_multiplier": None, "target_epsilon": positive("target-epsilons", x)} for x in target_epsilons]
    return budgets or [{"noise_multiplier": positive("noise-multipliers", x)} for x in noise_multipliers]


def has_public(base: TrainConfig, methods: Sequence[str]) -> bool:
    """Whether a comparison sets public records aside: of own data only if they are given or a method reads them.

    >>> own = TrainConfig(data="npz:own.npz")
    >>> has_public(TrainConfig(), ["dp-sgd"]), has_public(own, ["dp-sgd"]), has_public(own, ["dp-sgd", "pdp"])
    (True, False, True)
    """
    return not is_own(base.data) or bool(base.public_records) or any(_reads_public(base, label) for label in methods)


def _reads_public(base: TrainConfig, label: str) -> bool:
    name, own = settings_of_label(label)
    return name == PUBLIC_ONLY or uses_public(dataclasses.replace(base, method=name).with_settings(own))


def run_cell(cell: ComparisonCell) -> dict[str, Any]:
    """Train one cell on one thread; the result as plain values."""
    torch.set_num_threads(1)
    keep_memory()
    source = load(cell.config.data, cell.config.data_dir)
    split = records(cell.config, source)
    if cell.public_only:
        found = public_only(cell.config, source, split.public)
        return {"label": cell.label, "epsilon": 0.0, "accuracy": found["accuracy"], "seconds": 0.0, "history": []}
    if of_members(source.test, split.private):
        raise SettingError(
            "data", cell.config.data, "test records that are not training records: methods are compared by them"
        )
    trainer = build_trainer(cell.config, source, split.public, progress=False)
    seen = cell.looks.along(trainer, split.private) if cell.looks is not None else None
    curve: list[dict[str, float]] = []
    result = trainer.fit(split.private, source.test, on_epoch=curve.append, evaluate_every=cell.config.evaluate_every)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    if "accuracy" in (own := evaluate(trainer.final, trainer.loss, split.private)):
        curve[-1][TRAIN_ACCURACY] = own["accuracy"]
    return {
        "label": cell.label,
        "noise_multiplier": trainer.account.noise_multiplier,
        "epsilon": float(result.epsilon),
        "accuracy": curve[-1]["validation/accuracy"],
        "seconds": curve[-1]["seconds"],
        "history": [plain(row) for row in curve],
    } | ({} if seen is None else {"diagnostics": seen})


def run(
    cells: Sequence[ComparisonCell], folder: Path, *, workers: int = 1, progress: bool = True
) -> list[dict[str, Any]]:
    """Run what is not there yet, in parallel; every finished cell is kept, so that a stopped run goes on later."""
    return run_cells(cells, folder, run_cell, workers=workers, progress=progress, complete=_complete)


def _complete(cell: ComparisonCell, found: dict[str, Any]) -> bool:
    return not cell.scored_on_train or any(TRAIN_ACCURACY in row for row in found["history"])


def done(cells: Sequence[ComparisonCell], folder: Path) -> list[dict[str, Any]]:
    """The results of those cells that have been run, with all that is asked of them, under the cells' labels."""
    return [found for cell, found in kept_cells(cells, folder) if _complete(cell, found)]


def summary(results: Sequence[dict[str, Any]]) -> list[ComparisonRow]:
    """Mean and standard deviation over seeds, for each method and noise level.

    >>> runs = [{"label": "dp-sgd", "noise_multiplier": 2.0, "epsilon": 1.0, "accuracy": a, "seconds": 1.0}
    ...         for a in (0.5, 0.7)]
    >>> summary(runs)[0].mean
    0.6
    """
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for found in results:
        groups.setdefault((found["label"], found.get("noise_multiplier")), []).append(found)
    return [
        ComparisonRow(
            label,
            level,
            group[0]["epsilon"],
            statistics.fmean(one["accuracy"] for one in group),
            statistics.stdev(one["accuracy"] for one in group) if len(group) > 1 else None,
            len(group),
            statistics.fmean(one["seconds"] for one in group),
            _target(group[0]),
        )
        for (label, level), group in groups.items()
    ]


def _target(found: dict[str, Any]) -> float | None:
    settings = found.get("settings", {})
    fixed = found.get("noise_multiplier") is None or settings.get("noise_multiplier") is not None
    return None if fixed else settings.get("target_epsilon")


def markdown(rows: Sequence[ComparisonRow]) -> str:
    """A table with a row for each method and a column for each noise level, or for each budget.

    >>> print(markdown([ComparisonRow("dp-sgd", 2.0, 1.0, 0.6, 0.1, 2, 1.0)]), end="")
    | accuracy, % | sigma 2, epsilon 1.000 |
    |---|---|
    | dp-sgd | 60.0 ± 10.0 |
    """
    levels = sorted({_level(row) for row in rows if row.noise_multiplier is not None})
    heads = [f"sigma {one[0]:.3g}, epsilon {digits(one[1])}" if one[1:] else f"epsilon {one[0]:.15g}" for one in levels]
    lines = ["| accuracy, % | " + " | ".join(heads) + " |", "|---" * (len(levels) + 1) + "|"]
    for method in dict.fromkeys(row.method for row in rows):
        mine = {_level(row): row for row in rows if row.method == method}
        only = next(iter(mine.values()))
        if only.noise_multiplier is None:
            cells = [_cell(only) + " (epsilon 0)"] + ["same"] * (len(levels) - 1)
        else:
            cells = [_cell(mine[level]) if level in mine else "–" for level in levels]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _level(row: ComparisonRow) -> tuple[float, ...]:
    """What a column stands for: a budget, or a noise multiplier and its epsilon."""
    return (row.noise_multiplier or 0.0, row.epsilon) if row.target_epsilon is None else (row.target_epsilon,)


def _cell(row: ComparisonRow) -> str:
    return f"{100 * row.mean:.1f}" + (f" ± {100 * row.deviation:.1f}" if row.deviation is not None else "")


def table(rows: Sequence[ComparisonRow]) -> str:
    """The rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(ComparisonRow)])
    for row in rows:
        writer.writerow(dataclasses.astuple(row))
    return out.getvalue()


def write(rows: Sequence[ComparisonRow], folder: Path, title: str, say: Callable[[str], None] = print) -> None:
    """Leave the table as Markdown and CSV and the picture as PNG and SVG in a folder."""
    write_atomic(folder / "comparison.md", markdown(rows).encode(), shared=True)
    write_atomic(folder / "comparison.csv", table(rows).encode(), shared=True)
    for ending in ("png", "svg"):
        comparison(rows, title, folder / f"comparison.{ending}")
    say(markdown(rows))
    say(f"table    {folder / 'comparison.md'} and .csv")
    say(f"picture  {folder / 'comparison.png'} and .svg")


def remember(
    folder: Path,
    base: TrainConfig,
    methods: Sequence[str],
    levels: Sequence[float],
    seeds: int,
    cells: Sequence[ComparisonCell],
    target_epsilons: Sequence[float] = (),
) -> None:
    """Leave in the folder what its results belong to, so that a report can say how to repeat them."""
    plan = {
        "settings": dataclasses.asdict(base),
        "methods": list(methods),
        "noise_multipliers": list(levels),
        "target_epsilons": list(target_epsilons),
        "seeds": seeds,
        "cells": [[cell.label, cell.key] for cell in cells],
        "environment": environment(),
    }
    write_atomic(folder / "comparison.json", f"{json.dumps(plan, indent=2)}\n".encode(), shared=True)
