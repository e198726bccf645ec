"""Compare DP-LSGD with DP-SGD after the same search for step size and clip bound at each number of local steps K.

    python experiments/local_steps.py [--data mnist] [--epsilons 2,1] [--epochs 5] [--seeds 3] [--workers 1] [--out DIR]

K = 1 is DP-SGD with a clip bound on step size times gradient. For each K the script searches over step sizes eta_1 / K
and clip bounds with one seed at the first epsilon, selects the best by test accuracy, and runs it on all seeds and at
all epsilons. K = 1 with five times the noisy steps is DP-SGD with the compute of K = 5, with noise calibrated for that
number of steps. Finished runs are stored, so that a stopped study continues when it is started again.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gnomon.accounting import noise_multiplier
from gnomon.figures.picture import WARNING
from gnomon.runs.config import default_settings
from gnomon.studies.compare import grid, run_grid
from gnomon.studies.method_specs import MethodSpec

STEP_SIZES, BOUNDS, LOCAL_STEPS = (0.1, 1.0), (0.1, 0.3, 1.0), (1, 2, 5, 10)
LONGER = 5
"""The factor by which DP-SGD takes more steps in the comparison at equal compute with five local steps."""


def method(steps: int, first: float, bound: float) -> MethodSpec:
    """Return DP-LSGD with step size `first / steps`, rounded so that its label is exact."""
    step_size = float(f"{first / steps:g}")
    return MethodSpec("dp-lsgd", {"local-steps": steps, "local-lr": step_size, "max-grad-norm": bound})


def study(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each K and epsilon, with the best settings and their accuracy over seeds."""
    base = dataclasses.replace(
        default_settings(args.data),
        private_records=args.private_records,
        lr=1.0,
        batch_size=args.batch_size,
        data_dir=args.data_dir,
    )
    rows = []
    best: dict[tuple[int, int], tuple[MethodSpec, dict[str, float]]] = {}
    for epsilon, (steps, longer) in itertools.product(args.epsilons, [*((k, 1) for k in LOCAL_STEPS), (1, LONGER)]):
        config = dataclasses.replace(base, epochs=args.epochs * longer)
        rate = args.batch_size / args.private_records
        sigma = noise_multiplier(
            target_epsilon=epsilon, sample_rate=rate, steps=round(config.epochs / rate), delta=config.target_delta
        )

        def run(
            methods: list[MethodSpec], seeds: int, config: Any = config, sigma: float = sigma
        ) -> list[dict[str, Any]]:
            cells = grid(config, methods, [sigma], seeds)
            return run_grid(cells, args.out, workers=args.workers, progress=False)

        if (steps, longer) not in best:
            candidates = [method(steps, first, bound) for first, bound in itertools.product(STEP_SIZES, BOUNDS)]
            searched = {result["label"]: 100 * result["accuracy"] for result in run(candidates, 1)}
            best[steps, longer] = max(candidates, key=lambda spec: searched[spec.label]), searched
        results = run([best[steps, longer][0]], args.seeds)
        scores = [100 * result["accuracy"] for result in results]
        rows.append(
            {
                "epsilon": epsilon,
                "K": steps,
                "steps": round(config.epochs / rate),
                "sigma": sigma,
                "local lr": results[0]["settings"]["local_lr"],
                "C": results[0]["settings"]["max_grad_norm"],
                "mean": statistics.fmean(scores),
                "std": statistics.stdev(scores) if len(scores) > 1 else None,
                "seconds": statistics.fmean(result["seconds"] for result in results),
                "searched": best[steps, longer][1],
                "history": results[0]["history"],
            }
        )
        print({key: value for key, value in rows[-1].items() if key not in ("history", "searched")}, flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| epsilon | K | noisy steps T | sigma | local step size | C | accuracy, % | psi, mean | seconds |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        psi = row["history"][-1].get("unprotected/incremental/mean")
        spread = "" if row["std"] is None else f" ± {row['std']:.1f}"
        lines.append(
            f"| {row['epsilon']:g} | {row['K']} | {row['steps']} | {row['sigma']:.2f} | {row['local lr']:g} "
            f"| {row['C']:g} | {row['mean']:.1f}{spread} | {psi:.2f} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the incremental norms during training for K = 1 and the largest K, and the accuracy."""
    epsilon = rows[0]["epsilon"]
    fewest_steps = min(row["steps"] for row in rows)
    shown = [row for row in rows if row["epsilon"] == epsilon and row["steps"] == fewest_steps]
    figure = Figure(figsize=(11, 3.6), dpi=130, layout="constrained")
    axes = figure.subplots(1, 3)
    top = 0.0
    for panel, row in zip(axes, (shown[0], shown[-1]), strict=False):
        epochs = [entry["epoch"] for entry in row["history"]]
        psi = {
            statistic: [entry[f"unprotected/incremental/{statistic}"] for entry in row["history"]]
            for statistic in ("mean", "q25", "q50", "q75")
        }
        panel.fill_between(
            epochs, psi["q25"], psi["q75"], color="#1f6feb", alpha=0.2, label="middle half of the samples"
        )
        panel.plot(epochs, psi["q50"], "-", color="#1f6feb", label="median")
        panel.plot(epochs, psi["mean"], "--", color="#b5482a", label="mean")
        panel.set_title(f"K = {row['K']}, eta = {row['local lr']:g}, C = {row['C']:g}", fontsize=10)
        panel.set_ylabel("incremental norm / eta (unprotected)")
        top = max(top, *psi["q75"], *psi["mean"])
    for panel in axes[:2]:
        panel.set_ylim(0, 1.05 * top)
        panel.legend(frameon=False, fontsize=8)
    for row, shade in zip(shown, ("#9aa5b1", "#7cb3f0", "#3f8ae0", "#0b4fa8"), strict=True):
        scores = [100 * entry["validation/accuracy"] for entry in row["history"]]
        axes[2].plot([entry["epoch"] for entry in row["history"]], scores, "o-", color=shade, label=f"K = {row['K']}")
    axes[2].set_ylabel("test accuracy (%)")
    axes[2].legend(frameon=False, fontsize=8)
    for panel in axes:
        panel.set_xlabel("epoch")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    about = f"Norm removed by clipping, and accuracy, at epsilon = {epsilon:g}"
    figure.suptitle(f"{about} ({WARNING})", fontsize=11)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--private-records", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--epsilons", type=lambda text: [float(x) for x in text.split(",")], default=[2.0, 1.0])
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes, with one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/local-steps"))
    args = parser.parse_args()
    rows = study(args)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "local_steps.json").write_text(json.dumps(rows, indent=2) + "\n")
    (args.out / "local_steps.md").write_text(markdown(rows))
    draw(rows, args.out / "local_steps-unprotected.png")
    print("\n" + markdown(rows))


if __name__ == "__main__":
    main()
