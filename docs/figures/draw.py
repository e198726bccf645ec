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
    ("stages", ("losses", "updates", "models", "clipping", "constraints", "subspaces", "release", "methods"), PRIVATE),
    ("training", ("training", "estimators", "audit", "diagnose", "figures"), PRIVATE),
    ("applications", ("runs", "federated", "studies", "report", "cli"), PUBLIC),
)
"""The packages in the order of tests/test_imports.py, in five layers."""


def packages(path: Path) -> None:
    """Draw the packages in layers."""
    figure, axes = _canvas(height=4.4)
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


def main() -> None:
    for file, (name, shown) in MEASURED.items():
        if not measured(file, HERE.parent.parent / "experiments" / "results", name, shown):
            print(f"{file} was not drawn: experiments/results has no finished runs of {name}")
    pipeline(HERE / "pipeline.png")
    packages(HERE / "packages.png")
    audited(HERE / "audit.png")


if __name__ == "__main__":
    main()
