"""Growth of step time and peak memory with the parameters p, the batch B, the length T, and k, m and K.

    python benchmarks/growth.py                  all charts (about an hour)
    python benchmarks/growth.py --only p T       some charts

Each chart shows one thread, and plain SGD beside the methods of Gnomon; both axes are logarithmic. Times in the charts
are process times, because the machine may be shared; growth.json has wall times too. Engines take turns, and memory is
that of a process of its own, as in steps.py. Results are saved after each point, beside those of earlier
runs: growth.json, and growth-p.png and so on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from torch import nn

from engines import GNOMON, PLAIN, VMAP, Engine, load, prepare
from measure import (
    QUICK_RESULTS,
    RESULTS,
    Cannot,
    ignore_warnings,
    interleaved_times,
    peak_memory,
    reason,
    save,
)
from workloads import CNN, DIGITS, VECTORS, DpLsgd, DpSgd, Pcdp, Row, Transformer, mlp, texts

SECONDS = 30.0
"""Time for the turns of one point."""


@dataclass(frozen=True)
class Line:
    """One line of a chart: an engine, and its row for each value."""

    label: str
    row: Callable[[int], Row]
    engine: Engine = GNOMON
    style: str = "o-"
    colour: str = "#1f6feb"


@dataclass(frozen=True)
class Sweep:
    """One chart: what grows, its values, and the lines beside plain SGD, which runs the row of the first line."""

    name: str
    axis: str
    title: str
    values: tuple[int, ...]
    lines: tuple[Line, ...]
    few: int = 3
    """The number of values, from the smallest, that --quick measures."""


def _mlp(method: Any, width: int) -> Row:
    return Row(f"MLP of width {width}", partial(mlp, 784, width, width, 10), VECTORS, 64, method)


def _cnn(method: Any, batch: int) -> Row:
    return Row(f"CNN, B = {batch}", CNN, DIGITS, batch, method)


def _text(method: Any, length: int) -> Row:
    return Row(f"Transformer, T = {length}", Transformer, partial(texts, length, 512), 8, method)


def _rank(rank: int) -> Row:
    return _cnn(Pcdp(512, rank), 250)


def _public(count: int) -> Row:
    return _cnn(Pcdp(count, 16), 250)


def _local(steps: int) -> Row:
    return Row(f"MLP, K = {steps}", partial(mlp, 784, 256, 256, 10), VECTORS, 250, DpLsgd(steps))


PURPLE, RED = "#7a5195", "#b5482a"
SWEEPS = (
    Sweep("p", "parameters p", "MLP, B = 64; PCDP with m = k = 100", (12, 48, 256, 700, 2800, 9600), (
        Line("DP-SGD", partial(_mlp, DpSgd())),
        Line("PCDP", partial(_mlp, Pcdp(100, 100)), style="s-", colour=PURPLE),
        Line("PCDP, dense matrices", partial(_mlp, Pcdp(100, 100)), VMAP, "^-", RED),
    )),
    Sweep("B", "records in a batch B", "CNN of 26k parameters; PCDP with m = k = 100", (16, 64, 256, 1024, 4096), (
        Line("DP-SGD", partial(_cnn, DpSgd())),
        Line("PCDP", partial(_cnn, Pcdp(100, 100)), style="s-", colour=PURPLE),
    )),
    Sweep("T", "positions T", "Transformer 3.4M, B = 8; PCDP with m = k = 8", (16, 32, 64, 128, 256, 512), (
        Line("DP-SGD", partial(_text, DpSgd())),
        Line("PCDP", partial(_text, Pcdp(8, 8)), style="s-", colour=PURPLE),
    )),
    Sweep("k", "dimensions k", "CNN of 26k parameters, B = 250; PCDP with m = 512", (4, 16, 64, 128, 256, 512), (
        Line("PCDP", _rank, style="s-", colour=PURPLE),
    )),
    Sweep("m", "public records m", "CNN of 26k parameters, B = 250; PCDP with k = 16", (16, 64, 256, 1024), (
        Line("PCDP", _public, style="s-", colour=PURPLE),
    )),
    Sweep("K", "local steps K", "MLP of 270k parameters, B = 250", (1, 2, 5, 10, 20, 50), (
        Line("DP-LSGD", _local),
    )),
)  # fmt: skip
"""All charts."""


def x_value(sweep: Sweep, value: int) -> int:
    """Return the position on the horizontal axis: the parameters of an MLP in the place of its width."""
    if sweep.name != "p":
        return value
    with torch.device("meta"):
        return _parameters(sweep.lines[0].row(value).model())


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def measure(sweep: Sweep, value: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure all lines at one point."""
    cases = {"plain SGD": (sweep.lines[0].row(value), PLAIN)}
    cases |= {line.label: (line.row(value), line.engine) for line in sweep.lines}
    results: dict[str, Any] = {}
    steps = {}
    for label, (row, engine) in cases.items():
        try:
            steps[label] = prepare(row, engine)
            steps[label]()
        except Exception as error:  # dense matrices do not fit
            steps.pop(label, None)
            results[label] = {"cannot": reason(error)}
    turns, minimum = (1, 1) if args.quick else (round(15 * args.repeats), 3)
    seconds = SECONDS * args.repeats
    results |= interleaved_times(steps, "plain SGD", turns, seconds=seconds, minimum=minimum)
    for label in steps:
        try:
            results[label]["memory"] = peak_memory(prepare, *cases[label], warm_up=load)
        except Cannot as error:
            results[label]["memory_cannot"] = str(error)
    return {"x": x_value(sweep, value), "lines": results, "quick": args.quick}


