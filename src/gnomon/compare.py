"""Several methods, noise levels and seeds on one split: run, remembered cell by cell, and summed up."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import multiprocessing
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from gnomon.config import TrainConfig
from gnomon.data import Records, load
from gnomon.diagnose import Looks
from gnomon.environment import environment
from gnomon.losses import LOSSES
from gnomon.methods import METHODS
from gnomon.report.comparison import comparison
from gnomon.runs import (
    build_method,
    build_model,
    build_trainer,
    is_own,
    plain,
    public_count,
    records,
    without_foreign_settings,
)
from gnomon.store import Store
from gnomon.training import evaluate
from gnomon.validate import SettingError, positive, whole

PUBLIC_ONLY = "public-only"


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    label: str
    """The method, with its settings where they are not the common ones."""
    config: TrainConfig
    looks: Looks | None = None
    """Looks inside while it trains, if any."""

    @property
    def public_only(self) -> bool:
        """Whether it trains on public records alone."""
        return self.label.partition(":")[0] == PUBLIC_ONLY

    @property
    def key(self) -> str:
        """A name that changes with every setting that could change the result, and with nothing else.

        Settings at their defaults are left out, so that a new setting does not rename old cells; so is the label.
        """
        default = dataclasses.asdict(TrainConfig())
        given = dataclasses.asdict(self.config) | {"data_dir": None, "threads": None}
        settings = {name: value for name, value in given.items() if value != default[name]}
        settings = {name: float(value) if isinstance(value, int) else value for name, value in settings.items()}
        if self.public_only:
            settings["label"] = PUBLIC_ONLY
        if self.looks is not None:
            settings["looks"] = dataclasses.asdict(self.looks)
        if is_own(self.config.data):  # the file may change under the same name
            content = Path(self.config.data.removeprefix("npz:")).read_bytes()
            settings["content"] = hashlib.sha256(content).hexdigest()
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Row:
    """One method at one noise level, over all seeds."""

    method: str
    noise_multiplier: float | None
    epsilon: float
    mean: float
    deviation: float
    seeds: int
    seconds: float


def grid(
    base: TrainConfig,
    methods: Sequence[str],
    noise_multipliers: Sequence[float],
    seeds: int,
    looks: Looks | None = None,
) -> list[Cell]:
    """All cells. A method may carry settings of its own: "pcdp:rank=50,scope=per-tensor".

    >>> [cell.label for cell in grid(TrainConfig(), ["dp-sgd", "pcdp:rank=20"], [2.0], 1)]
    ['dp-sgd', 'pcdp:rank=20']
    """
    # everybody trains on the same private records, whether a method reads the public ones or not
    public = public_count(base)
    private = base.private or len(load(base.data, base.data_dir).train) - public
    if is_own(base.data) and base.dataset_size is None:
        raise SettingError("dataset-size", None, "the number of records you are ready to declare in public")
    base = dataclasses.replace(base, private=private, public=public, dataset_size=base.dataset_size or private)
    for one in noise_multipliers:
        positive("noise-multipliers", one)
    cells = []
    for label in methods:
        name, own = _settings(label)
        levels: Sequence[float | None] = [None] if name == PUBLIC_ONLY else noise_multipliers
        for level in levels:
            for seed in range(whole("seeds", seeds)):
                settings = {"noise_multiplier": level, "seed": seed, "insecure_noise_seed": seed} | own
                method = "pcdp" if name == PUBLIC_ONLY else name  # public-only reads the same public records
                config = without_foreign_settings(dataclasses.replace(base, method=method)).with_settings(settings)
                build_method(config, Records(torch.zeros(public, 1), torch.zeros(public)))  # wrong settings fail now
                cells.append(Cell(label, config, None if name == PUBLIC_ONLY else looks))
    return cells


def split_methods(text: str) -> list[str]:
    """Methods in a list, where commas also separate a method's own settings.

    >>> split_methods("dp-sgd,pcdp:rank=50,scope=per-tensor,public-only")
    ['dp-sgd', 'pcdp:rank=50,scope=per-tensor', 'public-only']
    """
    parts: list[str] = []
    for item in filter(None, re.split("[,;]", text)):
        if "=" in item and ":" not in item.partition("=")[0] and parts:
            parts[-1] += f",{item}"
        else:
            parts.append(item)
    return parts


def _settings(label: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = label.partition(":")
    if name not in METHODS and name != PUBLIC_ONLY:
        raise SettingError("method", name, f"one of {', '.join([*METHODS, PUBLIC_ONLY])}")
    own: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, found, value = item.partition("=")
        if not found:
            raise SettingError("method", label, "settings as name:key=value,key=value")
        own[key] = int(value) if value.isdigit() else value
    return name, own


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train one cell on one thread; the result as plain values."""
    torch.set_num_threads(1)
    source = load(cell.config.data, cell.config.data_dir)
    split = records(cell.config, source)
    if cell.public_only:
        start = dataclasses.replace(cell.config, warm_start="public")
        model = build_model(start, source, split.public)
        found = evaluate(model, LOSSES[cell.config.loss], source.test)
        return {"label": cell.label, "epsilon": 0.0, "accuracy": found["accuracy"], "seconds": 0.0, "history": []}
    trainer = build_trainer(cell.config, source, split.public, progress=False)
    seen = cell.looks.along(trainer, split.private) if cell.looks is not None else None
    curve: list[dict[str, float]] = []
    result = trainer.fit(split.private, source.test, on_epoch=curve.append)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    return {
        "label": cell.label,
        "noise_multiplier": trainer.account.noise_multiplier,
        "epsilon": float(result.epsilon),
        "accuracy": curve[-1]["validation/accuracy"],
        "seconds": curve[-1]["seconds"],
        "history": [plain(row) for row in curve],
    } | ({} if seen is None else {"diagnostics": seen})


