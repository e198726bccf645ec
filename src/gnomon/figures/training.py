"""Pictures of one training run, for its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from gnomon.accounting import digits
from gnomon.figures.picture import BLUE, GREY, RUST, Picture, blank, legend

History = Sequence[dict[str, Any]]


def training_pictures(history: History, public_only: float | None = None, *, claim: bool = True) -> list[Picture]:
    """Accuracy, loss, budget, norms and traffic against epochs or rounds, as far as the run recorded them.

    `public_only` is the accuracy that the run's public records give alone: the line to be above. Without a `claim`,
    epsilon is what the settings would cost, and pictures say so.

    >>> [one.name for one in training_pictures([{"epoch": 1.0, "epsilon": 0.5, "validation/accuracy": 0.9}])]
    ['accuracy', 'price', 'budget']
    """
    made = [
        _accuracy(history, public_only),
        _price(history, public_only, claim),
        _losses(history),
        _budget(history, claim),
        _beyond(history),
        _traffic(history),
    ]
    return [picture for picture in made if picture is not None]


def series(history: History, key: str, scale: float = 1.0) -> tuple[list[float], list[float]]:
    """Epochs and values of a metric, where it was recorded.

    >>> series([{"epoch": 1, "epsilon": 0.5}, {"epoch": 2}], "epsilon")
    ([1], [0.5])
    """
    found = [(row[unit(history)], scale * row[key]) for row in history if row.get(key) is not None]
    return [epoch for epoch, _ in found], [value for _, value in found]


def unit(history: History) -> str:
    """What a run counts: epochs, or the rounds of federated training.

    >>> unit([{"round": 1}]), unit([{"epoch": 0.5}])
    ('round', 'epoch')
    """
    return "round" if history and "epoch" not in history[0] and "round" in history[0] else "epoch"


def dots(values: Sequence[float]) -> str:
    """Points are marked while they are few."""
    return "o-" if len(values) < 20 else "-"


def _accuracy(history: History, public_only: float | None) -> Picture | None:
    epochs, values = series(history, "validation/accuracy", 100)
    if not values:
        return None
    figure, (axes,) = blank()
    axes.plot(epochs, values, dots(values), color=BLUE, markersize=4)
    axes.set_ylim(0, 100)
    axes.set_xlabel(unit(history))
    axes.set_ylabel("test accuracy (%)")
    alt = f"Test accuracy: {values[0]:.1f} % at {unit(history)} {epochs[0]:g}, {values[-1]:.1f} % at the end."
    alt += _public_line(axes, public_only)
    return Picture("accuracy", "Accuracy on the test set while training.", alt, figure)


def _price(history: History, public_only: float | None, claim: bool) -> Picture | None:
    """What each bit of privacy bought."""
    found = [
        (row["epsilon"], 100 * row["validation/accuracy"])
        for row in history
        if row.get("validation/accuracy") is not None and math.isfinite(row.get("epsilon") or math.inf)
    ]
    if not found:
        return None
    figure, (axes,) = blank()
    spent, values = [one for one, _ in found], [one for _, one in found]
    axes.plot(spent, values, dots(values), color=RUST, markersize=4)
    axes.set_xlim(0, 1.05 * max(spent) or 1)
    axes.set_ylim(0, 100)
    axes.set_xlabel(_spent(claim))
    axes.set_ylabel("test accuracy (%)")
    alt = f"Test accuracy against epsilon: {values[-1]:.1f} % at epsilon {digits(spent[-1], significant=3)}."
    alt += _public_line(axes, public_only)
    return Picture("price", f"Accuracy against privacy spent while training.{_unclaimed(claim)}", alt, figure)


def _spent(claim: bool) -> str:
    """What an axis of epsilon shows."""
    return "epsilon spent" if claim else "epsilon by the settings"


def _unclaimed(claim: bool) -> str:
    return "" if claim else " This is what the settings would cost: the run makes no privacy claim."


def _public_line(axes: Axes, accuracy: float | None) -> str:
    """The line of the public records alone, if there are any; what to say about it."""
    if accuracy is None:
        return ""
    axes.axhline(100 * accuracy, color=GREY, linestyle=":", label="public records alone, epsilon 0")
    legend(axes)
    return f" The public records alone give {100 * accuracy:.1f} %."


def _losses(history: History) -> Picture | None:
    figure, (axes,) = blank()
    said = []
    kinds = (
        ("validation/loss", "test loss", BLUE, "-"),
        ("unprotected/loss", "training loss, unprotected", GREY, "--"),
    )
    for key, label, colour, line in kinds:
        epochs, values = series(history, key)
        if values:
            axes.plot(epochs, values, line, color=colour, label=label)
            said.append(f"{label} from {values[0]:.3g} to {values[-1]:.3g}")
    if not said:
        return None
    axes.set_ylim(bottom=0)
    axes.set_xlabel(unit(history))
    axes.set_ylabel("mean loss (nats)")
    legend(axes)
    raw = any("unprotected" in one for one in said)
    return Picture("loss", "Loss while training.", f"Loss against {unit(history)}s: {'; '.join(said)}.", figure, raw)


def _budget(history: History, claim: bool) -> Picture | None:
    epochs, values = series(history, "epsilon")
    if not values:
        return None
    figure, (axes,) = blank()
    axes.plot(epochs, values, dots(values), color=RUST, markersize=4)
    axes.set_ylim(0, 1.1 * max(values) or 1)
    axes.set_xlabel(unit(history))
    axes.set_ylabel(_spent(claim))
    first, last = (digits(value, significant=3) for value in (values[0], values[-1]))
    alt = f"Privacy spent against {unit(history)}s: epsilon rises from {first} to {last}."
    return Picture("budget", f"Privacy spent while training.{_unclaimed(claim)}", alt, figure)


def _beyond(history: History) -> Picture | None:
    """By how much updates were longer than the bound, and how many."""
    key = "unprotected/incremental/"
    epochs, middle = series(history, f"{key}q50")
    if not middle:
        return None
    figure, (left,) = blank()
    low, high, mean = (series(history, f"{key}{name}")[1] for name in ("q25", "q75", "mean"))
    left.fill_between(epochs, low, high, color=BLUE, alpha=0.2, linewidth=0, label="middle half of the records")
    left.plot(epochs, middle, "-", color=BLUE, label="median")
    left.plot(epochs, mean, "--", color=RUST, label="mean")
    left.set_ylim(bottom=0)
    left.set_xlabel(unit(history))
    left.set_ylabel("length beyond the clip bound")
    legend(left)
    when, clipped = series(history, "unprotected/clipped", 100)
    share = f" {clipped[-1]:.0f} % of the updates are clipped in the last {unit(history)}." if when else ""
    alt = f"Length of updates beyond the clip bound: mean from {mean[0]:.3g} to {mean[-1]:.3g}.{share}"
    caption = "By how much updates were longer than the clip bound, divided by the step size of local steps if any."
    caption += share
    return Picture("norms", caption, alt, figure, True)


def _traffic(history: History) -> Picture | None:
    """What went over the wire, all clients together."""
    rounds, down = series(history, "bytes/down", 1e-3)
    up = series(history, "bytes/up", 1e-3)[1]
    if not down or len(up) != len(down):
        return None
    figure, (axes,) = blank()
    axes.plot(rounds, down, dots(down), color=GREY, markersize=4, label="server to clients")
    axes.plot(rounds, up, dots(up), color=BLUE, markersize=4, label="clients to server")
    axes.set_yscale("log")
    axes.set_xlabel(unit(history))
    axes.set_ylabel("kilobytes a round, all clients")
    legend(axes)
    alt = f"Traffic: {sum(down):.0f} kB to the clients and {sum(up):.0f} kB to the server in {len(down)} rounds."
    return Picture("traffic", "What was sent, without the protocol's own bytes.", alt, figure)
