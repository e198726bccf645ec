"""K local steps of every sample against one plain SGD step, and against copies of the model under vmap.

    python benchmarks/local.py [--out benchmarks/results] [--quick]

Ratios to one plain SGD step on the same batch, one thread, engines taking turns. 10 is the floor for K = 10: so many
forward and backward passes. Memory is the peak of a process of its own, above what it had before the model existed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engines import sgd
from gnomon.models import paper_cnn, resnet20
from gnomon.updates import Layouts, LocalDescent, local_sgd
from gnomon.updates.local import by_copies
from measure import Step, by_turns, peak_memory
from workloads import losses

STEPS, LR = 10, 0.01


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def records(count: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, *shape), torch.randint(0, 10, (count,))


Work = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], int]
WORK: dict[str, Work] = {
    "MLP 784-256-256-10, B = 250": (lambda: mlp(256), lambda: records(250, 784), 15),
    "MLP 784-1024-1024-10, B = 1000": (lambda: mlp(1024), lambda: records(1000, 784), 5),
    "CNN 26k, B = 250": (lambda: paper_cnn((1, 28, 28), 10, channels_last=False), lambda: records(250, 1, 28, 28), 9),
    "ResNet-20 (GroupNorm), B = 64": (lambda: resnet20((3, 32, 32), 10), lambda: records(64, 3, 32, 32), 3),
}
COPIES = ("CNN 26k, B = 250",)
"""Where copies under vmap end in reasonable time."""


def prepared(work: str, engine: str) -> Step:
    """One engine on one workload, ready to step: everyone's displacement, its norm, and the weighted sum."""
    torch.manual_seed(0)
    make, draw, _ = WORK[work]
    model, (x, y) = make(), draw()
    if engine == "plain SGD":
        return sgd(model, x, y)
    weights = torch.full((len(x),), 1 / len(x))
    if engine == "copies (vmap)":
        return lambda: by_copies(model, losses, x, y, len(x), LocalDescent(STEPS, LR, 0.0))

    layouts = Layouts()

    def step() -> None:
        updates = local_sgd(model, losses, x, y, steps=STEPS, lr=LR, layouts=layouts)
        updates.norms()
        updates.weighted_sum(weights)

    return step


def table(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for name, (_, _, repeats) in WORK.items():
        engines = ["plain SGD", "gnomon"]
        times = by_turns({one: prepared(name, one) for one in engines}, "plain SGD", 3 if quick else repeats)
        if name in COPIES:
            slow = by_turns({one: prepared(name, one) for one in ("plain SGD", "copies (vmap)")}, "plain SGD", 3)
            times["copies (vmap)"] = slow["copies (vmap)"]
        rows.append(
            {"work": name, "times": times, "memory": {one: peak_memory(prepared, name, one) for one in engines}}
        )
        print(f"{name}: {times}", flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| K = 10 local steps | SGD step, ms | gnomon | copies under vmap | SGD, MB | gnomon, MB |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        times, memory = row["times"], row["memory"]
        copies = f"{times['copies (vmap)']['ratio']:.0f}" if "copies (vmap)" in times else "not run"
        held = [f"{memory[one] / 2**20:.0f}" if memory[one] else "failed" for one in ("plain SGD", "gnomon")]
        lines.append(
            f"| {row['work']} | {times['plain SGD']['milliseconds']:.1f} | {times['gnomon']['ratio']:.1f} | {copies} | "
            + " | ".join(held)
            + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = table(args.quick)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "local.json").write_text(json.dumps(rows, indent=2) + "\n")
    (args.out / "local.md").write_text(markdown(rows))
    print("\n" + markdown(rows))


if __name__ == "__main__":
    main()
