"""Execution of the runs of a study in parallel processes, with every finished run stored on disk.

A run is called a cell, because it is one cell of the grid of methods, noise levels and seeds. A study that was stopped
continues where it ended, because finished cells are found by the hash of their settings.
"""

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

from gnomon.errors import GnomonError, StateError
from gnomon.models.custom import code_hash, is_custom
from gnomon.runs.environment import versions
from gnomon.runs.setting_names import stored_settings
from gnomon.studies.store import ResultStore
from gnomon.validate import whole

Result = dict[str, Any]


OF_THE_MACHINE = ("data_dir", "threads", "feature_cache")
"""Settings that cannot change a result."""


class StudyCell(Protocol):
    """One run of a study."""

    @property
    def label(self) -> str:
        """The name shown in the progress bar."""

    @property
    def config(self) -> Any:
        """The settings of the run, a dataclass."""

    @property
    def key(self) -> str:
        """The name of the stored result. It changes with every setting that could change the result."""


C = TypeVar("C", bound=StudyCell)

SHOWN_FAILURES = 5
"""The number of failures that an error message describes one by one."""


class CellsFailed(GnomonError, ValueError):
    """Some runs of a study failed. All other runs have finished and are stored.

    Args:
        failures: the exception of each failed run, by the description of the run.
        runs: the number of all runs of the study.

    >>> str(CellsFailed({"dp-sgd, seed 0": KeyError("x")}, 4))
    "1 of 4 runs failed; the finished runs are stored, so start again to repeat the rest: dp-sgd, seed 0: KeyError: 'x'"
    """

    def __init__(self, failures: Mapping[str, Exception], runs: int) -> None:
        self.failures, self.runs = dict(failures), runs
        killed = [name for name, error in failures.items() if isinstance(error, BrokenProcessPool)]
        reasons = [f"{name}: {type(error).__name__}: {error}" for name, error in failures.items() if name not in killed]
        if killed:
            reasons.append(
                f"a worker process was killed, most likely because memory ran out, and {len(killed)} runs ended with "
                "it; use fewer workers"
            )
        more = [f"and {len(reasons) - SHOWN_FAILURES} more"] if len(reasons) > SHOWN_FAILURES else []
        super().__init__(
            f"{len(failures)} of {runs} runs failed; the finished runs are stored, so start again to repeat the rest: "
            + "; ".join([*reasons[:SHOWN_FAILURES], *more])
        )


def settings_key(config: Any, **more: Any) -> str:
    """Return a hash of settings that could change a result.

    The locations of data and computed features and the number of threads do not count. The source code of a user's
    own model does, so that no result is found again after the model has changed. Settings at their defaults are left
    out, so that adding a setting to the package does not rename stored results. Seven digits of the noise multiplier
    count, because a calibrated one ends in different digits on another machine.

    Args:
        config: the settings, a dataclass whose fields all have defaults.
        more: further values that the hash should depend on.

    >>> from gnomon.runs.config import TrainConfig
    >>> settings_key(TrainConfig(), label="a") == settings_key(TrainConfig(threads=2), label="a")
    True
    """
    defaults = stored_settings(type(config)())
    values = stored_settings(config) | dict.fromkeys(OF_THE_MACHINE)
    settings = {name: value for name, value in values.items() if value != defaults[name]}
    settings = {name: float(value) if isinstance(value, int) else value for name, value in settings.items()}
    if isinstance(noise := settings.get("noise_multiplier"), float):
        settings["noise_multiplier"] = float(f"{noise:.7g}")
    if is_custom(model := settings.get("model")):
        more["code"] = code_hash(str(model))
    return hashlib.sha256(json.dumps(settings | more, sort_keys=True).encode()).hexdigest()[:16]


