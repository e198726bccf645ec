"""Draw the figures of the README and the documentation: `make figures`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from gnomon.audit import audit
from gnomon.figures.audit import audit_scores
from gnomon.runs.audit import trainer_to_audit
from gnomon.runs.config import TrainConfig
from gnomon.studies.reproduce import read_experiment
from gnomon.studies.reproduce.figures import figures
from gnomon.studies.reproduce.results import ResultRow
from gnomon.studies.reproduce.run import done_rows

HERE = Path(__file__).parent
INK, PRIVATE, DOOR, PUBLIC = "#1f2933", "#fde8e1", "#b5482a", "#e3f0ff"

STAGES = (
    ("records", "which records\ntake part?", "sampling/", PRIVATE),
    ("updates", "what would each\nrecord change?", "updates/", PRIVATE),
    ("coordinates", "in which\nsubspace?", "subspaces/", PRIVATE),
    ("weights", "how much may\neach record count?", "clipping/", PRIVATE),
    ("release", "clip, sum, add noise,\ndivide", "release/", DOOR),
    ("lift", "back to the\nmodel's parameters", "subspaces/", PUBLIC),
    ("step", "how does the\nmodel move?", "methods/", PUBLIC),
)


def _canvas(height: float, width: float = 13.0) -> tuple[Figure, Axes]:
    """Return an empty figure whose coordinates are inches."""
    figure = Figure(figsize=(width, height), dpi=120)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    return figure, axes


def pipeline(path: Path) -> None:
    """Draw the stages through which a batch passes."""
    figure, axes = _canvas(height=2.7)
    for i, (name, question, package, colour) in enumerate(STAGES):
        left = 0.15 + 1.84 * i
        text = "white" if colour == DOOR else INK
        axes.add_patch(FancyBboxPatch((left, 0.85), 1.5, 1.25, "round,pad=0.04", facecolor=colour, edgecolor=INK))
        axes.text(left + 0.75, 1.82, name, ha="center", weight="bold", color=text, fontsize=12)
        axes.text(left + 0.75, 1.36, question, ha="center", va="center", color=text, fontsize=9)
        axes.text(left + 0.75, 0.96, package, ha="center", color=text, fontsize=8, family="monospace")
        if i:
            arrow = FancyArrowPatch(
                (left - 0.29, 1.47), (left - 0.03, 1.47), arrowstyle="-|>", mutation_scale=13, color=INK
            )
            axes.add_patch(arrow)
    axes.annotate("", (0.1, 0.6), (9.1, 0.6), arrowprops={"arrowstyle": "<->", "color": DOOR})
    private = "private: stays with the data holder, logged as unprotected/"
    axes.text(4.6, 0.28, private, ha="center", fontsize=9, color=DOOR)
    axes.annotate("", (9.3, 0.6), (12.75, 0.6), arrowprops={"arrowstyle": "<->", "color": "#1f6feb"})
    axes.text(11.0, 0.28, "post-processing: costs no privacy", ha="center", fontsize=9, color="#1f6feb")
    axes.text(0.15, 2.4, "A batch passes once, from left to right; no stage uses a later one", fontsize=10, color=INK)
    figure.savefig(path)


LAYERS = (
    ("foundations", ("errors", "validate", "text", "files", "memory", "randomness"), PUBLIC),
    ("accounting", ("sampling", "accounting", "data", "ledger", "statement"), PUBLIC),
    (
        "stages",
        ("losses", "updates", "models", "features", "clipping", "constraints", "subspaces", "release", "methods"),
        PRIVATE,
    ),
    ("training", ("training", "recipes", "estimators", "audit", "diagnose", "figures"), PRIVATE),
    ("applications", ("runs", "federated", "studies", "report", "cli"), PUBLIC),
)
"""The packages in the order of tests/test_imports.py, in five layers."""


def packages(path: Path) -> None:
    """Draw the packages in layers."""
    figure, axes = _canvas(height=4.4, width=14.4)
    axes.text(0.15, 4.12, "A package imports only from those above it or to its left", fontsize=10, color=INK)
    for row, (layer, names, colour) in enumerate(LAYERS):
        bottom = 3.28 - 0.78 * row
        axes.text(0.15, bottom + 0.27, layer, va="center", fontsize=10, weight="bold", color=INK)
        for column, name in enumerate(names):
            left = 1.75 + 1.39 * column
            door = name == "release"
            box = FancyBboxPatch(
                (left, bottom), 1.21, 0.54, "round,pad=0.04", facecolor=DOOR if door else colour, edgecolor=INK
            )
            axes.add_patch(box)
            ink = "white" if door else INK
            axes.text(
                left + 0.6, bottom + 0.27, name, ha="center", va="center", fontsize=9.5, family="monospace", color=ink
            )
    figure.savefig(path)


def audited(path: Path) -> None:
    """Draw an audit of DP-SGD at epsilon = 1."""
    trainer, _ = trainer_to_audit(TrainConfig(batch_size=14, epochs=10, target_epsilon=1.0))
    audit_scores(audit(trainer, progress=True), path)


MAIN_LINES = (
    "DP-SGD",
    "PDP-SGD, k = 100",
    "PCDP-SGD, one subspace",
    "DP-SGD from a public start",
    "public records alone",
)
MEASURED: dict[str, tuple[str, tuple[str, ...]]] = {
    "projections": ("pcdp-table2", MAIN_LINES),
    "projections-fashion": ("pcdp-table3", MAIN_LINES),
    "dp-lsgd-figure1": ("dp-lsgd-figure1", ()),
    "pcdp-appendix-figure1": ("pcdp-appendix-figure1", ()),
    "pcdp-appendix-figure4": ("pcdp-appendix-figure4", ()),
    "pcdp-appendix-figure5": ("pcdp-appendix-figure5", ()),
    "pcdp-figure2": ("pcdp-figure2", ()),
    "pdp-figure1": ("pdp-figure1", ()),
    "pdp-figure2": ("pdp-figure2", ()),
    "pdp-figure3-mnist": ("pdp-figure3-mnist", ()),
    "pdp-figure3-fashion": ("pdp-figure3-fashion", ()),
    "pdp-figure7": ("pdp-figure7", ()),
    "pdp-figure8": ("pdp-figure8", ()),
    "pdp-figure9": ("pdp-figure9", ()),
}
"""By the name of the file: the experiment that the figure shows, and its lines, or () for all lines."""


def measured(stem: str, results: Path, name: str, shown: tuple[str, ...]) -> bool:
    """Draw an experiment if it has finished runs. The name of a figure of unprotected values says so.

    Returns:
        Whether there are finished runs.
    """
    experiment = read_experiment(name)
    if shown:
        lines = tuple(line for line in experiment.lines if line.name in shown)
        experiment = dataclasses.replace(experiment, lines=lines)
    rows = done_rows(experiment, results)
    for first in figures(experiment, rows)[:1] if rows else []:
        picture = dataclasses.replace(first, name=stem)
        picture.figure.savefig(HERE / f"{picture.file}.png", dpi=160)
    return bool(rows)


RECIPES = {
    "MNIST": ("recipes-mnist", "pcdp-table2"),
    "Fashion-MNIST": ("recipes-fashion", "pcdp-table3"),
    "CIFAR-10": ("recipes-cifar10", "pcdp-table4"),
}
"""By data set: the experiment of the recipes, and the paper's table with the same number of records."""

