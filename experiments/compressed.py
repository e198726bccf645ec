"""Three studies of compressed methods: rates, error against dimension, stability. Seeded, so no privacy claims.

    python experiments/compressed.py [rates] [dimension] [adult] [stability]

Each leaves a table (CSV) and a picture (PNG) in docs/figures; a study whose table is there is only drawn again
(`--again` runs it anew). Adult is read from GNOMON_DATA.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import optimize
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from gnomon import Trainer, evaluate
from gnomon.accounting import FixedSize, FullBatch, Sampling
from gnomon.constraints import L1Ball
from gnomon.data import load
from gnomon.forms import CLIP_AFTER_SKETCH, LINEAR_SKETCH
from gnomon.losses import hinge, logistic
from gnomon.methods import Method, comp_gd, comp_minibatch, comp_sgd, dp_comp_gd
from gnomon.release import SeededNoise
from gnomon.report.comparison import COLOURS

OUT = Path(__file__).parent.parent / "docs" / "figures"
Row = dict[str, Any]
LOSSES = {"logistic (smooth)": logistic, "hinge (not smooth)": hinge}


def sparse_problem(n: int, d: int, seed: int = 0, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Rows of length 1; the label is the sign of five entries' sum, flipped with some chance."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    right = x[:, :5].sum(1) > 0
    flipped = torch.rand(n, generator=draw) < noise
    return x, (right ^ flipped).long()


def zero_model(d: int) -> nn.Linear:
    layer = nn.Linear(d, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    return layer


def trainer_of(
    method: Method, model: nn.Module, loss: Any, sampler: Sampling, batch: float, steps: int, lr: float, seed: int,
    decay: float = 0.0, epsilon: float | None = None,
) -> Trainer:  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return Trainer(
        model, loss, optimizer, method=method, sampler=sampler, expected_batch_size=batch, steps=steps,
        target_epsilon=epsilon, target_delta=1e-5, noise=SeededNoise(seed), progress=False,
        scheduler=LambdaLR(optimizer, lambda t: (t + 1) ** -decay), scheduler_every="step",
    )  # fmt: skip


# -- 1: training error against the number of steps -----------------------------------------------------


def best_value(x: Tensor, y: Tensor, loss: Any, radius: float, most: int = 5000) -> float:
    """The smallest mean loss over the l1 ball: a linear program for the hinge, projected gradients otherwise."""
    n, d = x.shape
    if loss is hinge:
        signed = (x * (2 * y - 1)[:, None]).numpy()
        table = np.hstack([-signed, signed, -np.eye(n)])  # 1 - y x w <= slack
        table = np.vstack([table, np.concatenate([np.ones(2 * d), np.zeros(n)])])
        cost = np.concatenate([np.zeros(2 * d), np.full(n, 1 / n)])
        return float(optimize.linprog(cost, A_ub=table, b_ub=np.concatenate([-np.ones(n), [radius]])).fun)
    ball, w = L1Ball(radius), torch.zeros(d, dtype=torch.float64)
    ahead, speed, value = w, 1.0, math.inf
    for _ in range(most):
        w_ahead = ahead.clone().requires_grad_()
        mean = loss((x @ w_ahead)[:, None], y).mean()
        (slope,) = torch.autograd.grad(mean, w_ahead)
        found = ball.project(ahead - 2.0 * slope)
        following = (1 + math.sqrt(1 + 4 * speed**2)) / 2
        ahead, w, speed = found + (speed - 1) / following * (found - w), found, following
        value = min(value, float(mean.detach()))
    return value


def rates(again: bool) -> None:
    """Mean loss of the average iterate above the optimum, for growing T."""
    n, d, radius, last = 400, 200, 20.0, 300
    marks = sorted({round(10 * 1.35**k) for k in range(14)} & set(range(last + 1)) | {last})

    def run() -> Iterator[Row]:
        x, y = sparse_problem(n, d)
        for smooth, loss in LOSSES.items():
            optimum = best_value(x, y, loss, radius)
            steps_of: dict[str, tuple[Callable[[int | None], Method], Sampling, float]] = {
                "SGD": (lambda m: comp_sgd("l1:20", None), FixedSize(1, n), 1),
                "CompSGD": (lambda m: comp_sgd("l1:20", m), FixedSize(1, n), 1),
                "CompMinibatch, b = 20": (lambda m: comp_minibatch("l1:20", m), FixedSize(20, n), 20),
                "CompGD": (lambda m: comp_gd("l1:20", m), FullBatch(), n),
                "GD": (lambda m: comp_gd("l1:20", None), FullBatch(), n),
            }
            for name, (make, sampler, batch) in steps_of.items():
                constant = name.endswith("GD") and "SGD" not in name and loss is logistic
                for m in (None,) if name in ("SGD", "GD") else (50, 150):
                    # one step size for each loss and method, of a coarse grid: the best at the end
                    curves = []
                    for lr in (8.0, 32.0):
                        model = zero_model(d)
                        trainer = trainer_of(
                            make(m), model, loss, sampler, batch, last, lr, 0, decay=0.0 if constant else 0.5
                        )
                        curve = []
                        for step, part in enumerate(trainer.batches((x, y)), 1):
                            trainer.step(*part)
                            if step in marks:
                                mean = trainer.average.module if trainer.average is not None else model
                                value = float(loss(mean(x).detach(), y).mean())
                                curve.append((step, value - optimum))
                        curves.append((curve[-1][1], lr, curve))
                    _, lr, curve = min(curves)
                    for step, above in curve:
                        yield {"loss": smooth, "method": name, "m": m or d, "lr": lr, "T": step, "error": above}

    rows = table("compressed-rates", run, again)
    figure = Figure(figsize=(10, 4.2), dpi=140, layout="constrained")
    for axes, smooth in zip(figure.subplots(1, 2, sharey=True), LOSSES, strict=True):
        mine = [row for row in rows if row["loss"] == smooth]
        for colour, name in zip(COLOURS, dict.fromkeys(row["method"] for row in mine), strict=False):
            for m in dict.fromkeys(row["m"] for row in mine if row["method"] == name):
                line = [row for row in mine if row["method"] == name and row["m"] == m]
                t, e = [float(row["T"]) for row in line], [max(float(row["error"]), 1e-6) for row in line]
                late = [i for i, step in enumerate(t) if step >= 30]
                slope = np.polyfit(np.log([t[i] for i in late]), np.log([e[i] for i in late]), 1)[0]
                style = "-" if int(m) in (150, 200) else "--"
                axes.loglog(t, e, style, color=colour, label=f"{name}, m = {m}: slope {slope:.2f}")
                print(f"{smooth:<20} {name:<22} m = {m:<4} slope {slope:.2f}, error {e[-1]:.4f} at T = {t[-1]:.0f}")
        start = max(float(row["error"]) for row in mine)
        for power in (0.5, 1.0):
            axes.loglog([10, 300], [start, start * 30**-power], ":", color="#9aa5b1")
            axes.annotate(f"$T^{{-{power:g}}}$", (300, start * 30**-power), fontsize=8, color="#616e7c")
        decorate(axes, f"{smooth}: n = 400, d = 200, l1 ball of radius 20", "steps T")
    figure.axes[0].set_ylabel("training error of the average iterate")
    figure.savefig(OUT / "compressed-rates.png")


# -- 2: private error against the dimension ------------------------------------------------------------

STEPS = 15
PRIVATE: dict[str, Callable[[str, int], Method]] = {
    "projected DP-GD, no sketch": lambda c, m: dp_comp_gd(c, None),
    "DP-CompGD, form A (clip after sketch)": lambda c, m: dp_comp_gd(c, m, CLIP_AFTER_SKETCH),
    "DP-CompGD, form C (linear sketch)": lambda c, m: dp_comp_gd(c, m, LINEAR_SKETCH),
}


def private_errors(
    x: Tensor, y: Tensor, constraint: str, m: int, lrs: Sequence[float], seeds: int, score: Callable[[nn.Module], Row]
) -> Iterator[Row]:
    """Each method at the step size of the grid that is best for the first seed, over seeds."""
    n, d = x.shape
    for name, make in PRIVATE.items():

        def one(lr: float, seed: int, make: Callable[[str, int], Method] = make) -> Row:
            model = zero_model(d).to(x.dtype)
            trainer = trainer_of(make(constraint, m), model, logistic, FullBatch(), n, STEPS, lr, seed, 0.0, 1.0)
            trainer.fit((x, y))
            assert trainer.average is not None
            return score(trainer.average.module) | {"seed": seed, "lr": lr}

        first = min((one(lr, 0) for lr in lrs), key=lambda row: row["error"])
        for row in [first, *(one(first["lr"], seed) for seed in range(1, seeds))]:
            yield {"method": name, "d": d, "m": m} | row


def dimension(again: bool) -> None:
    """Training error above the optimum on made data, as d grows and n stays."""

    def run() -> Iterator[Row]:
        for d in (50, 400, 3200):
            x, y = sparse_problem(2000, d, noise=0.05)
            # rows of length 1 make entries of size 1/sqrt(d): the useful ones are made longer, so that d alone changes
            x[:, :5] *= math.sqrt(d / 50)
            x = x / x.norm(dim=1, keepdim=True).clamp_min(1.0)
            x = x.float()
            optimum = best_value(x.double(), y, logistic, 20.0, most=600)

            def score(model: nn.Module, x: Tensor = x, y: Tensor = y, optimum: float = optimum) -> Row:
                return {"error": float(logistic(model(x).detach(), y).mean()) - optimum}

            yield from private_errors(x, y, "l1:20", 50, (8.0, 32.0, 128.0, 512.0, 2048.0), 2, score)

    rows = table("compressed-dimension", run, again)
    draw_dimension(rows, "compressed-dimension", "error", "training error above the optimum",
                   "made data, n = 2000, epsilon = 1, 15 steps, m = 50, l1 ball of radius 20")  # fmt: skip


def adult(again: bool) -> None:
    """Test loss on Adult with more and more crossed features."""

    def run() -> Iterator[Row]:
        source = load("adult")
        pick = torch.randperm(len(source.train), generator=torch.Generator().manual_seed(0))[:4000]
        pairs = list(combinations(range(source.input_shape[0]), 2))
        order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(1)).tolist()
        for d in (104, 800, 4000):
            chosen = torch.tensor([pairs[i] for i in order[: d - 104]], dtype=torch.long).reshape(-1, 2)

            def crossed(inputs: Tensor, chosen: Tensor = chosen) -> Tensor:
                rows = torch.cat([inputs, inputs[:, chosen[:, 0]] * inputs[:, chosen[:, 1]]], 1)
                return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)

            x, y = crossed(source.train.inputs[pick]), source.train.targets[pick]
            test = (crossed(source.test.inputs), source.test.targets)

            def score(model: nn.Module, test: tuple[Tensor, Tensor] = test) -> Row:
                found = evaluate(model, logistic, test)
                return {"error": found["loss"], "accuracy": found["accuracy"]}

            yield from private_errors(x, y, "l1:40", 50, (4.0, 16.0, 64.0, 256.0, 1024.0), 2, score)

    rows = table("compressed-adult", run, again)
    draw_dimension(rows, "compressed-adult", "error", "test loss",
                   "Adult with crosses, n = 4000, epsilon = 1, 15 steps, m = 50, l1 ball of radius 40")  # fmt: skip


def draw_dimension(rows: Sequence[Row], name: str, key: str, label: str, title: str) -> None:
    figure = Figure(figsize=(7.5, 4.4), dpi=140, layout="constrained")
    axes = figure.subplots()
    for colour, method in zip(COLOURS, PRIVATE, strict=False):
        mine = [row for row in rows if row["method"] == method]
        sizes = sorted({int(row["d"]) for row in mine})
        values = [[float(row[key]) for row in mine if int(row["d"]) == d] for d in sizes]
        style = "o--" if "form C" in method else "o-"  # it lies on form A
        axes.plot(sizes, [np.mean(v) for v in values], style, color=colour, label=method, markersize=4)
        axes.fill_between(
            sizes, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15, linewidth=0
        )
        for d, v in zip(sizes, values, strict=True):
            extra = [float(row["accuracy"]) for row in mine if int(row["d"]) == d and row.get("accuracy")]
            shown = f", accuracy {100 * np.mean(extra):.1f} %" if extra else ""
            print(f"{method:<40} d = {d:<5} {label} {np.mean(v):.4f}{shown}")
    axes.set_xscale("log")
    decorate(axes, title, "dimension d")
    axes.set_ylabel(label)
    figure.savefig(OUT / f"{name}.png")


# -- 3: stability on neighbouring data sets ------------------------------------------------------------


def stability(again: bool) -> None:
    """How far losses move when one record is replaced, with the same randomness."""
    d, m = 100, 40
    kinds: dict[str, tuple[Callable[[], Method], Callable[[int], tuple[Sampling, float, int, float, float]]]] = {
        "SGD, T = n": (lambda: comp_sgd("l1:20", None), lambda n: (FixedSize(1, n), 1, n, 4.0, 0.5)),
        "CompSGD, T = n": (lambda: comp_sgd("l1:20", m), lambda n: (FixedSize(1, n), 1, n, 4.0, 0.5)),
        "GD, T = sqrt n": (lambda: comp_gd("l1:20", None), lambda n: (FullBatch(), n, round(n**0.5), 4.0, 0.0)),
        "CompGD, T = sqrt n": (lambda: comp_gd("l1:20", m), lambda n: (FullBatch(), n, round(n**0.5), 4.0, 0.0)),
    }

    def run() -> Iterator[Row]:
        fresh, labels = sparse_problem(500, d, seed=99)
        for name, (make, settings) in kinds.items():
            for n in (50, 100, 200, 400):
                sampler, batch, steps, lr, decay = settings(n)
                for seed in range(4):
                    x, y = sparse_problem(n, d, seed=seed)
                    other_x, other_y = x.clone(), y.clone()
                    other_x[0], other_y[0] = fresh[seed], 1 - labels[seed]
                    scores = []
                    for data in ((x, y), (other_x, other_y)):
                        model = zero_model(d)
                        trainer = trainer_of(make(), model, logistic, sampler, batch, steps, lr, seed, decay)
                        trainer.fit(data)
                        assert trainer.average is not None
                        scores.append(logistic(trainer.average.module(fresh).detach(), labels))
                    moved = float((scores[0] - scores[1]).abs().mean())
                    yield {"method": name, "n": n, "seed": seed, "moved": moved}

    rows = table("compressed-stability", run, again)
    figure = Figure(figsize=(7.5, 4.4), dpi=140, layout="constrained")
    axes = figure.subplots()
    for colour, name in zip(COLOURS, kinds, strict=False):
        mine = [row for row in rows if row["method"] == name]
        sizes = sorted({int(row["n"]) for row in mine})
        means = [np.mean([float(row["moved"]) for row in mine if int(row["n"]) == n]) for n in sizes]
        slope = np.polyfit(np.log(sizes), np.log(np.maximum(means, 1e-12)), 1)[0]
        axes.loglog(sizes, means, "o-", color=colour, markersize=4, label=f"{name}: slope {slope:.2f}")
        print(
            f"{name:<22} moved {means[0]:.5f} at n = {sizes[0]}, {means[-1]:.5f} at n = {sizes[-1]}, slope {slope:.2f}"
        )
    axes.set_xticks([50, 100, 200, 400], ["50", "100", "200", "400"], minor=False)
    axes.minorticks_off()
    decorate(axes, "one record of n replaced, d = 100, m = 40, same randomness", "records n")
    axes.set_ylabel("mean change of the loss on fresh records")
    figure.savefig(OUT / "compressed-stability.png")


# -- tables and pictures -------------------------------------------------------------------------------


def table(name: str, run: Callable[[], Iterator[Row]], again: bool) -> list[Row]:
    """The rows of a finished study, or of one that runs now."""
    path = OUT / f"{name}.csv"
    if again or not path.exists():
        started = time.monotonic()
        rows = list(run())
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
        print(f"{name}: {time.monotonic() - started:.0f} s")
    with path.open() as file:
        return list(csv.DictReader(file))


def decorate(axes: Any, title: str, label: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)


STUDIES = {"rates": rates, "dimension": dimension, "adult": adult, "stability": stability}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], help="which (default: all)")
    parser.add_argument("--again", action="store_true", help="run studies whose tables are there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.studies or STUDIES:
        STUDIES[name](args.again)


if __name__ == "__main__":
    main()
