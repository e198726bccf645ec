"""Pictures of what happens along runs: curves over epochs, sorted numbers, points in a plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gnomon.accounting import digits
from gnomon.figures.comparison import colours
from gnomon.figures.picture import BLUE, COLOURS, GREY, INK, RUST, Picture, blank, legend, over_seeds
from gnomon.studies.reproduce.experiment import NOISE, Experiment
from gnomon.studies.reproduce.names import spoken, with_unit, words
from gnomon.studies.reproduce.result import ResultRow
from gnomon.studies.reproduce.series import Series

MARKERS = "os^DvPX<>"
STYLES = ((0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (4, 1.5)), "-")
"""From the first look to the last."""
LEAST = 1e-5
"""Numbers below this share of the largest are as good as zero, and are not drawn."""
KINDS = {"whole": (BLUE, "o", "as they are"), "projected": (RUST, "^", "projected")}


@dataclass(frozen=True)
class Panel:
    """One part of a picture: its title, how to draw it, and what it shows in words."""

    title: str
    draw: Callable[[Axes], None]
    said: str


def curves(experiment: Experiment, rows: Sequence[ResultRow], *, apart: bool = False) -> list[Picture]:
    """Panels side by side in one picture, or each in a picture of its own, at the same scale."""
    makers = {"epoch": over_epochs, "rank": over_ranks, "plane": in_plane}
    about, panels = makers[experiment.over](experiment, rows)
    if not panels:
        return []
    figure, places = blank(len(panels))
    for axes, panel in zip(places, panels, strict=True):
        panel.draw(axes)
        axes.set_title(panel.title, fontsize=9, color=INK)
    _same_scale(places, across=experiment.over == "plane")
    caption = f"{experiment.title}. {about}"
    if not apart or len(panels) == 1:
        legend(places[0], most=4)
        alt = f"{caption} {'; '.join(panel.said for panel in panels)}."
        return [Picture("result", caption, alt, figure, experiment.unprotected)]
    made = []
    for number, (panel, place) in enumerate(zip(panels, places, strict=True), 1):
        figure, (axes,) = blank()
        panel.draw(axes)
        axes.set(xlim=place.get_xlim(), ylim=place.get_ylim())
        legend(axes, most=4)
        named = f"{panel.title[0].upper()}{panel.title[1:]}. {about}"
        made.append(Picture(f"result-{number}", named, f"{named} {panel.said}.", figure, experiment.unprotected))
    return made


def over_epochs(experiment: Experiment, rows: Sequence[ResultRow]) -> tuple[str, list[Panel]]:
    """A panel for each value of the axis, and in it a curve with a band of one deviation for each line."""
    shades = list(colours([row.line for row in rows]).items())

    def draw(value: float, axes: Axes) -> None:
        for number, (name, colour) in enumerate(shades):
            for row in (row for row in rows if row.line == name and row.value == value):
                _curve(axes, row, colour, MARKERS[number % len(MARKERS)])
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_ylabel(words(experiment))

    made = []
    for value in dict.fromkeys(row.value for row in rows):
        ends = [
            f"{row.line} ends at {with_unit(experiment, row.measured)}"
            for row in rows
            if row.value == value and row.measured is not None
        ]
        head = title(experiment, rows, value)
        made.append(Panel(head, partial(draw, value), f"{head}: {', '.join(ends)}"))
    shown = over_seeds([row.measured_std for row in rows], "bands")
    return ("One seed." if shown == "one seed" else f"Means over seeds, {shown}."), made


def over_ranks(experiment: Experiment, rows: Sequence[ResultRow]) -> tuple[str, list[Panel]]:
    """A panel for each cell, and in it the sorted numbers of each look."""

    def draw(row: ResultRow, axes: Axes) -> None:
        for number, one in enumerate(row.series):
            least = max(one.mean) * LEAST
            points = [(at, value) for at, value in zip(one.at, one.mean, strict=True) if value > least]
            axes.plot(
                *zip(*points, strict=True),
                color=(GREY, *COLOURS[:3])[number % 4],
                linestyle=STYLES[(number - len(row.series)) % 4],
                label=f"epoch {one.epoch:.3g}",
            )
        axes.set_xlabel("rank, largest first")
        axes.set_ylabel(words(experiment))
        axes.set_yscale("log")
        if experiment.draw.endswith("components"):
            axes.set_xscale("log")

    made = [
        Panel(_cell(rows, row, experiment), partial(draw, row), f"{_cell(rows, row, experiment)}: {_fall(row.series)}")
        for row in rows
        if row.series
    ]
    return "Sorted from the largest down, at some moments of training.", made


def in_plane(experiment: Experiment, rows: Sequence[ResultRow]) -> tuple[str, list[Panel]]:
    """A panel for each look at each cell, and in it the points of each kind."""

    def draw(shown: Sequence[Series], axes: Axes) -> None:
        for one in shown:
            colour, marker, label = KINDS[one.name]
            inner = "none" if one.name == "whole" else colour
            axes.scatter(one.at, one.mean, s=14, facecolors=inner, edgecolors=colour, marker=marker, alpha=0.75,
                         label=label, linewidths=0.9)  # fmt: skip
        axes.set_xlabel("random direction 1")
        axes.set_ylabel("random direction 2")

    several = len([row for row in rows if row.series]) > 1
    made = []
    for row in rows:
        for epoch in dict.fromkeys(one.epoch for one in row.series):
            shown = [one for one in row.series if one.epoch == epoch]
            head = f"{_cell(rows, row, experiment)}, epoch {epoch:.3g}" if several else f"epoch {epoch:.3g}"
            far = ", ".join(f"{_radius(one):.2g} {KINDS[one.name][2]}" for one in shown)
            made.append(Panel(head, partial(draw, shown), f"{head}: median distance from the middle {far}"))
    return "Each point is the gradient of one record, of the first seed.", made


def title(experiment: Experiment, rows: Sequence[ResultRow], value: float) -> str:
    """A value of the axis; noise with the epsilon that it gives."""
    if experiment.axis != NOISE:
        return f"{spoken(experiment.axis)} {value:g}"
    spent = next((row.epsilon for row in rows if row.value == value and row.epsilon > 0), None)
    return f"noise multiplier {value:g}" + ("" if spent is None else f", true epsilon {digits(spent, significant=2)}")


def _curve(axes: Axes, row: ResultRow, colour: str, marker: str) -> None:
    for one in row.series:
        axes.plot(one.at, one.mean, color=colour, marker=marker, markersize=3.5, linewidth=1.3, label=row.line,
                  markevery=max(1, len(one.at) // 10))  # fmt: skip
        if one.deviation:
            pairs = list(zip(one.mean, one.deviation, strict=True))
            low, high = [mean - off for mean, off in pairs], [mean + off for mean, off in pairs]
            axes.fill_between(one.at, low, high, color=colour, alpha=0.15, linewidth=0)
    if not row.series and row.measured is not None:  # public records alone: no epochs, one number
        axes.axhline(row.measured, color=INK, linestyle="--", linewidth=1.2, label=row.line)


def _cell(rows: Sequence[ResultRow], row: ResultRow, experiment: Experiment) -> str:
    several = len({one.value for one in rows}) > 1
    return f"{row.line}, {spoken(experiment.axis)} {row.value:g}" if several else row.line


def _fall(looks: Sequence[Series]) -> str:
    """How fast the sorted numbers of the last look fall."""
    last = looks[-1]
    tenth = next((at for at, value in zip(last.at, last.mean, strict=True) if value <= last.mean[0] / 10), None)
    fall = f"falls to a tenth of it at rank {tenth:g}" if tenth is not None else "never falls to a tenth of it"
    return f"at the end the largest is {last.mean[0]:.2g} and {fall}"


def _same_scale(panels: Sequence[Axes], *, across: bool) -> None:
    limits = [axes.get_ylim() for axes in panels]
    widths = [axes.get_xlim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        if across:
            axes.set_xlim(min(low for low, _ in widths), max(high for _, high in widths))


def _radius(points: Series) -> float:
    """The median distance of points from their mean."""
    middle = sum(points.at) / len(points.at), sum(points.mean) / len(points.mean)
    pairs = zip(points.at, points.mean, strict=True)
    return sorted(((x - middle[0]) ** 2 + (y - middle[1]) ** 2) ** 0.5 for x, y in pairs)[len(points.at) // 2]