PAPER_LINES = {
    "DP-SGD": ("DP-SGD", "#7a869a", "s"),
    "PDP-SGD, k = 100": ("PDP-SGD", "#c77d0a", "D"),
    "PCDP-SGD, one subspace": ("PCDP-SGD", "#7d5ba6", "v"),
}
"""By the line of the paper's table: its name in the picture, its colour and its marker."""

EPSILONS = (0.03, 0.1, 0.3, 1)


def recipes(path: Path, results: Path) -> bool:
    """Draw accuracy against true epsilon: the recipe, the methods of the papers, and the public records alone.

    Returns:
        Whether all data sets have finished runs.
    """
    figure = Figure(figsize=(13, 4.3), dpi=120, layout="constrained")
    panels = figure.subplots(1, len(RECIPES))
    complete = True
    for axes, (title, (name, table)) in zip(panels, RECIPES.items(), strict=True):
        rows, paper = (done_rows(read_experiment(experiment), results) for experiment in (name, table))
        chosen = [row for row in rows if row.line == "recipe" and row.measured is not None]
        complete = complete and bool(chosen)
        axes.errorbar(
            [row.epsilon for row in chosen],
            [row.measured for row in chosen],
            [row.measured_std or 0 for row in chosen],
            color="#b5482a", marker="o", linewidth=2.2, capsize=3, label="recipe",
        )  # fmt: skip
        public = [row for row in rows if row.line.startswith("public records alone") and row.measured is not None]
        axes.plot(
            [row.value for row in public],
            [row.measured for row in public],
            color="#b5482a", linestyle="--", linewidth=1.2, label="public records alone, features of the recipe",
        )  # fmt: skip
        for line, (label, colour, marker) in PAPER_LINES.items():
            own = sorted((row for row in paper if row.line == line and row.measured is not None), key=_epsilon)
            axes.plot(
                [row.epsilon for row in own],
                [row.measured for row in own],
                color=colour, marker=marker, markersize=4, linewidth=1.2, label=label,
            )  # fmt: skip
        alone = [row.measured for row in paper if row.line == "public records alone" and row.measured is not None]
        if alone:
            axes.axhline(alone[0], color="#7a869a", linestyle=":", linewidth=1.2, label="public records alone, network")
        axes.set_xscale("log")
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.minorticks_off()
        axes.set_title(f"{title}: 10,000 private and 100 public records", fontsize=10)
        axes.set_xlabel("true epsilon at delta = 1e-5")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("test accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8.5, frameon=False)
    figure.savefig(path)
    return complete


def _epsilon(row: ResultRow) -> float:
    return row.epsilon


def main() -> None:
    for file, (name, shown) in MEASURED.items():
        if not measured(file, HERE.parent.parent / "experiments" / "results", name, shown):
            print(f"{file} was not drawn: experiments/results has no finished runs of {name}")
    if not recipes(HERE / "recipes.png", HERE.parent.parent / "experiments" / "results"):
        print("recipes.png has data sets without finished runs in experiments/results")
    pipeline(HERE / "pipeline.png")
    packages(HERE / "packages.png")
    audited(HERE / "audit.png")


if __name__ == "__main__":
    main()
