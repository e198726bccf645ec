"""Measurement of step time and peak memory, shared by all benchmarks."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Step = Callable[[], object]


def interleaved_times(steps: Mapping[str, Step], base: str, repeats: int) -> dict[str, dict[str, float]]:
    """Return the median step time in milliseconds, and the median of the ratios to `base`.

    The steps take turns, and each ratio is formed within one turn, so that other load on the machine affects both
    sides.

    Args:
        steps: the steps to time, by name.
        base: the name of the step to compare with.
        repeats: the number of turns, at least 3.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    for _ in range(max(3, repeats)):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    return {
        name: {
            "milliseconds": 1e3 * statistics.median(values),
            "ratio": statistics.median(a / b for a, b in zip(values, seconds[base], strict=True)),
        }
        for name, values in seconds.items()
    }


def peak_memory(make: Callable[..., Step], *args: Any) -> int | None:
    """Return the peak memory of a few steps in a new process, in bytes above its memory before; None if it fails."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_peak, args=(answer, make, args))
    process.start()
    peak: int | None = answer.get(timeout=900)
    process.join()
    return peak


def _peak(answer: Any, make: Callable[..., Step], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    _ = torch.ones(64, 64) @ torch.ones(64, 64)  # load the kernels before memory is measured
    try:
        before = _status("VmRSS")
        step = make(*args)
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        for _ in range(3):
            step()
        answer.put(_status("VmHWM") - before)
    except Exception:
        answer.put(None)


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])
