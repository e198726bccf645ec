"""Time and memory of one private step, compared with plain SGD and with other libraries in the same run.

    python benchmarks/steps.py                            all rows (about an hour)
    python benchmarks/steps.py --only GPT-2 --quick       some rows, roughly
    python benchmarks/steps.py --fastdp PATH --jax PYTHON with further libraries
    python benchmarks/steps.py --list                     the names of the rows

Only ratios to plain SGD mean something, because the machine may be shared. Engines take turns, and a reported time is
the median of the ratios within a turn: of wall time, and with one thread also of process time ("cpu"), which counts
background threads. Memory is the peak of the process during steps, above its memory before the model was created; each
engine runs in a process of its own. JAX runs in a process of its own too, and is compared with plain SGD in JAX.

Before an engine is timed, its step is compared with the definition of DP-SGD on two records: an engine that computes
something else, or cannot run a row, gets a reason in the place of a number. Results are saved after each row, beside
rows of earlier runs: steps.json, steps.md and steps.png.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from engines import ENGINES, ONLY_DP_SGD, PLAIN, load, prepare, prepare_run, quiet, refuse_wrong_steps
from measure import QUICK_RESULTS, RESULTS, Cannot, Step, ignore_warnings, interleaved_times, peak_memory, reason, save
from workloads import ROWS, DpSgd, Row

SECONDS = 40.0
"""Time for the turns of one row."""
TURNS = 31
STUDY_STEPS, QUICK_STUDY_STEPS = 100, 10
"""The steps of a study that are measured, and extrapolated, unless --full is given."""
JAX = "JAX-Privacy"
COLOURS = {**{engine.name: engine.colour for engine in ENGINES}, JAX: "#e8a317"}
Result = dict[str, Any]


# -- measurement -------------------------------------------------------------------------------------


def measure(row: Row, args: argparse.Namespace) -> Result:
    """Measure all engines on one row."""
    torch.set_num_threads(row.threads)
    engines: dict[str, Result] = {}
    steps = {}
    count = row.run_steps if args.full else QUICK_STUDY_STEPS if args.quick else STUDY_STEPS
    for engine in ENGINES:
        try:
            refuse_wrong_steps(row, engine)
            steps[engine.name] = prepare_run(row, engine, count) if row.run_steps else prepare(row, engine)
            if not row.run_steps:
                with quiet():
                    steps[engine.name]()
        except Exception as error:  # an engine may not support a row: report the reason and continue
            steps.pop(engine.name, None)
            engines[engine.name] = {"cannot": reason(error)}
    if PLAIN.name not in steps:
        return {"engines": engines}
    if row.run_steps:
        engines |= study(row, steps, count, args)
    else:
        engines |= interleaved_times(
            steps,
            PLAIN.name,
            1 if args.quick else round(TURNS * args.repeats),
            steps_per_turn=row.steps_per_turn,
            seconds=SECONDS * args.repeats,
            minimum=1 if args.quick else 3,
        )
    steps.clear()  # memory of the machine, for the other processes
    if row.memory:
        add_memory(row, engines)
    if args.jax:
        engines[JAX] = with_jax(row, args.jax, 1.0 if args.quick else SECONDS * args.repeats / 4)
    order = [*(engine.name for engine in ENGINES), JAX]
    return {"threads": row.threads, "engines": {name: engines[name] for name in order if name in engines}}


def study(row: Row, runs: Mapping[str, Step], count: int, args: argparse.Namespace) -> dict[str, Result]:
    """Measure runs of `count` steps, and extrapolate them to the steps of the row if there are fewer.

    Shorter runs beside them tell what a run costs once, such as checks of the records, from what each step costs.
    """
    short = max(1, count // 5)
    engines = {engine.name: engine for engine in ENGINES}
    shorter = {f"{name}, short": prepare_run(row, engines[name], short) for name in runs} if not args.full else {}
    turns = 1 if args.quick or args.full else 3
    times = interleaved_times({**runs, **shorter}, PLAIN.name, turns, warm_up=0, minimum=turns)
    results: dict[str, Result] = {}
    for name in runs:
        result: Result = {"measured_steps": count, "steps": row.run_steps, "turns": turns}
        for key in ("", "cpu_"):
            seconds = times[name][f"{key}milliseconds"] / 1e3
            if count < row.run_steps:
                per_step = (seconds - times[f"{name}, short"][f"{key}milliseconds"] / 1e3) / (count - short)
                seconds += (row.run_steps - count) * per_step
            result[f"{key}seconds"] = seconds
            base = result if name == PLAIN.name else results[PLAIN.name]
            result[f"{key}ratio"] = seconds / base[f"{key}seconds"]
        results[name] = result
    return results


def add_memory(row: Row, engines: Mapping[str, Result]) -> None:
    """Measure the peak memory of every engine that runs the row."""
    for engine in ENGINES:
        result = engines[engine.name]
        if "cannot" not in result:
            try:
                result["memory"] = peak_memory(prepare, row, engine, warm_up=load)
                result["memory_ratio"] = result["memory"] / engines[PLAIN.name]["memory"]
            except Cannot as error:
                result["memory_cannot"] = str(error)


def with_jax(row: Row, python: Path, seconds: float) -> Result:
    """Measure JAX-Privacy on the same model in a process of its own, relative to plain SGD in JAX."""
    if not isinstance(row.method, DpSgd):
        return {"cannot": ONLY_DP_SGD}
    if row.jax is None:
        return {"cannot": "this row is not written in JAX"}
    script = str(Path(__file__).with_name("jax_steps.py"))
    command = [str(python), script, row.jax, "--batch", str(row.batch), "--threads", str(row.threads)]
    try:
        result = _json([*command, "--seconds", str(seconds)])
        if row.memory:
            micro = ["--microbatch", str(result["microbatch_size"])] if result["microbatch_size"] else []
            peaks = {key: _json([*command, *micro, "--memory", key])["memory"] for key in ("plain", "private")}
            result["memory"], result["memory_ratio"] = peaks["private"], peaks["private"] / peaks["plain"]
    except (OSError, subprocess.CalledProcessError, json.JSONDecodeError) as error:
        text = str(getattr(error, "stderr", None) or error).strip()
        return {"cannot": text.splitlines()[-1][:120]}
    return result


def _json(command: Sequence[str]) -> Result:
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result: Result = json.loads(output.splitlines()[-1])
    return result


# -- table and chart ---------------------------------------------------------------------------------


def columns(rows: Mapping[str, Result]) -> list[str]:
    """Return the engines that ran at least one of the rows, plain SGD first."""
    return [name for name in COLOURS if any("ratio" in row["engines"].get(name, {}) for row in rows.values())]


def table(rows: Mapping[str, Result]) -> str:
    """Return all results as one Markdown table of ratios to plain SGD, with footnotes."""
    names = columns(rows)
    notes: dict[str, int] = {}
    lines = ["| row | measure | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for label, row in rows.items():
        for measure_, key in (("time", "ratio"), ("cpu time", "cpu_ratio"), ("memory", "memory_ratio")):
            hidden = key == "cpu_ratio" and row.get("threads", 1) > 1
            if hidden or not any(key in result for result in row["engines"].values()):
                continue
            cells = [_cell(label, name, row["engines"].get(name), key, notes) for name in names]
            lines.append(f"| {label} | {measure_} | " + " | ".join(cells) + " |")
    lines += ["", "Plain SGD in absolute numbers, others as ratios to it.", ""]
    return "\n".join(lines + [f"{number}. {text}" for text, number in notes.items()]) + "\n"


def _cell(label: str, name: str, result: Result | None, key: str, notes: dict[str, int]) -> str:
    if result is None:
        return ""
    if key not in result:
        return "–" + _note(f"Cannot: {result.get('cannot') or result.get('memory_cannot')}.", notes)
    marks = ""
    if name == JAX:
        marks += _note("Relative to plain SGD in JAX, in a process of its own, with the fastest microbatches.", notes)
    if "measured_steps" in result and result["measured_steps"] < result["steps"]:
        marks += _note(f"Extrapolated from {result['measured_steps']} to {result['steps']} steps.", notes)
    if name == PLAIN.name:
        return _absolute(result, key) + marks
    if label.startswith("Overhead") and key == "cpu_ratio":
        return f"{result[key]:.2f} ({result['cpu_milliseconds']:.2f} ms)" + marks
    return f"{result[key]:.2f}" + marks


def _absolute(result: Result, key: str) -> str:
    if key == "memory_ratio":
        return f"{result['memory'] / 2**20:.0f} MB"
    prefix = "cpu_" if key == "cpu_ratio" else ""
    if "seconds" in result:
        return f"{result[prefix + 'seconds']:.0f} s"
    return f"{result[prefix + 'milliseconds']:.2f} ms"


def _note(text: str, notes: dict[str, int]) -> str:
    return f" [{notes.setdefault(text, len(notes) + 1)}]"


def chart(rows: Mapping[str, Result], path: Path) -> None:
    """Draw time and memory of all rows and engines as ratios to plain SGD."""
    names = [name for name in columns(rows) if name != PLAIN.name]
    labels = list(rows)
    figure = Figure(figsize=(11, 1.9 + 0.3 * len(labels)), dpi=130, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key, title in zip(panels, ("ratio", "memory_ratio"), ("time of a step", "peak memory"), strict=True):
        for place, name in enumerate(names):
            shift = 0.5 * (place / max(1, len(names) - 1) - 0.5)  # markers of equal values stay visible
            found = [
                (rows[label]["engines"][name][key], y + shift)
                for y, label in enumerate(labels)
                if key in rows[label]["engines"].get(name, {})
            ]
            size = 42 if name == "Gnomon" else 24
            axes.scatter(*zip(*found, strict=True) if found else ([], []), size, COLOURS[name], label=name, zorder=3)
        axes.axvline(1, color="#1f2933", linestyle="--", linewidth=1)
        axes.set_xscale("log")
        ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.set_xlabel(f"{title} / plain SGD")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(labels)), labels, fontsize=8)
    panels[0].set_ylim(len(labels) - 0.5, -0.5)
    handles, texts = panels[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside upper center", ncols=len(names), frameon=False, fontsize=8)
    figure.savefig(path)


def store(out: Path, results: Mapping[str, Result]) -> None:
    """Add rows to the results of earlier runs, and write table and chart of all of them."""
    merged = save(out / "steps.json", results)
    order = [row.name for row in ROWS]
    rows = dict(sorted(merged.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    (out / "steps.md").write_text(table(rows))
    chart(rows, out / "steps.png")


# -- command line ------------------------------------------------------------------------------------


def selected(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Row]:
    """Return the rows that the options ask for."""
    rows = [row for row in ROWS if args.large or not row.large]
    if args.threads:
        labels = {row.label: row for row in reversed(rows)}
        rows = [replace(labels[label], threads=n) for n in args.threads for label in reversed(labels)]
    chosen = [row for row in rows if not args.only or any(text.lower() in row.name.lower() for text in args.only)]
    if not chosen:
        known = "\n  ".join(row.name + (" (with --large)" if row.large else "") for row in ROWS)
        parser.error(f"no row contains {' or '.join(map(repr, args.only))}; the rows are:\n  {known}")
    return chosen


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="measure only rows whose names contain a text")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and stop")
    parser.add_argument("--repeats", type=float, default=1.0, help="factor on the number of turns (default: 1)")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="threads of torch (default: as in the row)")
    parser.add_argument("--quick", action="store_true", help="one turn: shows that every row runs, with rough numbers")
    parser.add_argument("--full", action="store_true", help="run all steps of the study (about 10 minutes per engine)")
    parser.add_argument("--large", action="store_true", help="also GPT-2 of 124M parameters (gigabytes and minutes)")
    parser.add_argument("--fastdp", type=Path, metavar="PATH", help="folder of a checkout of FastDP, to compare with")
    parser.add_argument("--jax", type=Path, metavar="PYTHON", help="Python interpreter that has jax-privacy")
    parser.add_argument("--out", type=Path, help=f"folder of the results (default: {RESULTS.parent.name}/results, or "
                        f"{QUICK_RESULTS.parent.name}/{QUICK_RESULTS.name} with --quick)")  # fmt: skip
    return parser


def main() -> None:
    parser = arguments()
    args = parser.parse_args()
    rows = selected(args, parser)
    if args.list:
        print("\n".join(row.name for row in rows))
        return
    if args.fastdp:
        if not (args.fastdp / "fastDP").is_dir():
            parser.error(f"--fastdp {args.fastdp}: no folder fastDP in it; give the checkout of FastDP")
        sys.path.insert(0, str(args.fastdp.resolve()))  # also in the processes that measure memory
    ignore_warnings()
    out = args.out or (QUICK_RESULTS if args.quick else RESULTS)
    results: dict[str, Result] = {}
    for number, row in enumerate(rows, 1):
        started = time.perf_counter()
        print(f"[{number}/{len(rows)}] {row.name}: ", end="", flush=True)
        results[row.name] = measure(row, args) | {"quick": args.quick, "repeats": args.repeats}
        summary = results[row.name]["engines"].get("Gnomon", {})
        text = f"Gnomon {summary['ratio']:.2f}" if "ratio" in summary else summary.get("cannot", "failed")
        print(f"{text} ({time.perf_counter() - started:.0f} s)", flush=True)
        store(out, results)
    print("\n" + table(results))
    print(f"saved steps.json, steps.md and steps.png in {out}")


if __name__ == "__main__":
    main()
