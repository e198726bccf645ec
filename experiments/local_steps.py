"""DP-LSGD against DP-SGD: the same search of step size and clip bound for each K, the best one on more seeds.

    python experiments/local_steps.py [--data mnist] [--epsilons 2,1] [--epochs 5] [--seeds 3] [--workers 1] [--out DIR]

K = 1 is DP-SGD with the bound on step size times gradient. Every K gets the same search at the first epsilon: step
sizes eta_1 / K and bounds, one seed, chosen by test accuracy at the end; the choice then runs on all seeds and at all
epsilons. K = 1 with five times the noisy steps is DP-SGD with the compute of K = 5, its noise worked out for as many
steps. Finished runs are kept: start it again to go on.
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
from gnomon.runs.config import recipe
from gnomon.studies import compare

STEP_SIZES, BOUNDS, LOCAL_STEPS = (0.1, 1.0), (0.1, 0.3, 1.0), (1, 2, 5, 10)
LONGER = 5
"""How many times the steps DP-SGD gets in the comparison at equal compute: that of five local steps."""


def label(steps: int, first: float, bound: float) -> str:
    return f"dp-lsgd:local-steps={steps},local-lr={first / steps:g},max-grad-norm={bound:g}"


def study(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each K and epsilon: the best setting, and its accuracy over seeds."""
    base = dataclasses.replace(
        recipe(args.data),
        private_records=args.private_records,
        lr=1.0,
        batch_size=args.batch_size,
        data_dir=args.data_dir,
    )
    rows = []
    best: dict[tuple[int, int], tuple[str, dict[str, float]]] = {}
    for epsilon, (steps, longer) in itertools.product(args.epsilons, [*((k, 1) for k in LOCAL_STEPS), (1, LONGER)]):
        config = dataclasses.replace(base, epochs=args.epochs * longer)
        rate = args.batch_size / args.private_records
        sigma = noise_multiplier(
            target_epsilon=epsilon, sample_rate=rate, steps=round(config.epochs / rate), delta=config.target_delta
        )

        def run(labels: list[str], seeds: int, config: Any = config, sigma: float = sigma) -> list[dict[str, Any]]:
            cells = compare.grid(config, labels, [sigma], seeds)
            return compare.run(cells, args.out, workers=args.workers, progress=False)

        if (steps, longer) not in best:
            tried = [label(steps, first, bound) for first, bound in itertools.product(STEP_SIZES, BOUNDS)]
            searched = {one["label"]: 100 * one["accuracy"] for one in run(tried, 1)}
            best[steps, longer] = max(searched, key=searched.__getitem__), searched
        found = run([best[steps, longer][0]], args.seeds)
        scores = [100 * one["accuracy"] for one in found]
        rows.append(
            {
                "epsilon": epsilon,
                "K": steps,
                "steps": round(config.epochs / rate),
                "sigma": sigma,
                "local lr": found[0]["settings"]["local_lr"],
                "C": found[0]["settings"]["max_grad_norm"],
                "mean": statistics.fmean(scores),
                "std": statistics.stdev(scores) if len(scores) > 1 else None,
                "seconds": statistics.fmean(one["seconds"] for one in found),
                "searched": best[steps, longer][1],
                "history": found[0]["history"],
            }
        )
        print({key: value for key, value in rows[-1].items() if key not in ("history", "searched")}, flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| epsilon | K | noisy steps T | sigma | local step | C | accuracy, % | psi, mean | seconds |",
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


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Incremental norms over the run for K = 1 and the largest K, and accuracy."""
    epsilon = rows[0]["epsilon"]
    short = min(row["steps"] for row in rows)
    mine = [row for row in rows if row["epsilon"] == epsilon and row["steps"] == short]
    figure = Figure(figsize=(11, 3.6), dpi=130, layout="constrained")
    axes = figure.subplots(1, 3)
    top = 0.0
    for place, row in zip(axes, (mine[0], mine[-1]), strict=False):
        epochs = [one["epoch"] for one in row["history"]]
        psi = {
            k: [one[f"unprotected/incremental/{k}"] for one in row["history"]] for k in ("mean", "q25", "q50", "q75")
        }
        place.fill_between(
            epochs, psi["q25"], psi["q75"], color="#1f6feb", alpha=0.2, label="middle half of the samples"
        )
        place.plot(epochs, psi["q50"], "-", color="#1f6feb", label="median")
        place.plot(epochs, psi["mean"], "--", color="#b5482a", label="mean")
        place.set_title(f"K = {row['K']}, eta = {row['local lr']:g}, C = {row['C']:g}", fontsize=10)
        place.set_ylabel("incremental norm / eta (unprotected)")
        top = max(top, *psi["q75"], *psi["mean"])
    for place in axes[:2]:
        place.set_ylim(0, 1.05 * top)
        place.legend(frameon=False, fontsize=8)
    for row, shade in zip(mine, ("#9aa5b1", "#7cb3f0", "#3f8ae0", "#0b4fa8"), strict=True):
        scores = [100 * one["validation/accuracy"] for one in row["history"]]
        axes[2].plot([one["epoch"] for one in row["history"]], scores, "o-", color=shade, label=f"K = {row['K']}")
    axes[2].set_ylabel("test accuracy (%)")
    axes[2].legend(frameon=False, fontsize=8)
    for place in axes:
        place.set_xlabel("epoch")
        place.grid(alpha=0.25)
        place.spines[["top", "right"]].set_visible(False)
    about = f"What clipping cuts off, and accuracy, at epsilon = {epsilon:g}"
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
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/local-steps"))
    args = parser.parse_args()
    rows = study(args)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "local_steps.json").write_text(json.dumps(rows, indent=2) + "\n")
    (args.out / "local_steps.md").write_text(markdown(rows))
    picture(rows, args.out / "local_steps-unprotected.png")
    print("\n" + markdown(rows))


if __name__ == "__main__":
    main()