def run_cells(
    cells: Sequence[C],
    folder: Path,
    job: Callable[[C], Result],
    *,
    workers: int = 1,
    progress: bool = True,
    complete: Callable[[C, Result], bool] | None = None,
) -> list[Result]:
    """Run the cells that have no stored result yet, in their order, and store every result.

    Several processes may work on the same folder: a cell that another process finished in the meantime is not run
    again. A run that fails does not stop the others.

    Args:
        cells: all cells of the study.
        folder: the output folder.
        job: runs one cell and returns plain values, among them `accuracy`. It must be importable if `workers` is
            above 1.
        workers: the number of processes.
        progress: whether to show a progress bar.
        complete: tells whether a stored result has everything that its cell needs; if not, the cell is run again.

    Returns:
        The results of all cells.

    Raises:
        CellsFailed: at least one run failed. Raised after all other runs have finished.
    """
    whole("workers", workers)
    store = ResultStore(folder)
    store.create()
    keys = {cell: cell.key for cell in cells}
    total = len(set(keys.values()))
    finished = partial(_is_finished, folder=folder, complete=complete)
    missing = list({keys[cell]: cell for cell in cells if not finished(cell)}.values())
    failures: dict[str, Exception] = {}
    with tqdm(total=total, initial=total - len(missing), unit="run", disable=not progress) as bar:
        for cell, outcome in _outcomes(missing, partial(_run_unless_finished, job=job, finished=finished), workers):
            bar.update()
            result = _result_or_error(partial(_checked_result, cell, keys[cell], outcome))
            if isinstance(result, Exception):
                failures[_description(cell)] = result
            elif result is not None:
                settings = stored_settings(cell.config) | {"data_dir": None, "feature_cache": None}
                store.write(keys[cell], {"settings": settings, "versions": versions()} | result)
                bar.set_postfix_str(f"{cell.label}: {100 * result['accuracy']:.1f} %")
    if failures:
        raise CellsFailed(failures, total) from next(iter(failures.values()))
    return [result for _, result in stored_cells(cells, folder)]


def stored_cells(cells: Sequence[C], folder: Path) -> list[tuple[C, Result]]:
    """Return the cells that have a stored result, each with its result under the cell's label.

    >>> stored_cells([], Path("nowhere"))
    []
    """
    store = ResultStore(folder)
    results = [(cell, store.find(cell.key)) for cell in cells]
    return [(cell, result | {"label": cell.label}) for cell, result in results if result is not None]


def _description(cell: StudyCell) -> str:
    """Return the label of a cell with the noise level and the seed, which distinguish it from cells of that label."""
    names = {"noise": "noise_multiplier", "target": "target_epsilon", "seed": "seed"}
    values = {word: getattr(cell.config, name, None) for word, name in names.items()}
    return ", ".join([cell.label, *(f"{word} {value:g}" for word, value in values.items() if value is not None)])


def _outcomes(
    cells: Sequence[C], job: Callable[[C], Result | None], workers: int
) -> Iterator[tuple[C, Result | Exception | None]]:
    """Yield each cell with its result, its exception, or None if another process has stored its result."""
    if workers == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, _result_or_error(partial(job, cell))
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(cells)), mp_context=context, initializer=_exit_with_parent, initargs=(os.getpid(),)
    )
    try:
        waiting: dict[Future[Result | None], C] = {pool.submit(job, cell): cell for cell in cells}
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), _result_or_error(future.result)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _is_finished(cell: C, folder: Path, complete: Callable[[C, Result], bool] | None) -> bool:
    """Return whether a cell has a stored result with everything that the cell needs."""
    result = ResultStore(folder).find(cell.key)
    return result is not None and (complete is None or complete(cell, result))


def _run_unless_finished(cell: C, job: Callable[[C], Result], finished: Callable[[C], bool]) -> Result | None:
    """Run a cell unless another process has stored its result in the meantime."""
    return None if finished(cell) else job(cell)


def _checked_result(cell: StudyCell, key: str, outcome: Result | Exception | None) -> Result | None:
    """Return the result of a cell, unless the model's code or the data file changed since the cell was started."""
    if isinstance(outcome, Exception):
        raise outcome
    if cell.key != key:
        raise StateError("the code of the model or the data file changed during the run; start again to repeat the run")
    return outcome


def _result_or_error(job: Callable[[], Result | None]) -> Result | Exception | None:
    try:
        return job()
    except Exception as error:  # collected and raised at the end: one run must not stop the others
        return error


def _exit_with_parent(parent: int) -> None:
    """End this worker process when its parent is gone, however the parent ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
