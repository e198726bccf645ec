"""Figures of one training run, for its page in the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from gnomon.accounting import digits
from gnomon.figures.picture import BLUE, GREY, RUST, Picture, blank, legend

History = Sequence[dict[str, Any]]


def training_pictures(history: History, public_only: float | None = None, *, claim: bool = True) -> list[Picture]:
    """Return the figures of a run: accuracy, loss, privacy budget, norms and traffic, as far as they were recorded.

    Args:
        history: the metrics of each epoch or round.
        public_only: the accuracy that the public records of the run give alone, drawn as a baseline.
        claim: whether the run makes a privacy claim. If not, its figures say that epsilon is only computed from the
            settings.

    >>> [picture.name for picture in training_pictures([{"epoch": 1.0, "epsilon": 0.5, "validation/accuracy": 0.9}])]
    ['accuracy', 'price', 'budget']
    """
    pictures = [
        _accuracy(history, public_only),
        _price(history, public_only, claim),
        _losses(history),
        _budget(history, claim),
        _norms(history),
        _traffic(history),
    ]
    return [picture for picture in pictures if picture is not None]


def series(history: History, key: str, scale: float = 1.0) -> tuple[list[float], list[float]]:
    """Return the epochs (or rounds) at which a metric was recorded, and its values.

    >>> series([{"epoch": 1, "epsilon": 0.5}, {"epoch": 2}], "epsilon")
    ([1], [0.5])
    """
    rows = [row for row in history if row.get(key) is not None]
    return [row[unit(history)] for row in rows], [scale * row[key] for row in rows]


def unit(history: History) -> str:
    """Return the unit of a history: `epoch`, or `round` for federated training.

    >>> unit([{"round": 1}]), unit([{"epoch": 0.5}])
    ('round', 'epoch')
    """
    return "round" if history and "epoch" not in history[0] and "round" in history[0] else "epoch"


def line_format(values: Sequence[float]) -> str:
    """Return a matplotlib format that marks the points of short curves."""
    return "o-" if len(values) < 20 else "-"


def _accuracy(history: History, public_only: float | None) -> Picture | None:
    epochs, values = series(history, "validation/accuracy", 100)
    if not values:
        return None
    figure, (axes,) = blank()
    axes.plot(epochs, values, line_format(values), color=BLUE, markersize=4)
    axes.set_ylim(0, 100)
    axes.set_xlabel(unit(history))
    axes.set_ylabel("test accuracy (%)")
    alt = f"Test accuracy: {values[0]:.1f} % at {unit(history)} {epochs[0]:g}, {values[-1]:.1f} % at the end."
    alt += _public_line(axes, public_only)
    return Picture("accuracy", "Accuracy on the test set during training.", alt, figure)


def _price(history: History, public_only: float | None, claim: bool) -> Picture | None:
    """Draw accuracy against epsilon spent."""
    points = [
        (row["epsilon"], 100 * row["validation/accuracy"])
        for row in history
        if row.get("validation/accuracy") is not None and math.isfinite(row.get("epsilon") or math.inf)
    ]
    if not points:
        return None
    figure, (axes,) = blank()
    spent, values = [epsilon for epsilon, _ in points], [accuracy for _, accuracy in points]
    axes.plot(spent, values, line_format(values), color=RUST, markersize=4)
    axes.set_xlim(0, 1.05 * max(spent) or 1)
    axes.set_ylim(0, 100)
    axes.set_xlabel(_epsilon_label(claim))
    axes.set_ylabel("test accuracy (%)")
    alt = f"Test accuracy against epsilon: {values[-1]:.1f} % at epsilon {digits(spent[-1], significant=3)}."
    alt += _public_line(axes, public_only)
    return Picture("price", f"Accuracy against privacy spent during training.{_no_claim(claim)}", alt, figure)


def _epsilon_label(claim: bool) -> str:
    """Return the label of an axis of epsilon."""
    return "epsilon spent" if claim else "epsilon of the settings"


def _no_claim(claim: bool) -> str:
    return "" if claim else " Epsilon is computed from the settings: the run makes no privacy claim."


def _public_line(axes: Axes, accuracy: float | None) -> str:
    """Draw the accuracy of the public records alone, if it is known; return the sentence about it."""
    if accuracy is None:
        return ""
    axes.axhline(100 * accuracy, color=GREY, linestyle=":", label="public records alone, epsilon 0")
    legend(axes)
    return f" The public records alone give {100 * accuracy:.1f} %."


def _losses(history: History) -> Picture | None:
    figure, (axes,) = blank()
    descriptions = []
    kinds = (
        ("validation/loss", "test loss", BLUE, "-"),
        ("unprotected/loss", "training loss, unprotected", GREY, "--"),
    )
    for key, label, colour, line in kinds:
        epochs, values = series(history, key)
        if values:
            axes.plot(epochs, values, line, color=colour, label=label)
            descriptions.append(f"{label} from {values[0]:.3g} to {values[-1]:.3g}")
    if not descriptions:
        return None
    axes.set_ylim(bottom=0)
    axes.set_xlabel(unit(history))
    axes.set_ylabel("mean loss (nats)")
    legend(axes)
    alt = f"Loss against {unit(history)}s: {'; '.join(descriptions)}."
    return Picture("loss", "Loss during training.", alt, figure, any("unprotected" in text for text in descriptions))


def _budget(history: History, claim: bool) -> Picture | None:
    epochs, values = series(history, "epsilon")
    if not values:
        return None
    figure, (axes,) = blank()
    axes.plot(epochs, values, line_format(values), color=RUST, markersize=4)
    axes.set_ylim(0, 1.1 * max(values) or 1)
    axes.set_xlabel(unit(history))
    axes.set_ylabel(_epsilon_label(claim))
    first, last = (digits(value, significant=3) for value in (values[0], values[-1]))
    alt = f"Privacy spent against {unit(history)}s: epsilon rises from {first} to {last}."
    return Picture("budget", f"Privacy spent during training.{_no_claim(claim)}", alt, figure)


def _norms(history: History) -> Picture | None:
    """Draw the norm of updates beyond the clip bound, and state the share of clipped updates."""
    key = "unprotected/incremental/"
    epochs, median = series(history, f"{key}q50")
    if not median:
        return None
    figure, (axes,) = blank()
    low, high, mean = (series(history, f"{key}{name}")[1] for name in ("q25", "q75", "mean"))
    axes.fill_between(epochs, low, high, color=BLUE, alpha=0.2, linewidth=0, label="middle half of the records")
    axes.plot(epochs, median, "-", color=BLUE, label="median")
    axes.plot(epochs, mean, "--", color=RUST, label="mean")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(unit(history))
    axes.set_ylabel("norm beyond the clip bound")
    legend(axes)
    _, clipped = series(history, "unprotected/clipped", 100)
    share = f" {clipped[-1]:.0f} % of the updates are clipped in the last {unit(history)}." if clipped else ""
    alt = f"Norm of updates beyond the clip bound: mean from {mean[0]:.3g} to {mean[-1]:.3g}.{share}"
    caption = f"Norm of updates beyond the clip bound, divided by the step size of local steps if there are any.{share}"
    return Picture("norms", caption, alt, figure, True)


def _traffic(history: History) -> Picture | None:
    """Draw the bytes that the server and all clients sent in each round."""
    rounds, down = series(history, "bytes/down", 1e-3)
    up = series(history, "bytes/up", 1e-3)[1]
    if not down or len(up) != len(down):
        return None
    figure, (axes,) = blank()
    axes.plot(rounds, down, line_format(down), color=GREY, markersize=4, label="server to clients")
    axes.plot(rounds, up, line_format(up), color=BLUE, markersize=4, label="clients to server")
    axes.set_yscale("log")
    axes.set_xlabel(unit(history))
    axes.set_ylabel("kilobytes per round, all clients")
    legend(axes)
    alt = f"Traffic: {sum(down):.0f} kB to the clients and {sum(up):.0f} kB to the server in {len(down)} rounds."
    return Picture("traffic", "Size of all messages per round, without protocol overhead.", alt, figure)
