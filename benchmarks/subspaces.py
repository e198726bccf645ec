"""Steps with a public subspace, compared with plain SGD and with a dense implementation.

    python benchmarks/subspaces.py [--out benchmarks/results] [--quick]

The dense implementation computes per-sample gradients by vmap, an SVD, and a p x k matrix. Times are ratios to plain
SGD on the private batch, with one thread and engines taking turns. Memory is the peak of the process during steps,
above its memory before the model was created; each engine runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import gnomon
from engines import sgd
from gnomon import methods
from gnomon.models import paper_cnn
from measure import Step, interleaved_times, peak_memory
from workloads import Transformer, losses

RANK = 100


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def images(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 1, 28, 28), torch.randint(0, 10, (count,))


def vectors(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 784), torch.randint(0, 10, (count,))


def texts(count: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 512, (count, 64)), torch.randint(0, 512, (count, 64))


def private(model: nn.Module, x: Tensor, y: Tensor, method: methods.Method) -> Step:
    """Return the step of a Trainer with the given method."""
    trainer = gnomon.Trainer(
        model, losses, torch.optim.SGD(model.parameters(), lr=1e-3), method=method, sample_rate=0.01,
        expected_batch_size=len(x), noise_multiplier=1.0, target_delta=1e-6, steps=10**6, progress=False,
    )  # fmt: skip
    return lambda: trainer._step([(x, y)])


def dense_pcdp(model: nn.Module, x: Tensor, y: Tensor, public: tuple[Tensor, Tensor]) -> Step:
    """Return a step of PCDP-SGD with a dense basis, as the script of a paper would implement it."""
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        return losses(functional_call(model, values, (sample[None],)), target[None])[0]

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))

    def flat(inputs: Tensor, targets: Tensor) -> Tensor:
        values = {name: p.detach() for name, p in parameters.items()}
        return torch.cat([g.flatten(1) for g in per_sample(values, inputs, targets).values()], 1)

    def step() -> None:
        basis = torch.linalg.svd(flat(*public), full_matrices=False).Vh[:RANK].T  # p x k
        rows = flat(x, y) @ basis
        rows *= (1.0 / rows.norm(dim=1, keepdim=True)).clamp_max(1.0)
        update = basis @ (rows.sum(0) + torch.randn(basis.shape[1])) / len(x)
        with torch.no_grad():
            for p, part in zip(
                parameters.values(), update.split([p.numel() for p in parameters.values()]), strict=True
            ):
                p.sub_(1e-3 * part.view(p.shape))

    return step


METHODS: dict[str, Callable[[Any], methods.Method]] = {
    "DP-SGD": lambda public: methods.dp_sgd(),
    "PCDP": lambda public: methods.pcdp(public, RANK),
    "PCDP per tensor": lambda public: methods.pcdp(public, RANK, per_tensor=True),
    "PDP": lambda public: methods.pdp(public, RANK),
    "PCDP every 10": lambda public: methods.pcdp(public, RANK, every=10),
}
TRANSFORMER = "Transformer 26M, T = 64, B = 16, m = 32"  # a step takes seconds: two methods and few turns
WORK: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]], int, int, int]] = {
    "CNN 26k, B = 250, m = 100": (lambda: paper_cnn((1, 28, 28), 10, channels_last=False), images, 250, 100, 21),
    "MLP 784-2048-2048-10, B = 256, m = 100": (lambda: mlp(2048), vectors, 256, 100, 9),
    TRANSFORMER: (lambda: Transformer(512, 512, 8), texts, 16, 32, 3),
}


MEASURED_MEMORY = ("plain SGD", "DP-SGD", "PCDP", "PDP")
"""Engines whose peak memory is measured."""


def prepared(work: str, engine: str) -> Step:
    """Return the step of one engine on one workload."""
    torch.manual_seed(0)
    make, draw, batch, count, _ = WORK[work]
    model, public, (x, y) = make(), draw(count), draw(batch)
    if engine == "plain SGD":
        return sgd(model, x, y)
    if engine == "dense (vmap + SVD)":
        return dense_pcdp(model, x, y, public)
    return private(model, x, y, METHODS[engine](public))


def scaling(width: int, engine: str) -> Step:
    """Return the step of one engine on an MLP of the given width, for the curve over the number of parameters."""
    torch.manual_seed(0)
    model, public, (x, y) = mlp(width), vectors(100), vectors(64)
    if engine == "plain SGD":
        return sgd(model, x, y)
    return dense_pcdp(model, x, y, public) if engine == "dense" else private(model, x, y, methods.pcdp(public, RANK))


def steps_table(quick: bool) -> list[dict[str, Any]]:
    """Measure time and memory of all workloads."""
    rows = []
    for name, (_, _, _, _, repeats) in WORK.items():
        names = ["plain SGD", *METHODS] + (["dense (vmap + SVD)"] if name.startswith("CNN") else [])
        names = names[:3] if name == TRANSFORMER else names
        steps = {engine: prepared(name, engine) for engine in names}
        times = interleaved_times(steps, "plain SGD", 3 if quick else repeats)
        memory = {engine: peak_memory(prepared, name, engine) for engine in names if engine in MEASURED_MEMORY}
        rows.append({"work": name, "times": times, "memory": memory})
        print(f"{name}: done", flush=True)
    return rows


def scaling_table(quick: bool) -> list[dict[str, Any]]:
    """Measure time and memory over the number of parameters."""
    rows = []
    for width in (12, 64, 256, 1024) if quick else (12, 64, 256, 1024, 2048, 5000):
        count = sum(p.numel() for p in mlp(width).parameters())
        engines = ["plain SGD", "gnomon"] + (["dense"] if count < 1.6e6 else [])
        times = interleaved_times({engine: scaling(width, engine) for engine in engines}, "plain SGD", 5)
        memory = {engine: peak_memory(scaling, width, engine) for engine in engines}
        rows.append({"p": count, "times": times, "memory": memory})
        print(f"p = {count}: done", flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown tables of time and memory."""
    names = [*METHODS, "dense (vmap + SVD)"]
    lines = ["| work | SGD ms | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for row in rows:
        cells = [f"{row['times'][n]['ratio']:.2f}" if n in row["times"] else "-" for n in names]
        lines.append(f"| {row['work']} | {row['times']['plain SGD']['milliseconds']:.0f} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| peak memory, MB | " + " | ".join(MEASURED_MEMORY) + " |",
        "|---" * (len(MEASURED_MEMORY) + 1) + "|",
    ]
    for row in rows:
        megabytes = {name: f"{value / 2**20:.0f}" if value else "failed" for name, value in row["memory"].items()}
        cells = [megabytes.get(name, "-") for name in MEASURED_MEMORY]
        lines.append(f"| {row['work']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw step time and peak memory over the number of parameters."""
    figure = Figure(figsize=(9, 3.8), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = {"plain SGD": ("#9aa5b1", "--"), "gnomon": ("#1f6feb", "o-"), "dense": ("#b5482a", "s-")}
    labels = {"gnomon": "Gnomon, PCDP", "dense": "dense: vmap, SVD, p x k", "plain SGD": "plain SGD"}
    for name, (colour, style) in styles.items():
        timed = [row for row in rows if name in row["times"]]
        sizes = [row["p"] for row in timed]
        left.plot(sizes, [row["times"][name]["milliseconds"] for row in timed], style, color=colour, label=labels[name])
        memory = [(row["p"], row["memory"][name] / 2**20) for row in timed if row["memory"][name]]
        right.plot([p for p, _ in memory], [mb for _, mb in memory], style, color=colour, label=labels[name])
    for axes, what in ((left, "milliseconds per step"), (right, "peak memory (MB)")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("parameters p")
        axes.set_ylabel(what)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=8)
    figure.suptitle("A PCDP step on an MLP, B = 64, m = k = 100, one thread", fontsize=11)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="time fewer turns and sizes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = steps_table(args.quick)
    curve = scaling_table(args.quick)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "subspaces.json").write_text(json.dumps({"steps": rows, "scaling": curve}, indent=2) + "\n")
    (args.out / "subspaces.md").write_text(markdown(rows))
    chart(curve, args.out / "subspaces.png")
    print("\n" + markdown(rows))


if __name__ == "__main__":
    main()
