"""The picture of one training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from gnomon.report.picture import BLUE, GREY, INK, RUST
from gnomon.training.watch import Record


def training_curve(history: Sequence[Record], title: str, path: Path, unit: str = "epoch") -> None:
    """Validation accuracy (or loss) and epsilon spent, against epochs or rounds, as PNG or SVG by the path's ending.

    The training loss is drawn dashed and named unprotected.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "curve.png"
    ...     training_curve([{"epoch": 1.0, "epsilon": 0.5, "unprotected/loss": 2.0}], "toy", path)
    ...     path.stat().st_size > 1000
    True
    """
    figure = Figure(figsize=(9, 3.6), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = [row[unit] for row in history]
    dots = "o-" if len(history) < 20 else "-"
    scored = [row for row in history if "validation/accuracy" in row]
    if scored:
        accuracy = [100 * row["validation/accuracy"] for row in scored]
        left.plot([row[unit] for row in scored], accuracy, dots, color=BLUE, label="validation accuracy")
        left.set_ylabel("accuracy (%)")
        left.set_ylim(0, 100)
        left.annotate(
            f"{accuracy[-1]:.1f} %", (scored[-1][unit], accuracy[-1]), xytext=(-4, 8),
            textcoords="offset points", ha="right", color=BLUE, weight="bold",
        )  # fmt: skip
        losses = left.twinx()
    else:
        losses = left
    known = [row for row in history if "unprotected/loss" in row]  # a server of a federation has none
    losses.plot(
        [row[unit] for row in known],
        [row["unprotected/loss"] for row in known],
        "--",
        color=GREY,
        label="training loss (unprotected)",
    )
    losses.set_ylabel("loss")
    losses.set_ylim(bottom=0)
    handles = [
        *left.get_legend_handles_labels()[0],
        *(losses.get_legend_handles_labels()[0] if scored else []),
    ]
    left.legend(handles=handles, loc="lower right", frameon=False, fontsize=8)
    spent = [row["epsilon"] for row in history]
    right.plot(epochs, spent, dots, color=RUST)
    right.set_ylabel("epsilon spent")
    finite = [value for value in spent if value < float("inf")]
    if finite:
        right.set_ylim(0, 1.15 * max(finite))
        right.annotate(
            f"{finite[-1]:.3g}", (epochs[len(finite) - 1], finite[-1]), xytext=(-4, 8),
            textcoords="offset points", ha="right", color=RUST, weight="bold",
        )  # fmt: skip
    else:
        right.text(0.5, 0.5, "infinite: no noise", transform=right.transAxes, ha="center", color=RUST)
    for axes in (left, right):
        axes.set_xlabel(unit)
        axes.spines[["top"]].set_visible(False)
        axes.grid(alpha=0.25)
    right.spines[["right"]].set_visible(False)
    figure.suptitle(title, color=INK, fontsize=11)
    figure.savefig(path)