def run(cells: Sequence[Cell], folder: Path, *, workers: int = 1, progress: bool = True) -> list[dict[str, Any]]:
    """Run what is not there yet, in parallel; every finished cell is kept, so that a stopped run goes on later."""
    whole("workers", workers)
    store = Store(folder)
    store.open()
    every = {cell.key: cell for cell in cells}
    missing = [cell for key, cell in every.items() if key not in store]
    with tqdm(total=len(every), initial=len(every) - len(missing), unit="run", disable=not progress) as bar:
        for cell, found in _results(missing, workers):
            store.write(cell.key, {"settings": dataclasses.asdict(cell.config) | {"data_dir": None}} | found)
            bar.update()
            bar.set_postfix_str(f"{cell.label}: {100 * found['accuracy']:.1f} %")
    return done(cells, folder)


def done(cells: Sequence[Cell], folder: Path) -> list[dict[str, Any]]:
    """The results of those cells that have been run, under the cells' labels."""
    store = Store(folder)
    return [store.read(cell.key) | {"label": cell.label} for cell in cells if cell.key in store]


def _results(cells: Sequence[Cell], workers: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if workers == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, run_cell(cell)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(cells)), mp_context=context, initializer=_leave_with, initargs=(os.getpid(),)
    )
    try:
        waiting: dict[Future[dict[str, Any]], Cell] = {pool.submit(run_cell, cell): cell for cell in cells}
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _leave_with(parent: int) -> None:
    """End this worker when its parent is gone, however that went, instead of computing for nobody."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def summary(results: Sequence[dict[str, Any]]) -> list[Row]:
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
        Row(
            label,
            level,
            group[0]["epsilon"],
            statistics.fmean(one["accuracy"] for one in group),
            statistics.stdev(one["accuracy"] for one in group) if len(group) > 1 else 0.0,
            len(group),
            statistics.fmean(one["seconds"] for one in group),
        )
        for (label, level), group in groups.items()
    ]


def markdown(rows: Sequence[Row]) -> str:
    """A table with a row for each method and a column for each noise level.

    >>> print(markdown([Row("dp-sgd", 2.0, 1.0, 0.6, 0.1, 2, 1.0)]), end="")
    | accuracy, % | sigma 2, epsilon 1.000 |
    |---|---|
    | dp-sgd | 60.0 ± 10.0 |
    """
    levels = sorted({(row.noise_multiplier, row.epsilon) for row in rows if row.noise_multiplier is not None})
    heads = [f"sigma {sigma:.3g}, epsilon {epsilon:.3f}" for sigma, epsilon in levels]
    lines = ["| accuracy, % | " + " | ".join(heads) + " |", "|---" * (len(levels) + 1) + "|"]
    for method in dict.fromkeys(row.method for row in rows):
        mine = {(row.noise_multiplier, row.epsilon): row for row in rows if row.method == method}
        only = next(iter(mine.values()))
        if only.noise_multiplier is None:
            cells = [_cell(only) + " (epsilon 0)"] + ["same"] * (len(levels) - 1)
        else:
            cells = [_cell(mine[level]) if level in mine else "–" for level in levels]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    return f"{100 * row.mean:.1f}" + (f" ± {100 * row.deviation:.1f}" if row.seeds > 1 else "")


def table(rows: Sequence[Row]) -> str:
    """The rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(Row)])
    for row in rows:
        writer.writerow(dataclasses.astuple(row))
    return out.getvalue()


def write(rows: Sequence[Row], folder: Path, title: str, say: Callable[[str], None] = print) -> None:
    """Leave the table as Markdown and CSV and the picture as PNG and SVG in a folder."""
    (folder / "comparison.md").write_text(markdown(rows))
    (folder / "comparison.csv").write_text(table(rows))
    for ending in ("png", "svg"):
        comparison(rows, title, folder / f"comparison.{ending}")
    say(markdown(rows))
    say(f"table    {folder / 'comparison.md'} and .csv")
    say(f"picture  {folder / 'comparison.png'} and .svg")


def remember(
    folder: Path, base: TrainConfig, methods: Sequence[str], levels: Sequence[float], seeds: int, cells: Sequence[Cell]
) -> None:
    """Leave in the folder what its results belong to, so that a report can say how to repeat them."""
    plan = {
        "settings": dataclasses.asdict(base),
        "methods": list(methods),
        "noise_multipliers": list(levels),
        "seeds": seeds,
        "cells": [cell.key for cell in cells],
        "environment": environment(),
    }
    (folder / "comparison.json").write_text(json.dumps(plan, indent=2) + "\n")
