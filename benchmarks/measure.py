"""Measurement of step time and peak memory, and the files of the results, shared by all benchmarks."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty
from typing import Any

import torch

Step = Callable[[], object]

RESULTS = Path(__file__).parent / "results"
"""The folder of the results that the documentation shows."""

QUICK_RESULTS = Path(__file__).parents[1] / "runs" / "bench-quick"
"""The folder of quick runs, whose numbers are too noisy for the documentation."""


class Cannot(Exception):
    """An engine does not support a workload; the message is the reason."""


def reason(error: BaseException) -> str:
    """Return a short reason for the results: the message of `Cannot`, else the class and first line of the error."""
    first = next(iter(str(error).splitlines()), "")[:120]
    return first if isinstance(error, Cannot) else f"{type(error).__name__}: {first}"


def ignore_warnings() -> None:
    """Ignore warnings of other libraries, here and in the processes that measure memory."""
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"


# -- time --------------------------------------------------------------------------------------------


def interleaved_times(
    steps: Mapping[str, Step],
    base: str,
    turns: int,
    *,
    steps_per_turn: int = 1,
    warm_up: int = 1,
    seconds: float = math.inf,
    minimum: int = 3,
) -> dict[str, dict[str, float]]:
    """Return the median time of a step, and the median of its ratios to `base`, in wall time and in process time.

    The engines take turns, and each ratio is formed within one turn, so that other load on the machine affects both
    sides. A turn begins with untimed steps: if an engine prepares its next step in a background thread, the timed steps
    contain as much of that work as they cause, and it does not disturb the timed steps of the next engine.

    Args:
        steps: the steps to time, by name.
        base: the name of the step to compare with.
        turns: the largest number of turns.
        steps_per_turn: the number of steps that are timed together, for a cost that only every n-th step has, and for
            steps that are too short for the clock.
        warm_up: the number of untimed steps at the beginning of a turn.
        seconds: time for all turns. An engine that has used up its share takes part in no more than `minimum` turns.
        minimum: the smallest number of turns.
    """
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    spent = dict.fromkeys(steps, 0.0)
    for turn in range(max(minimum, turns)):
        active = [name for name in steps if turn < minimum or spent[name] < seconds / len(steps)]
        if turn >= minimum and not set(active) - {base}:
            break
        for name in [base, *(name for name in active if name != base)]:
            started = time.perf_counter()
            for _ in range(warm_up):
                steps[name]()
            sample = _timed(steps[name], steps_per_turn)
            samples[name].append(sample)
            ratios[name].append((sample[0] / samples[base][-1][0], sample[1] / samples[base][-1][1]))
            spent[name] += time.perf_counter() - started
    return {
        name: {
            "milliseconds": 1e3 * statistics.median(wall for wall, _ in samples[name]),
            "cpu_milliseconds": 1e3 * statistics.median(cpu for _, cpu in samples[name]),
            "ratio": statistics.median(wall for wall, _ in ratios[name]),
            "cpu_ratio": statistics.median(cpu for _, cpu in ratios[name]),
            "turns": len(samples[name]),
        }
        for name in steps
    }


def _timed(step: Step, count: int) -> tuple[float, float]:
    """Return wall time and process time of one of `count` steps, in seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


# -- memory ------------------------------------------------------------------------------------------


def peak_memory(make: Callable[..., Step], *args: Any, warm_up: Callable[..., object] | None = None) -> int:
    """Return the peak memory of a few steps in a new process, in bytes above its memory before.

    Args:
        make: returns the step; its memory counts. Must be picklable, like the arguments.
        args: arguments of `make` and `warm_up`.
        warm_up: called before memory is measured, to import what the step needs.

    Raises:
        Cannot: the process failed.
    """
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_peak, args=(answer, make, args, warm_up))
    process.start()
    while True:
        try:
            peak = answer.get(timeout=1)
            break
        except Empty:
            if not process.is_alive() and answer.empty():  # killed, most likely for want of memory
                raise Cannot(f"the process ended with code {process.exitcode}") from None
    process.join()
    if isinstance(peak, str):
        raise Cannot(peak)
    return int(peak)


def _peak(answer: Any, make: Callable[..., Step], args: tuple[Any, ...], warm_up: Callable[..., object] | None) -> None:
    torch.set_num_threads(1)
    _ = torch.ones(64, 64) @ torch.ones(64, 64)  # load the kernels before memory is measured
    try:
        if warm_up is not None:
            warm_up(*args)
        before = status("VmRSS")
        step = make(*args)
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        for _ in range(3):
            step()
        answer.put(status("VmHWM") - before)
    except Exception as error:
        answer.put(reason(error))


def status(key: str) -> int:
    """Return a quantity of memory of this process, such as VmRSS, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


# -- results -----------------------------------------------------------------------------------------


def save(path: Path, rows: Mapping[str, Any]) -> dict[str, Any]:
    """Add rows to a file of results, where they replace rows of the same name, and return all rows of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(path.read_text()) if path.exists() else {}
    kept = results.get("rows", {}) if isinstance(results, dict) else {}
    merged = {**kept, **rows}
    path.write_text(json.dumps({"machine": machine(), "rows": merged}, indent=2) + "\n")
    return merged


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: processor, torch and Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
