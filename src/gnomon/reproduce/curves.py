"""Pictures of what happens along runs: curves over epochs, sorted numbers, points in a plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from gnomon.report.comparison import colours
from gnomon.report.picture import BLUE, COLOURS, GREY, INK, RUST, Picture, blank, legend
from gnomon.reproduce.experiment import NOISE, Experiment
from gnomon.reproduce.result import Row

MARKERS = "os^DvPX<>"
STYLES = ((0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (4, 1.5)), "-")
"""From the first look to the last."""
LEAST = 1e-5
"""Numbers below this share of the largest are as good as zero, and are not drawn."""
WORDS = {
    "accuracy": "test accuracy (%)",
    "unprotected/norms/mean": "mean norm of a record's gradient",
    "unprotected/incremental/mean": "length beyond the bound / local step",
    "unprotected/spectrum": "eigenvalue",
    "unprotected/components": "magnitude of the component",
}
"""What measures are called on an axis."""


def over_epochs(experiment: Experiment, rows: Sequence[Row]) -> Picture:
    """A panel for each value of the axis, and in it a curve with a band of one deviation for each line."""
    values = list(dict.fromkeys(row.value for row in rows))
    figure, panels = blank(len(values))
    said = []
    for number, (name, colour) in enumerate(colours([row.line for row in rows]).items()):
        look: dict[str, Any] = {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markersize": 3.5}
        for row in (row for row in rows if row.line == name):
            axes = panels[values.index(row.value)]
            for one in row.series:
                axes.plot(one.at, one.mean, label=name, markevery=max(1, len(one.at) // 10), linewidth=1.3, **look)
                if one.deviation:
                    low = [mean - spread for mean, spread in zip(one.mean, one.deviation, strict=True)]
                    high = [mean + spread for mean, spread in zip(one.mean, one.deviation, strict=True)]
                    axes.fill_between(one.at, low, high, color=colour, alpha=0.15, linewidth=0)
            if not row.series and row.measured is not None:  # public records alone: no epochs, one number
                axes.axhline(row.measured, color=INK, linestyle="--", linewidth=1.2, label=name)
            where = f" at {spoken(experiment.axis)} {row.value:g}" if len(values) > 1 else ""
            said.append(f"{name} ends at {row.measured:.3g}{where}" if row.measured is not None else f"{name}: nothing")
    for axes, value in zip(panels, values, strict=True):
        axes.set_title(title(experiment, rows, value), fontsize=9, color=INK)
        axes.set_xlabel("epoch")
        axes.set_ylabel(words(experiment))
    _same_height(panels)
    legend(panels[0])
    return _picture(experiment, "Means over seeds, with bands of one standard deviation.", said, figure)


def over_ranks(experiment: Experiment, rows: Sequence[Row]) -> Picture:
    """A panel for each cell, and in it the sorted numbers of each look."""
    mine = [row for row in rows if row.series]
    figure, panels = blank(len(mine))
    said = []
    for axes, row in zip(panels, mine, strict=True):
        for number, one in enumerate(row.series):
            least = max(one.mean) * LEAST
            points = [(at, value) for at, value in zip(one.at, one.mean, strict=True) if value > least]
            axes.plot(
                *zip(*points, strict=True),
                color=(GREY, *COLOURS[:3])[number % 4],
                linestyle=STYLES[(number - len(row.series)) % 4],
                label=f"epoch {one.epoch:.3g}",
            )
        last = row.series[-1]
        tenth = next((at for at, value in zip(last.at, last.mean, strict=True) if value <= last.mean[0] / 10), None)
        fall = f"falls to a tenth of it at rank {tenth:g}" if tenth is not None else "never falls to a tenth of it"
        said.append(f"{_cell(rows, row, experiment)}: at the end the largest is {last.mean[0]:.2g} and {fall}")
        axes.set_title(_cell(rows, row, experiment), fontsize=9, color=INK)
        axes.set_xlabel("rank, largest first")
        axes.set_ylabel(words(experiment))
        axes.set_yscale("log")
        if experiment.draw.endswith("components"):
            axes.set_xscale("log")
    _same_height(panels)
    legend(panels[0], most=4)
    return _picture(experiment, "Sorted from the largest down, at some moments of training.", said, figure)


def in_plane(experiment: Experiment, rows: Sequence[Row]) -> Picture:
    """A panel for each look at each cell, and in it the points of each kind."""
    moments = [(row, epoch) for row in rows for epoch in dict.fromkeys(one.epoch for one in row.series)]
    figure, panels = blank(len(moments))
    kinds = {"whole": (BLUE, "o", "as they are"), "projected": (RUST, "^", "projected")}
    said = []
    for axes, (row, epoch) in zip(panels, moments, strict=True):
        for one in (one for one in row.series if one.epoch == epoch):
            colour, marker, label = kinds[one.name]
            inner = "none" if one.name == "whole" else colour
            axes.scatter(one.at, one.mean, s=14, facecolors=inner, edgecolors=colour, marker=marker, alpha=0.75,
                         label=label, linewidths=0.9)  # fmt: skip
        head = f"epoch {epoch:.3g}"
        if len({(other.line, other.value) for other, _ in moments}) > 1:
            head = f"{_cell(rows, row, experiment)}, {head}"
        spread = {one.name: _radius(one.at, one.mean) for one in row.series if one.epoch == epoch}
        said.append(f"{head}: median distance from the middle {', '.join(f'{v:.2g} {k}' for k, v in spread.items())}")
        axes.set_title(head, fontsize=9, color=INK)
        axes.set_xlabel("random direction 1")
        axes.set_ylabel("random direction 2")
    widest = 1.05 * max(abs(x) for row in rows for one in row.series for x in (*one.at, *one.mean))
    for axes in panels:
        axes.set(xlim=(-widest, widest), ylim=(-widest, widest))
    legend(panels[0])
    return _picture(experiment, "Each point is the gradient of one record, of the first seed.", said, figure)


def title(experiment: Experiment, rows: Sequence[Row], value: float) -> str:
    """A value of the axis; noise with the epsilon that it gives."""
    if experiment.axis != NOISE:
        return f"{spoken(experiment.axis)} {value:g}"
    spent = next((row.epsilon for row in rows if row.value == value and row.epsilon > 0), None)
    return f"noise multiplier {value:g}" + ("" if spent is None else f", true epsilon {spent:.2g}")


def spoken(axis: str) -> str:
    """A setting as words.

    >>> spoken("noise-multiplier")
    'noise multiplier'
    """
    return axis.replace("-", " ")


def words(experiment: Experiment) -> str:
    """What is drawn, for the axis of a picture."""
    name = experiment.draw or experiment.measure
    if name in WORDS:
        return WORDS[name]
    return f"{name} ({experiment.unit})" if experiment.unit else name


def _cell(rows: Sequence[Row], row: Row, experiment: Experiment) -> str:
    several = len({one.value for one in rows}) > 1
    return f"{row.line}, {spoken(experiment.axis)} {row.value:g}" if several else row.line


def _same_height(panels: Sequence[Axes]) -> None:
    limits = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _radius(across: Sequence[float], up: Sequence[float]) -> float:
    """The median distance of points from their mean."""
    middle = sum(across) / len(across), sum(up) / len(up)
    far = sorted(((x - middle[0]) ** 2 + (y - middle[1]) ** 2) ** 0.5 for x, y in zip(across, up, strict=True))
    return far[len(far) // 2]


def _picture(experiment: Experiment, about: str, said: Sequence[str], figure: Any) -> Picture:
    caption = f"{experiment.title}. {about}"
    return Picture("result", caption, f"{caption} {'; '.join(said)}.", figure, experiment.unprotected)
