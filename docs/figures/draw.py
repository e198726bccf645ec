"""Draws the pictures of README and docs: `make figures`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from gnomon.config import TrainConfig
from gnomon.runs import train

HERE = Path(__file__).parent
INK, PRIVATE, DOOR, PUBLIC = "#1f2933", "#fde8e1", "#b5482a", "#e3f0ff"

STAGES = (
    ("records", "who takes part?", "data/sampling.py", PRIVATE),
    ("updates", "what would each\none change?", "updates/", PRIVATE),
    ("weights", "how much may\neach one count?", "clipping/", PRIVATE),
    ("release", "clip, sum, noise,\ndivide: the door", "release/door.py", DOOR),
    ("step", "how does the\nmodel move?", "training/trainer.py", PUBLIC),
)


def pipeline(path: Path) -> None:
    """How a batch walks through the code."""
    figure = Figure(figsize=(10, 2.7), dpi=140)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 2.7)
    axes.axis("off")
    for i, (name, question, place, colour) in enumerate(STAGES):
        left = 0.15 + 1.98 * i
        text = "white" if colour == DOOR else INK
        axes.add_patch(FancyBboxPatch((left, 0.85), 1.6, 1.25, "round,pad=0.04", facecolor=colour, edgecolor=INK))
        axes.text(left + 0.8, 1.82, name, ha="center", weight="bold", color=text, fontsize=12)
        axes.text(left + 0.8, 1.33, question, ha="center", va="center", color=text, fontsize=9)
        axes.text(left + 0.8, 0.96, place, ha="center", color=text, fontsize=8, family="monospace")
        if i:
            axes.add_patch(
                FancyArrowPatch(
                    (left - 0.32, 1.47), (left - 0.02, 1.47), arrowstyle="-|>", mutation_scale=14, color=INK
                )
            )
    axes.annotate("", (0.1, 0.6), (7.75, 0.6), arrowprops={"arrowstyle": "<->", "color": DOOR})
    axes.text(
        3.9,
        0.28,
        "private: stays with the data holder, logged as unprotected/",
        ha="center",
        fontsize=9,
        color=DOOR,
    )
    axes.annotate("", (8.0, 0.6), (9.75, 0.6), arrowprops={"arrowstyle": "<->", "color": "#1f6feb"})
    axes.text(8.9, 0.28, "post-processing", ha="center", fontsize=9, color="#1f6feb")
    axes.text(0.15, 2.4, "One batch, left to right, once; no stage looks back", fontsize=10, color=INK)
    figure.savefig(path)


def main() -> None:
    pipeline(HERE / "pipeline.png")
    with tempfile.TemporaryDirectory() as place:
        run = train(TrainConfig(target_epsilon=1.0), Path(place) / "run")
        (HERE / "digits.png").write_bytes((run.folder / "curve.png").read_bytes())


if __name__ == "__main__":
    main()
