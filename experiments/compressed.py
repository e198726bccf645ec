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
from dataclasses import dataclass, replace
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
from gnomon.figures.comparison import COLOURS
from gnomon.losses import hinge, logistic
from gnomon.methods import CLIP_AFTER_SKETCH, LINEAR_SKETCH, Method, comp_gd, comp_sgd, dp_comp_gd
from gnomon.methods.steps import ConstrainedDescent
from gnomon.release import SeededNoise
from gnomon.subspaces.basis import AmbientBasis, Basis
from gnomon.subspaces.gaussian_sketch import SketchBasis

OUT = Path(__file__).parent.parent / "docs" / "figures"
Row = dict[str, Any]
Line = tuple[str, ...]
"""What tells a line of a study from the others, as its table has it."""
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


def best_value(x: Tensor, y: Tensor, loss: Any, radius: float, accuracy: float = 1e-10) -> float:
    """The smallest mean loss over the l1 ball: a linear program for the hinge, certified gradients otherwise.

    A gradient g at w says how far F(w) is above the optimum at most: by `<g, w - v>` for the lowest v of the ball.
    """
    n, d = x.shape
    if loss is hinge:
        signed = (x * (2 * y - 1)[:, None]).numpy()
        table = np.hstack([-signed, signed, -np.eye(n)])  # 1 - y x w <= slack
        table = np.vstack([table, np.concatenate([np.ones(2 * d), np.zeros(n)])])
        cost = np.concatenate([np.zeros(2 * d), np.full(n, 1 / n)])
        return float(optimize.linprog(cost, A_ub=table, b_ub=np.concatenate([-np.ones(n), [radius]])).fun)
    ball, w = L1Ball(radius), torch.zeros(d, dtype=torch.float64)
    curvature = float(torch.linalg.matrix_norm(x, 2)) ** 2 / (4 * n)
    ahead, speed = w, 1.0
    for _ in range(100_000):
        found = ball.project(ahead - slope_at(ahead, x, y, loss) / curvature)
        if float((ahead - found) @ (found - w)) > 0:
            speed = 1.0
        following = (1 + math.sqrt(1 + 4 * speed**2)) / 2
        ahead, w, speed = found + (speed - 1) / following * (found - w), found, following
        slope = slope_at(w, x, y, loss)
        if float(slope @ (w - ball.lowest(slope))) < accuracy:
            return float(loss((x @ w)[:, None], y).mean())
    raise RuntimeError("the reference optimum was not reached")


def slope_at(w: Tensor, x: Tensor, y: Tensor, loss: Any) -> Tensor:
    """The gradient of the mean loss."""
    scores = (x @ w)[:, None].requires_grad_()
    (by_score,) = torch.autograd.grad(loss(scores, y).mean(), scores)
    return by_score[:, 0] @ x


RATES = {"n": 400, "d": 100, "radius": 10.0}
KINDS: dict[str, tuple[int | None, float, dict[int | None, int]]] = {
    # batch size (None: all records), the first step size to try, number of directions (None: no sketch) and of steps
    "SGD": (1, 8.0, {None: 10_000}),
    "CompSGD": (1, 8.0, {25: 6000}),
    "CompMinibatch, b = 20": (20, 32.0, {25: 6000}),
    "GD": (None, 128.0, {None: 1000}),
    "CompGD": (None, 8.0, {25: 1000, 50: 1000}),
}
BOTTOM = 1e-3
"""Where the picture ends: GD, which reaches the optimum, is far below."""
TRIED = 1000
"""Step sizes are compared after so many steps."""


def descent(
    x: Tensor, y: Tensor, loss: Any, batch: int | None, m: int | None, lr: float, decay: float, marks: Sequence[int],
    seed: int,
) -> list[float]:  # fmt: skip
    """The mean loss of the average iterate at the marks: the library's sketch and constrained step, without the
    bookkeeping of a Trainer, which takes longer than the step of so small a model."""
    n, d = x.shape
    rng = np.random.default_rng(seed)
    weights = {"weight": nn.Parameter(torch.zeros(d, dtype=torch.float64))}
    optimizer = torch.optim.SGD(weights.values(), lr=lr)
    step = ConstrainedDescent(L1Ball(RATES["radius"]))
    mean, total, values = torch.zeros(d, dtype=torch.float64), 0.0, []
    for t in range(1, marks[-1] + 1):
        rate = optimizer.param_groups[0]["lr"] = lr * t**-decay
        if batch is None:
            rows, labels = x, y
        else:
            chosen = torch.from_numpy(rng.choice(n, batch, replace=False, shuffle=False))
            rows, labels = x[chosen], y[chosen]
        seen = {"weight": slope_at(weights["weight"].detach(), rows, labels, loss)}
        like = {"weight": weights["weight"].detach()}
        basis: Basis = AmbientBasis(like)
        if m is not None:
            sketch = SketchBasis(like, m, int(rng.integers(2**53)))
            basis, seen = sketch, sketch.sketch_sum(seen)
        step.move(weights, basis, seen, optimizer)
        total += rate
        mean.lerp_(weights["weight"].detach(), rate / total)
        if t in marks:
            values.append(float(loss((x @ mean)[:, None], y).mean()))
    return values


