"""Runs of a study, in parallel processes, each kept on disk when it ends, so that a stopped study goes on later."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tqdm.auto import tqdm

from gnomon.store import Store
from gnomon.validate import whole


class Cell(Protocol):
    """One run of a study."""

    @property
    def label(self) -> str:
        """For the progress bar."""

    @property
    def config(self) -> Any:
        """Its settings, a dataclass."""

    @property
    def key(self) -> str:
        """A name that changes with every setting that could change the result."""


C = TypeVar("C", bound=Cell)


def settings_key(config: Any, **more: Any) -> str:
    """A name for settings; where data lie and how many threads compute does not count.

    Settings at their defaults are left out, so that a new setting does not rename old cells.

    >>> from gnomon.config import TrainConfig
    >>> settings_key(TrainConfig(), label="a") == settings_key(TrainConfig(threads=2), label="a")
    True
    """
    default = dataclasses.asdict(type(config)())
    given = dataclasses.asdict(config) | {"data_dir": None, "threads": None}
    settings = {name: value for name, value in given.items() if value != default[name]}
    settings = {name: float(value) if isinstance(value, int) else value for name, value in settings.items()}
    return hashlib.sha256(json.dumps(settings | more, sort_keys=True).encode()).hexdigest()[:16]


def run_cells(
    cells: Sequence[C],
    folder: Path,
    job: Callable[[C], dict[str, Any]],
    *,
    workers: int = 1,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Run what is not there yet, in their order; every finished cell is kept.

    `job` makes plain values of a cell, with its `accuracy`. With several workers it must be importable.
    """
    whole("workers", workers)
    store = Store(folder)
    store.open()
    every = {cell.key: cell for cell in cells}
    missing = [cell for key, cell in every.items() if key not in store]
    with tqdm(total=len(every), initial=len(every) - len(missing), unit="run", disable=not progress) as bar:
        for cell, found in _results(missing, job, workers):
            store.write(cell.key, {"settings": dataclasses.asdict(cell.config) | {"data_dir": None}} | found)
            bar.update()
            bar.set_postfix_str(f"{cell.label}: {100 * found['accuracy']:.1f} %")
    return [found for _, found in kept_cells(cells, folder)]


def kept_cells(cells: Sequence[C], folder: Path) -> list[tuple[C, dict[str, Any]]]:
    """The cells that have been run, with their results.

    >>> kept_cells([], Path("nowhere"))
    []
    """
    store = Store(folder)
    found = [(cell, store.find(cell.key)) for cell in cells]
    return [(cell, result | {"label": cell.label}) for cell, result in found if result is not None]


def _results(
    cells: Sequence[C], job: Callable[[C], dict[str, Any]], workers: int
) -> Iterator[tuple[C, dict[str, Any]]]:
    if workers == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, job(cell)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(cells)), mp_context=context, initializer=_leave_with, initargs=(os.getpid(),)
    )
    try:
        waiting: dict[Future[dict[str, Any]], C] = {pool.submit(job, cell): cell for cell in cells}
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
