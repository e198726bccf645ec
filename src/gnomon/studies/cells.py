"""Runs of a study, in parallel processes, each kept on disk when it ends, so that a stopped study goes on later."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tqdm.auto import tqdm

from gnomon.models.custom import code_hash, is_custom
from gnomon.runs.environment import versions
from gnomon.runs.setting_names import stored_settings
from gnomon.studies.store import ResultStore
from gnomon.validate import whole


class StudyCell(Protocol):
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


C = TypeVar("C", bound=StudyCell)


class CellsFailed(ValueError):
    """Some runs of a study failed; the others have been run and are kept.

    >>> str(CellsFailed({"dp-sgd, seed 0": KeyError("x")}, 4))
    "1 of 4 runs failed, the others are kept (start again to go on): dp-sgd, seed 0: KeyError: 'x'"
    """

    def __init__(self, failures: Mapping[str, Exception], runs: int) -> None:
        self.failures = dict(failures)
        killed = [name for name, error in failures.items() if isinstance(error, BrokenProcessPool)]
        said = [f"{name}: {type(error).__name__}: {error}" for name, error in failures.items() if name not in killed]
        if killed:
            said.append(
                f"a worker process was killed, most likely because memory ran out, and {len(killed)} runs ended with "
                "it; fewer workers need less"
            )
        more = [f"and {len(said) - TOLD} more"] if len(said) > TOLD else []
        super().__init__(
            f"{len(failures)} of {runs} runs failed, the others are kept (start again to go on): "
            + "; ".join([*said[:TOLD], *more])
        )


TOLD = 5
"""How many failures a message tells in words."""


def settings_key(config: Any, **more: Any) -> str:
    """A name for settings; where data lie and how many threads compute does not count.

    The code of a user's own model counts, so that a result is not found again after the model has changed. Settings at
    their defaults are left out, so that a new setting does not rename old cells. Of a noise multiplier seven digits
    count: one that was worked out for a budget differs in later ones from machine to machine.

    >>> from gnomon.runs.config import TrainConfig
    >>> settings_key(TrainConfig(), label="a") == settings_key(TrainConfig(threads=2), label="a")
    True
    """
    default = stored_settings(type(config)())
    given = stored_settings(config) | {"data_dir": None, "threads": None}
    settings = {name: value for name, value in given.items() if value != default[name]}
    settings = {name: float(value) if isinstance(value, int) else value for name, value in settings.items()}
    if isinstance(noise := settings.get("noise_multiplier"), float):
        settings["noise_multiplier"] = float(f"{noise:.7g}")
    if is_custom(model := settings.get("model")):
        more["code"] = code_hash(str(model))
    return hashlib.sha256(json.dumps(settings | more, sort_keys=True).encode()).hexdigest()[:16]


def run_cells(
    cells: Sequence[C],
    folder: Path,
    job: Callable[[C], dict[str, Any]],
    *,
    workers: int = 1,
    progress: bool = True,
    complete: Callable[[C, dict[str, Any]], bool] | None = None,
) -> list[dict[str, Any]]:
    """Run what is not there yet, in their order; every finished cell is kept.

    `job` makes plain values of a cell, with its `accuracy`. With several workers it must be importable. Several
    processes may work on one folder: a cell that another one finished meanwhile is not run again. A run that fails
    does not stop the others; `CellsFailed` tells at the end. A kept result that is not `complete` counts as none.
    """
    whole("workers", workers)
    store = ResultStore(folder)
    store.open()
    keys = {cell: cell.key for cell in cells}
    every = len(set(keys.values()))
    there = partial(_there, folder=folder, complete=complete)
    missing = list({keys[cell]: cell for cell in cells if not there(cell)}.values())
    failures: dict[str, Exception] = {}
    with tqdm(total=every, initial=every - len(missing), unit="run", disable=not progress) as bar:
        for cell, result in _results(missing, partial(_once, job=job, there=there), workers):
            bar.update()
            found = _caught(partial(_unchanged, cell, keys[cell], result))
            if isinstance(found, Exception):
                failures[_told(cell)] = found
            elif found is not None:
                settings = stored_settings(cell.config) | {"data_dir": None}
                store.write(keys[cell], {"settings": settings, "versions": versions()} | found)
                bar.set_postfix_str(f"{cell.label}: {100 * found['accuracy']:.1f} %")
    if failures:
        raise CellsFailed(failures, every) from next(iter(failures.values()))
    return [found for _, found in kept_cells(cells, folder)]


def _told(cell: StudyCell) -> str:
    """A run in words: its label, and what tells it from the others of that label."""
    names = {"noise": "noise_multiplier", "target": "target_epsilon", "seed": "seed"}
    parts = {word: getattr(cell.config, name, None) for word, name in names.items()}
    return ", ".join([cell.label, *(f"{name} {value:g}" for name, value in parts.items() if value is not None)])


def kept_cells(cells: Sequence[C], folder: Path) -> list[tuple[C, dict[str, Any]]]:
    """The cells that have been run, with their results.

    >>> kept_cells([], Path("nowhere"))
    []
    """
    store = ResultStore(folder)
    found = [(cell, store.find(cell.key)) for cell in cells]
    return [(cell, result | {"label": cell.label}) for cell, result in found if result is not None]


def _results(
    cells: Sequence[C], job: Callable[[C], dict[str, Any] | None], workers: int
) -> Iterator[tuple[C, dict[str, Any] | Exception | None]]:
    """Each cell with its result, with what went wrong, or with nothing if somebody else has kept it."""
    if workers == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, _caught(partial(job, cell))
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(cells)), mp_context=context, initializer=_leave_with, initargs=(os.getpid(),)
    )
    try:
        waiting: dict[Future[dict[str, Any] | None], C] = {pool.submit(job, cell): cell for cell in cells}
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), _caught(future.result)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _there(cell: C, folder: Path, complete: Callable[[C, dict[str, Any]], bool] | None) -> bool:
    """Whether a cell has been run, with everything that is asked of it."""
    found = ResultStore(folder).find(cell.key)
    return found is not None and (complete is None or complete(cell, found))


def _once(cell: C, job: Callable[[C], dict[str, Any]], there: Callable[[C], bool]) -> dict[str, Any] | None:
    """Run a cell unless somebody else has kept it by now."""
    return None if there(cell) else job(cell)


def _unchanged(cell: StudyCell, key: str, result: dict[str, Any] | Exception | None) -> dict[str, Any] | None:
    """The result of a cell, unless the code or the file that it was started with has changed meanwhile."""
    if isinstance(result, Exception):
        raise result
    if cell.key != key:
        raise RuntimeError("the code of the model or the data file changed while it ran: start again to run it anew")
    return result


def _caught(job: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | Exception | None:
    try:
        return job()
    except Exception as error:  # told at the end: one run must not stop the others
        return error


def _leave_with(parent: int) -> None:
    """End this worker when its parent is gone, however that went, instead of computing for nobody."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