def interior(score: Callable[[float], float], grid: Sequence[float], factor: float = 4.0) -> float:
    """The best step size of a grid, which gains the neighbours of its best until none of them is better."""
    scores = {lr: score(lr) for lr in grid}
    while True:
        best = min(scores, key=lambda lr: scores[lr])
        missing = [lr for lr in (best / factor, best * factor) if lr not in scores]
        if not missing:
            return best
        scores |= {lr: score(lr) for lr in missing}


def rates(again: bool) -> None:
    """Mean loss of the average iterate above the optimum, for growing T."""
    n, d, radius = int(RATES["n"]), int(RATES["d"]), RATES["radius"]

    def run(done: set[Line]) -> Iterator[list[Row]]:
        x, y = sparse_problem(n, d)
        for smooth, loss in LOSSES.items():
            optimum = best_value(x, y, loss, radius)
            for name, (batch, first, sketches) in KINDS.items():
                best = first
                decay = 0.0 if batch is None and loss is logistic else 0.5
                for m, last in sketches.items():
                    if (smooth, name, str(m or d)) in done:
                        continue
                    marks = sorted({round(10 ** (k / 6)) for k in range(6, 24) if 10 ** (k / 6) < last} | {last})
                    started = time.process_time()

                    def score(lr: float, m: int | None = m) -> float:
                        return descent(x, y, loss, batch, m, lr, decay, [TRIED], 0)[0]  # noqa: B023

                    best = interior(score, [best])
                    curves = [descent(x, y, loss, batch, m, best, decay, marks, seed) for seed in range(3)]
                    yield [
                        {"loss": smooth, "method": name, "m": m or d, "lr": best, "seed": seed, "T": step,
                         "error": value - optimum}
                        for seed, curve in enumerate(curves) for step, value in zip(marks, curve, strict=True)
                    ]  # fmt: skip
                    spent = time.process_time() - started
                    print(f"{smooth} {name} m = {m}: lr {best:g}, {spent:.0f} s", flush=True)

    rows = table("compressed-rates", run, ("loss", "method", "m"), again)
    figure = Figure(figsize=(11, 4.6), dpi=140, layout="constrained")
    for axes, smooth in zip(figure.subplots(1, 2, sharey=True), LOSSES, strict=True):
        mine = [row for row in rows if row["loss"] == smooth]
        for colour, name in zip(COLOURS, KINDS, strict=False):
            for m in dict.fromkeys(row["m"] for row in mine if row["method"] == name):
                line = [row for row in mine if row["method"] == name and row["m"] == m]
                t = sorted({int(row["T"]) for row in line})
                errors = np.array([[float(row["error"]) for row in line if int(row["T"]) == step] for step in t])
                errors = errors.clip(1e-10)  # the optimum is not known better than that
                late = np.array(t) >= (300 if t[-1] > 1000 else 30)
                slope = np.polyfit(np.log(np.array(t)[late]), np.log(errors[late].mean(1)), 1)[0]
                end = np.log(errors[-1].mean() / errors[-4].mean()) / np.log(t[-1] / t[-4])
                style = "--" if int(m) == 25 else "-"
                shown = name if int(m) == d else f"{name}, m = {m}"
                shown += " (below the picture)" if errors.max() < BOTTOM else ""
                axes.loglog(t, errors.mean(1), style, color=colour, label=f"{shown}: slope {slope:.2f}")
                axes.fill_between(t, errors.min(1), errors.max(1), color=colour, alpha=0.15, linewidth=0)
                print(
                    f"{smooth:<20} {name:<22} m = {m:<4} lr {line[0]['lr']:<6} slope {slope:.2f}, last {end:.2f}, "
                    f"error {errors[-1].mean():.5f} ({errors[-1].min():.5f} to {errors[-1].max():.5f}) at T = {t[-1]}"
                )
        axes.set_ylim(bottom=BOTTOM)
        start = max(float(row["error"]) for row in mine)
        for power in (0.5, 1.0):
            axes.loglog([10, 10_000], [start, start * 1000**-power], ":", color="#9aa5b1")
            axes.annotate(f"$T^{{-{power:g}}}$", (100, start * 10**-power), fontsize=8, color="#616e7c")
        decorate(axes, f"{smooth}: n = {n}, d = {d}, l1 ball of radius {radius:g}", "steps T")
    figure.axes[0].set_ylabel("training error of the average iterate")
    figure.savefig(OUT / "compressed-rates.png")