def chart(sweep: Sweep, points: Mapping[str, Any], path: Path) -> None:
    """Draw time and memory of one sweep."""
    figure = Figure(figsize=(9, 3.8), dpi=130, layout="constrained")
    panels = figure.subplots(1, 2)
    styles = {"plain SGD": ("#6b7785", "d--")} | {line.label: (line.colour, line.style) for line in sweep.lines}
    ordered = sorted(points.values(), key=lambda point: point["x"])
    for axes, key, unit, title in zip(
        panels, ("cpu_milliseconds", "memory"), (1, 2**20), ("processor ms per step", "peak memory (MB)"), strict=True
    ):
        for label, (colour, style) in styles.items():
            drawn = [(p["x"], p["lines"][label][key] / unit) for p in ordered if key in p["lines"].get(label, {})]
            if drawn:
                axes.plot(*zip(*drawn, strict=True), style, color=colour, label=label, markersize=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        if sweep.name != "p":
            axes.set_xticks([point["x"] for point in ordered], [str(point["x"]) for point in ordered])
            axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(sweep.axis)
        axes.set_ylabel(title)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    figure.suptitle(f"{sweep.title}, one thread", fontsize=11)
    figure.savefig(path)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [sweep.name for sweep in SWEEPS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="what grows (default: all)")
    parser.add_argument("--repeats", type=float, default=1.0, help="factor on the number of turns (default: 1)")
    parser.add_argument("--quick", action="store_true", help="one turn and the smallest values only")
    parser.add_argument("--out", type=Path, help=f"folder of the results (default: {RESULTS.parent.name}/results, or "
                        f"{QUICK_RESULTS.parent.name}/{QUICK_RESULTS.name} with --quick)")  # fmt: skip
    return parser


def main() -> None:
    args = arguments().parse_args()
    ignore_warnings()
    torch.set_num_threads(1)
    out = args.out or (QUICK_RESULTS if args.quick else RESULTS)
    for sweep in SWEEPS:
        if sweep.name not in args.only:
            continue
        points: dict[str, Any] = {}
        for value in sweep.values[: sweep.few] if args.quick else sweep.values:
            started = time.perf_counter()
            points[str(value)] = measure(sweep, value, args)
            seconds = time.perf_counter() - started
            print(f"{sweep.name} = {points[str(value)]['x']}: done ({seconds:.0f} s)", flush=True)
            save(out / "growth.json", {sweep.name: points})
        chart(sweep, points, out / f"growth-{sweep.name}.png")
    print(f"saved growth.json and growth-*.png in {out}")


if __name__ == "__main__":
    main()
