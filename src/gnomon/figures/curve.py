"""The picture of one training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gnomon.accounting import digits
from gnomon.figures.picture import BLUE, GREY, INK, RUST
from gnomon.training.metrics import Metrics


def training_curve(history: Sequence[Metrics], title: str, path: Path, unit: str = "epoch") -> None:
    """Validation accuracy, validation loss and epsilon spent, against epochs or rounds, as PNG or SVG by the ending.

    Only released values are drawn, so the picture may leave the data holder; the training loss, which is unprotected,
    is a picture of the report.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "curve.png"
    ...     training_curve([{"epoch": 1.0, "epsilon": 0.5, "validation/loss": 2.0}], "toy", path)
    ...     path.stat().st_size > 1000
    True
    """
    scored = any(name in row for row in history for name in ("validation/accuracy", "validation/loss"))
    figure = Figure(figsize=(9 if scored else 4.6, 3.6), dpi=130, layout="constrained")
    panels = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
    if scored:
        _scores(panels[0], history, unit)
    _spent(panels[-1], history, unit)
    for axes in panels:
        axes.set_xlabel(unit)
        axes.spines[["top"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[-1].spines[["right"]].set_visible(False)
    figure.suptitle(title, color=INK, fontsize=11)
    figure.savefig(path)


def _dots(history: Sequence[Metrics]) -> str:
    return "o-" if len(history) < 20 else "-"


def _scores(axes: Axes, history: Sequence[Metrics], unit: str) -> None:
    """Accuracy, and the loss on an axis of its own beside it; either alone where the other was not measured."""
    exact = [row for row in history if "validation/accuracy" in row]
    known = [row for row in history if "validation/loss" in row]
    handles = []
    if exact:
        accuracy = [100 * row["validation/accuracy"] for row in exact]
        handles += axes.plot([row[unit] for row in exact], accuracy, _dots(history), color=BLUE,
                             label="validation accuracy")  # fmt: skip
        axes.set_ylabel("accuracy (%)")
        axes.set_ylim(0, 100)
        axes.annotate(
            f"{accuracy[-1]:.1f} %", (exact[-1][unit], accuracy[-1]), xytext=(-4, 8),
            textcoords="offset points", ha="right", color=BLUE, weight="bold",
        )  # fmt: skip
    if known:
        losses = axes.twinx() if exact else axes
        handles += losses.plot([row[unit] for row in known], [row["validation/loss"] for row in known], "--",
                               color=GREY, label="validation loss")  # fmt: skip
        losses.set_ylabel("loss")
        losses.set_ylim(bottom=0)
        losses.spines[["top"]].set_visible(False)
    axes.legend(handles=handles, loc="lower right", frameon=False, fontsize=8)


def _spent(axes: Axes, history: Sequence[Metrics], unit: str) -> None:
    spent = [row["epsilon"] for row in history]
    epochs = [row[unit] for row in history]
    axes.plot(epochs, spent, _dots(history), color=RUST)
    axes.set_ylabel("epsilon spent")
    finite = [value for value in spent if value < float("inf")]
    if finite:
        axes.set_ylim(0, 1.15 * max(finite))
        axes.annotate(
            digits(finite[-1]), (epochs[len(finite) - 1], finite[-1]), xytext=(-4, 8),
            textcoords="offset points", ha="right", color=RUST, weight="bold",
        )  # fmt: skip
    else:
        axes.text(0.5, 0.5, "infinite: no noise", transform=axes.transAxes, ha="center", color=RUST)