# -- 2: private error against the dimension ------------------------------------------------------------


@dataclass(frozen=True)
class Private:
    """One line of the studies of private error."""

    name: str
    make: Callable[[str], Method]
    m: int | None = None
    steps: int = 15

    @property
    def label(self) -> str:
        return self.name if self.m is None else f"{self.name}, m = {self.m}"


FEW = (
    Private("projected DP-GD, no sketch", lambda c: dp_comp_gd(c, None)),
    Private("DP-CompGD, A", lambda c: dp_comp_gd(c, 50, CLIP_AFTER_SKETCH), 50),
    Private("DP-CompGD, A", lambda c: dp_comp_gd(c, 200, CLIP_AFTER_SKETCH), 200),
    Private("DP-CompGD, C", lambda c: dp_comp_gd(c, 50, LINEAR_SKETCH), 50),
    Private("DP-CompGD, C", lambda c: dp_comp_gd(c, 200, LINEAR_SKETCH), 200),
    Private("GD without noise, no sketch", lambda c: comp_gd(c, None)),
    Private("CompGD without noise", lambda c: comp_gd(c, 50), 50),
    Private("CompGD without noise", lambda c: comp_gd(c, 200), 200),
)
MANY = replace(FEW[0], steps=590)
"""As many steps as minimise the paper's bound for smooth losses, `1/T + T ln(1/delta) / (n epsilon)^2`, n = 2000."""


def private_errors(
    x: Tensor,
    y: Tensor,
    constraint: str,
    lines: Sequence[Private],
    tried: int,
    score: Callable[[nn.Module], Row],
    done: set[Line],
) -> Iterator[list[Row]]:
    """Each line at the step size that is best on average over the `tried` first seeds, over three other seeds."""
    n, d = x.shape
    for line in lines:
        if (line.m is not None and line.m >= d) or (line.label, str(line.steps), str(d)) in done:
            continue

        def one(lr: float, seed: int, line: Private = line) -> Row:
            model, method = zero_model(d).to(x.dtype), line.make(constraint)
            epsilon = 1.0 if method.private else None
            trainer = trainer_of(method, model, logistic, FullBatch(), n, line.steps, lr, seed, 0.0, epsilon)
            trainer.fit((x, y))
            assert trainer.average is not None
            return score(trainer.average.module) | {"seed": seed, "lr": lr}

        started = time.process_time()

        def mean(lr: float, one: Callable[[float, int], Row] = one) -> float:
            return sum(float(one(lr, seed)["error"]) for seed in range(tried)) / tried

        best = interior(mean, [8.0 * 16**k for k in range(-1, 4)])
        yield [
            {"method": line.label, "steps": line.steps, "d": d} | one(best, seed) for seed in range(tried, tried + 3)
        ]
        print(
            f"{line.label}, {line.steps} steps, d = {d}: lr {best:g}, {time.process_time() - started:.0f} s", flush=True
        )


def dimension(again: bool) -> None:
    """Training error above the optimum on made data, as d grows and n stays."""

    def run(done: set[Line]) -> Iterator[list[Row]]:
        for d in (100, 800, 3200):
            x, y = sparse_problem(2000, d, noise=0.05)
            # rows of length 1 make entries of size 1/sqrt(d): the useful ones are made longer, so that d alone changes
            x[:, :5] *= math.sqrt(d / 50)
            x = x / x.norm(dim=1, keepdim=True).clamp_min(1.0)
            x = x.float()
            optimum = best_value(x.double(), y, logistic, 20.0, accuracy=1e-5)

            def score(model: nn.Module, x: Tensor = x, y: Tensor = y, optimum: float = optimum) -> Row:
                return {"error": float(logistic(model(x).detach(), y).mean()) - optimum}

            yield from private_errors(x, y, "l1:20", FEW, 3, score, done)
            if d == 3200:
                yield from private_errors(x, y, "l1:20", [MANY], 1, score, done)

    rows = table("compressed-dimension", run, ("method", "steps", "d"), again)
    draw_dimension(rows, "compressed-dimension", "training error above the optimum",
                   "made data, n = 2000, epsilon = 1, 15 steps, l1 ball of radius 20")  # fmt: skip


