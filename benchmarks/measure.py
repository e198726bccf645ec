"""Time by turns and memory by processes: how every benchmark here measures."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Step = Callable[[], object]


def by_turns(steps: Mapping[str, Step], base: str, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds, and the median of the ratios to `base` within a turn: the machine may be shared."""
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
    """Peak memory of a few steps above what the process had before, in a process of its own; None if it fails."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_peak, args=(answer, make, args))
    process.start()
    found: int | None = answer.get(timeout=900)
    process.join()
    return found


def _peak(answer: Any, make: Callable[..., Step], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    _ = torch.ones(64, 64) @ torch.ones(64, 64)  # loads the kernels
    try:
        before = _status("VmRSS")
        step = make(*args)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        for _ in range(3):
            step()
        answer.put(_status("VmHWM") - before)
    except Exception:
        answer.put(None)


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])
