"""Time and memory of one private step, compared with plain SGD and Opacus in the same run.

    python benchmarks/steps.py [--repeats 1.0] [--threads 1 2] [--out benchmarks/results]

Only ratios to plain SGD are reported, because the machine may be shared. Engines take turns, and a reported time is the
median of the ratios within a turn. Memory is the peak of the process during steps, above its memory before the model
was created; each engine runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from engines import ENGINES
from measure import Step, interleaved_times, peak_memory
from workloads import WORKLOADS, Workload

COLOURS = {
    "Gnomon": "#1f6feb",
    "Gnomon, no noise": "#9ec5fe",
    "Opacus hooks": "#b5482a",
    "Opacus ghost": "#e2a78f",
}


def timings(work: Workload, threads: int, repeats: float) -> dict[str, dict[str, Any]]:
    """Return milliseconds and ratio to plain SGD for every engine, or the error of an engine that fails."""
    torch.set_num_threads(threads)
    steps, failed = {}, {}
    for name in ENGINES:
        try:
            steps[name] = prepared(WORKLOADS.index(work), name)
            steps[name]()
        except Exception as error:  # an engine may not support a model: report the error and continue
            steps.pop(name, None)
            failed[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"}
    return interleaved_times(steps, "plain SGD", round(work.repeats * repeats)) | failed


def prepared(index: int, engine: str) -> Step:
    """Return the step of one engine on one workload."""
    torch.manual_seed(0)
    work = WORKLOADS[index]
    return ENGINES[engine](work.model(), *work.batch())


def memory(index: int) -> dict[str, int | None]:
    """Return the peak memory of every engine on one workload, in bytes."""
    return {engine: peak_memory(prepared, index, engine) for engine in ENGINES}


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as Markdown tables of time and memory."""
    names = list(ENGINES)
    lines = ["| work | threads | SGD ms | " + " | ".join(names[1:]) + " |", "|---" * (len(names) + 2) + "|"]
    for row in results:
        cells = [
            f"{row['engines'][name]['ratio']:.2f}" if "ratio" in row["engines"][name] else "failed"
            for name in names[1:]
        ]
        base = row["engines"]["plain SGD"]["milliseconds"]
        lines.append(f"| {row['work']} | {row['threads']} | {base:.1f} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| peak memory, ratio to SGD | SGD MB | " + " | ".join(names[1:]) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for row in results:
        if "memory" not in row:
            continue
        base = row["memory"]["plain SGD"]
        cells = [f"{row['memory'][n] / base:.2f}" if row["memory"][n] else "failed" for n in names[1:]]
        lines.append(f"| {row['work']} | {base / 2**20:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def chart(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the step time of each workload with one thread as bars; the dashed line is plain SGD."""
    rows = [row for row in results if row["threads"] == results[0]["threads"]]
    figure = Figure(figsize=(9, 3.8), dpi=130, layout="constrained")
    axes = figure.subplots()
    for offset, (name, colour) in enumerate(COLOURS.items()):
        values = [row["engines"][name].get("ratio", 0.0) for row in rows]
        bars = axes.bar([i + 0.2 * offset for i in range(len(rows))], values, 0.19, label=name, color=colour)
        axes.bar_label(bars, labels=[f"{v:.1f}" if v else "–" for v in values], fontsize=8, padding=1)
    axes.axhline(1, color="#1f2933", linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_ylim(0.8, None)
    axes.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.set_xticks([i + 0.3 for i in range(len(rows))], [row["work"] for row in rows])
    axes.set_ylabel("time of a step / plain SGD")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("One private step, one thread", fontsize=11)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=float, default=1.0, help="factor on the number of turns (default: 1)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default: 1 2)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder for the results")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    for threads in args.threads:
        for index, work in enumerate(WORKLOADS):
            row: dict[str, Any] = {"work": work.name, "threads": threads}
            row["engines"] = timings(work, threads, args.repeats)
            if threads == args.threads[0]:
                row["memory"] = memory(index)
            results.append(row)
            print(f"{work.name}, {threads} threads: done", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "steps.json").write_text(json.dumps(results, indent=2) + "\n")
    (args.out / "steps.md").write_text(table(results))
    chart(results, args.out / "steps.png")
    print("\n" + table(results))
    print(f"saved steps.json, steps.md and steps.png in {args.out}")


if __name__ == "__main__":
    main()