def adult(again: bool) -> None:
    """Test loss on Adult with more and more crossed features."""

    def run(done: set[Line]) -> Iterator[list[Row]]:
        source = load("adult")
        pick = torch.randperm(len(source.train), generator=torch.Generator().manual_seed(0))[:4000]
        pairs = list(combinations(range(source.input_shape[0]), 2))
        order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(1)).tolist()
        for d in (104, 400, 1600):
            chosen = torch.tensor([pairs[i] for i in order[: d - 104]], dtype=torch.long).reshape(-1, 2)

            def crossed(inputs: Tensor, chosen: Tensor = chosen) -> Tensor:
                rows = torch.cat([inputs, inputs[:, chosen[:, 0]] * inputs[:, chosen[:, 1]]], 1)
                return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)

            x, y = crossed(source.train.inputs[pick]), source.train.targets[pick]
            test = (crossed(source.test.inputs), source.test.targets)

            def score(model: nn.Module, test: tuple[Tensor, Tensor] = test) -> Row:
                found = evaluate(model, logistic, test)
                return {"error": found["loss"], "accuracy": found["accuracy"]}

            yield from private_errors(x, y, "l1:40", FEW, 3, score, done)

    rows = table("compressed-adult", run, ("method", "steps", "d"), again)
    draw_dimension(rows, "compressed-adult", "test loss",
                   "Adult with crosses, n = 4000, epsilon = 1, 15 steps, l1 ball of radius 40")  # fmt: skip


def draw_dimension(rows: Sequence[Row], name: str, label: str, title: str) -> None:
    """A line for each method with few steps; all others are only printed."""
    figure = Figure(figsize=(7.5, 4.8), dpi=140, layout="constrained")
    axes = figure.subplots()
    colours = {None: COLOURS[0], "50": COLOURS[1], "200": COLOURS[2]}
    for method, steps in dict.fromkeys((row["method"], int(row["steps"])) for row in rows):
        mine = [row for row in rows if row["method"] == method and int(row["steps"]) == steps]
        sizes = sorted({int(row["d"]) for row in mine})
        values = [[float(row["error"]) for row in mine if int(row["d"]) == d] for d in sizes]
        for d, v in zip(sizes, values, strict=True):
            at = [row for row in mine if int(row["d"]) == d]
            extra = [float(row["accuracy"]) for row in at if row.get("accuracy")]
            accuracy = f", accuracy {100 * np.mean(extra):.1f} %" if extra else ""
            print(
                f"{method:<36} {steps} steps, d = {d:<5} lr {at[0]['lr']:<8} "
                f"{label} {np.mean(v):.4f} ({min(v):.4f} to {max(v):.4f}){accuracy}"
            )
        if steps == FEW[0].steps:
            colour = colours[method.partition("m = ")[2] or None]
            style = "o:" if "without noise" in method else "x--" if ", C" in method else "o-"
            axes.plot(sizes, [np.mean(v) for v in values], style, color=colour, label=method, markersize=4)
            low, high = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
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

    def run(done: set[Line]) -> Iterator[list[Row]]:
        fresh, labels = sparse_problem(500, d, seed=99)
        for name, (make, settings) in kinds.items():
            for n in (50, 100, 200, 400):
                if (name, str(n)) in done:
                    continue
                rows: list[Row] = []
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
                    rows.append({"method": name, "n": n, "seed": seed, "moved": moved})
                yield rows

    rows = table("compressed-stability", run, ("method", "n"), again)
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


def table(name: str, run: Callable[[set[Line]], Iterator[list[Row]]], keys: Sequence[str], again: bool) -> list[Row]:
    """The rows of a study. `run` gets the lines that are there, by the values of their `keys`, and makes the others."""
    path = OUT / f"{name}.csv"
    if again:
        path.unlink(missing_ok=True)
    started, lines = time.monotonic(), 0
    for rows in run({tuple(row[key] for key in keys) for row in read(path)}):
        lines += 1
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    if lines:
        print(f"{name}: {lines} lines in {time.monotonic() - started:.0f} s")
    return read(path)


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
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
    parser.add_argument("--again", action="store_true", help="run lines that are there, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.studies or STUDIES:
        STUDIES[name](args.again)


if __name__ == "__main__":
    main()
