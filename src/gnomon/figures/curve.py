"""The learning curve that a training run leaves in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gnomon.accounting import digits
from gnomon.figures.picture import BLUE, GREY, INK, RUST
from gnomon.training.metrics import Metrics


def training_curve(history: Sequence[Metrics], title: str, path: Path, unit: str = "epoch") -> None:
    """Draw validation accuracy, validation loss and epsilon spent, and write the figure as PNG or SVG.

    Only released values are drawn, so that the figure may leave the data holder. The training loss is unprotected and
    appears in the report only.

    Args:
        history: the metrics of each epoch or round.
        title: the title of the figure.
        path: the file to write; its extension chooses the format.
        unit: the metric on the horizontal axis, `epoch` or `round`.

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
        _draw_scores(panels[0], history, unit)
    _draw_epsilon(panels[-1], history, unit)
    for axes in panels:
        axes.set_xlabel(unit)
        axes.spines[["top"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[-1].spines[["right"]].set_visible(False)
    figure.suptitle(title, color=INK, fontsize=11)
    figure.savefig(path)


def _line_format(history: Sequence[Metrics]) -> str:
    """Return a matplotlib format that marks the points of short histories."""
    return "o-" if len(history) < 20 else "-"


def _draw_scores(axes: Axes, history: Sequence[Metrics], unit: str) -> None:
    """Draw the accuracy, and the loss on a second vertical axis; only one of them if the other was not recorded.

    The legend, with the final accuracy, stands above the axes: inside them it could lie on one of the curves.
    """
    with_accuracy = [row for row in history if "validation/accuracy" in row]
    with_loss = [row for row in history if "validation/loss" in row]
    handles = []
    if with_accuracy:
        accuracy = [100 * row["validation/accuracy"] for row in with_accuracy]
        handles += axes.plot([row[unit] for row in with_accuracy], accuracy, _line_format(history), color=BLUE,
                             label=f"validation accuracy, {accuracy[-1]:.1f} % at the end")  # fmt: skip
        axes.set_ylabel("accuracy (%)")
        axes.set_ylim(0, 100)
    if with_loss:
        loss_axes = axes.twinx() if with_accuracy else axes
        handles += loss_axes.plot([row[unit] for row in with_loss], [row["validation/loss"] for row in with_loss], "--",
                                  color=GREY, label="validation loss")  # fmt: skip
        loss_axes.set_ylabel("loss")
        loss_axes.set_ylim(bottom=0)
        loss_axes.spines[["top"]].set_visible(False)
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8)


def _draw_epsilon(axes: Axes, history: Sequence[Metrics], unit: str) -> None:
    epsilons = [row["epsilon"] for row in history]
    positions = [row[unit] for row in history]
    axes.plot(positions, epsilons, _line_format(history), color=RUST)
    axes.set_ylabel("epsilon spent")
    finite = [value for value in epsilons if value < float("inf")]
    if finite:
        axes.set_ylim(0, 1.15 * max(finite))
        axes.annotate(
            digits(finite[-1]), (positions[len(finite) - 1], finite[-1]), xytext=(-4, 8),
            textcoords="offset points", ha="right", color=RUST, weight="bold",
        )  # fmt: skip
    else:
        axes.text(0.5, 0.5, "infinite: no noise", transform=axes.transAxes, ha="center", color=RUST)
