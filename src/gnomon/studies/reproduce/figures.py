"""The figures of an experiment: lines, a heat map, curves over epochs or ranks, or points in a plane."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gnomon.accounting import digits
from gnomon.figures.comparison import colours
from gnomon.figures.picture import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    RUST,
    STYLE,
    Picture,
    blank,
    deviation_words,
    error_bars,
    legend,
)
from gnomon.studies.reproduce.experiment import NOISE, Experiment
from gnomon.studies.reproduce.formatting import format_with_unit, quantity_label, setting_name
from gnomon.studies.reproduce.results import ResultRow, Series

MARKERS = "os^DvPX<>"
LINE_STYLES = ((0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (4, 1.5)), "-")
"""The line styles of diagnostics, from the first epoch to the last."""
SMALLEST_SHARE = 1e-5
"""Values below this share of the largest one are numerically zero and are not drawn."""
POINT_STYLES = {"whole": (BLUE, "o", "not projected"), "projected": (RUST, "^", "projected")}
"""The colour, marker and label of the gradients in a plane."""


def figures(experiment: Experiment, rows: Sequence[ResultRow], *, apart: bool = False) -> list[Picture]:
    """Return the figures of an experiment.

    Args:
        experiment: the experiment.
        rows: its results.
        apart: draw each panel of a figure over epochs, ranks or a plane as a figure of its own, at the same scale.
    """
    if experiment.over:
        return _panel_figures(experiment, rows, apart=apart)
    return [_heat_map(experiment, rows) if experiment.heat else _lines(experiment, rows)]


def _lines(experiment: Experiment, rows: Sequence[ResultRow]) -> Picture:
    """Draw a line for the measured results of each method, and crosses for the published ones."""
    figure, (axes,) = blank()
    values = sorted({row.value for row in rows}, reverse=experiment.axis == NOISE)  # epsilon grows to the right
    position = {value: number for number, value in enumerate(values)}
    descriptions, axis = [], setting_name(experiment.axis)
    for number, (name, colour) in enumerate(colours([row.line for row in rows]).items()):
        measured = sorted(
            (row for row in rows if row.line == name and row.measured is not None),
            key=lambda row: position[row.value],
        )
        means = [row.measured or 0.0 for row in measured]
        public = bool(measured) and measured[0].epsilon == 0
        axes.errorbar(
            [position[row.value] for row in measured], means, error_bars([row.measured_std for row in measured]),
            color=INK if public else colour, linestyle="--" if public else "-",
            marker="" if public else MARKERS[number % len(MARKERS)], markersize=4, linewidth=1.3, capsize=2, label=name,
        )  # fmt: skip
        published = [row for row in rows if row.line == name and row.published is not None]
        crosses = [row.published or 0.0 for row in published]
        axes.plot([position[row.value] for row in published], crosses, "x", color=colour)
        numbers = [
            f"{format_with_unit(experiment, mean)} at {axis} {row.value:g}"
            for row, mean in zip(measured, means, strict=True)
        ]
        descriptions.append(f"{name}: {', '.join(numbers)}")
    has_published = any(row.published is not None for row in rows)
    if has_published:
        axes.plot([], [], "x", color=INK, label="published")
    with mpl.rc_context(STYLE):
        axes.set_xticks(range(len(values)), [_tick(experiment, rows, value) for value in values])
    axes.set_xlabel("true epsilon, and noise multiplier" if experiment.axis == NOISE else axis)
    axes.set_ylabel(quantity_label(experiment))
    legend(axes)
    deviations = deviation_words([row.measured_std for row in rows if row.measured is not None], "error bars")
    crosses_words = " and published results (crosses)" if has_published else ""
    caption = f"{experiment.title}: measured results (lines, {deviations}){crosses_words}."
    return Picture("result", caption, f"{caption} {'; '.join(descriptions)}.", figure, experiment.unprotected)


def _tick(experiment: Experiment, rows: Sequence[ResultRow], value: float) -> str:
    if experiment.axis != NOISE:
        return f"{value:g}"
    epsilon = _epsilon_at(rows, value)
    return f"σ {value:g}" if epsilon is None else f"{digits(epsilon, significant=2)}\nσ {value:g}"


def _epsilon_at(rows: Sequence[ResultRow], value: float) -> float | None:
    """Return the epsilon of the first private line at a value of the axis."""
    return next((row.epsilon for row in rows if row.value == value and row.epsilon > 0), None)


def _heat_map(experiment: Experiment, rows: Sequence[ResultRow]) -> Picture:
    """Draw the measured results as a map of the values of the axis and of the setting that distinguishes the lines."""
    figure, (axes,) = blank()
    values, names = sorted({row.value for row in rows}), list(dict.fromkeys(row.line for row in rows))
    results = np.full((len(names), len(values)), math.nan)
    for row in rows:
        results[names.index(row.line), values.index(row.value)] = math.nan if row.measured is None else row.measured
    axes.grid(visible=False)
    image = axes.pcolormesh(results, cmap="viridis")
    axes.invert_yaxis()
    with mpl.rc_context(STYLE):
        axes.set_xticks([0.5 + number for number in range(len(values))], [f"{value:g}" for value in values])
        axes.set_yticks([0.5 + number for number in range(len(names))], names)
        figure.colorbar(image, label=quantity_label(experiment))
    middle = (np.nanmin(results) + np.nanmax(results)) / 2
    for (down, across), result in np.ndenumerate(results):
        if not math.isnan(result):
            axes.text(across + 0.5, down + 0.5, f"{result:.0f}", ha="center", va="center", fontsize=6.5,
                      color="#ffffff" if result < middle else "#000000")  # fmt: skip
    axes.set_xlabel(setting_name(experiment.axis))
    caption = f"{experiment.title}: measured results."
    low, high = (format_with_unit(experiment, float(extreme)) for extreme in (np.nanmin(results), np.nanmax(results)))
    size = f"{len(names)} lines by {len(values)} values of {setting_name(experiment.axis)}"
    alt = f"{caption} A heat map of {size}, from {low} to {high}."
    return Picture("result", caption, alt, figure, experiment.unprotected)


@dataclass(frozen=True)
class Panel:
    """One part of a figure."""

    title: str
    draw: Callable[[Axes], None]
    description: str
    """What the panel shows, in words, for the alternative text."""


def _panel_figures(experiment: Experiment, rows: Sequence[ResultRow], *, apart: bool) -> list[Picture]:
    """Draw panels side by side in one figure, or each in a figure of its own at the same scale."""
    panels_over = {"epoch": _epoch_panels, "rank": _rank_panels, "plane": _plane_panels}
    about, panels = panels_over[experiment.over](experiment, rows)
    if not panels:
        return []
    figure, all_axes = blank(len(panels))
    for axes, panel in zip(all_axes, panels, strict=True):
        panel.draw(axes)
        axes.set_title(panel.title, fontsize=9, color=INK)
    _share_limits(all_axes, horizontal=experiment.over == "plane")
    if not apart or len(panels) == 1:
        legend(all_axes[0], most=4)
        caption = f"{experiment.title}. {about}"
        alt = f"{caption} {'; '.join(panel.description for panel in panels)}."
        return [Picture("result", caption, alt, figure, experiment.unprotected)]
    pictures = []
    for number, (panel, shared) in enumerate(zip(panels, all_axes, strict=True), 1):
        figure, (axes,) = blank()
        panel.draw(axes)
        axes.set(xlim=shared.get_xlim(), ylim=shared.get_ylim())
        legend(axes, most=4)
        caption = f"{panel.title[0].upper()}{panel.title[1:]}. {about}"
        alt = f"{caption} {panel.description}."
        pictures.append(Picture(f"result-{number}", caption, alt, figure, experiment.unprotected))
    return pictures


def _epoch_panels(experiment: Experiment, rows: Sequence[ResultRow]) -> tuple[str, list[Panel]]:
    """Return a panel for each value of the axis, with a curve and a band of one deviation for each line."""
    line_colours = list(colours([row.line for row in rows]).items())

    def draw(value: float, axes: Axes) -> None:
        for number, (name, colour) in enumerate(line_colours):
            for row in (row for row in rows if row.line == name and row.value == value):
                _draw_curves(axes, row, colour, MARKERS[number % len(MARKERS)])
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_ylabel(quantity_label(experiment))

    panels = []
    for value in dict.fromkeys(row.value for row in rows):
        final = [
            f"{row.line} ends at {format_with_unit(experiment, row.measured)}"
            for row in rows
            if row.value == value and row.measured is not None
        ]
        title = _value_title(experiment, rows, value)
        panels.append(Panel(title, partial(draw, value), f"{title}: {', '.join(final)}"))
    deviations = deviation_words([row.measured_std for row in rows], "bands")
    return ("One seed." if deviations == "one seed" else f"Means over seeds, {deviations}."), panels


def _draw_curves(axes: Axes, row: ResultRow, colour: str, marker: str) -> None:
    for curve in row.series:
        axes.plot(curve.at, curve.mean, color=colour, marker=marker, markersize=3.5, linewidth=1.3, label=row.line,
                  markevery=max(1, len(curve.at) // 10))  # fmt: skip
        if curve.deviation:
            low = [mean - deviation for mean, deviation in zip(curve.mean, curve.deviation, strict=True)]
            high = [mean + deviation for mean, deviation in zip(curve.mean, curve.deviation, strict=True)]
            axes.fill_between(curve.at, low, high, color=colour, alpha=0.15, linewidth=0)
    if not row.series and row.measured is not None:  # public-only has no epochs, only a final score
        axes.axhline(row.measured, color=INK, linestyle="--", linewidth=1.2, label=row.line)


def _rank_panels(experiment: Experiment, rows: Sequence[ResultRow]) -> tuple[str, list[Panel]]:
    """Return a panel for each cell, with the sorted values of each diagnostic."""

    def draw(row: ResultRow, axes: Axes) -> None:
        for number, curve in enumerate(row.series):
            smallest = max(curve.mean) * SMALLEST_SHARE
            points = [(rank, value) for rank, value in zip(curve.at, curve.mean, strict=True) if value > smallest]
            axes.plot(
                *zip(*points, strict=True),
                color=(GREY, *COLOURS[:3])[number % 4],
                linestyle=LINE_STYLES[(number - len(row.series)) % 4],
                label=f"epoch {curve.epoch:.3g}",
            )
        axes.set_xlabel("rank, largest first")
        axes.set_ylabel(quantity_label(experiment))
        axes.set_yscale("log")
        if experiment.draw.endswith("components"):
            axes.set_xscale("log")

    panels = []
    for row in (row for row in rows if row.series):
        title = _cell_title(experiment, rows, row)
        panels.append(Panel(title, partial(draw, row), f"{title}: {_decay_words(row.series[-1])}"))
    return "Sorted values, largest first, at several epochs of training.", panels


def _plane_panels(experiment: Experiment, rows: Sequence[ResultRow]) -> tuple[str, list[Panel]]:
    """Return a panel for each diagnostic of each cell, with the points of each kind."""

    def draw(kinds: Sequence[Series], axes: Axes) -> None:
        for points in kinds:
            colour, marker, label = POINT_STYLES[points.name]
            inner = "none" if points.name == "whole" else colour
            axes.scatter(points.at, points.mean, s=14, facecolors=inner, edgecolors=colour, marker=marker, alpha=0.75,
                         label=label, linewidths=0.9)  # fmt: skip
        axes.set_xlabel("random direction 1")
        axes.set_ylabel("random direction 2")

    several_cells = len([row for row in rows if row.series]) > 1
    panels = []
    for row in rows:
        for epoch in dict.fromkeys(points.epoch for points in row.series):
            kinds = [points for points in row.series if points.epoch == epoch]
            title = f"epoch {epoch:.3g}"
            if several_cells:
                title = f"{_cell_title(experiment, rows, row)}, {title}"
            radii = ", ".join(f"{_median_radius(points):.2g} {POINT_STYLES[points.name][2]}" for points in kinds)
            panels.append(Panel(title, partial(draw, kinds), f"{title}: median distance from the mean {radii}"))
    return "Each point is the gradient of one record in the run with the first seed.", panels


def _value_title(experiment: Experiment, rows: Sequence[ResultRow], value: float) -> str:
    """Return a value of the axis as a title, for a noise multiplier with its epsilon."""
    if experiment.axis != NOISE:
        return f"{setting_name(experiment.axis)} {value:g}"
    epsilon = _epsilon_at(rows, value)
    words = "" if epsilon is None else f", true epsilon {digits(epsilon, significant=2)}"
    return f"noise multiplier {value:g}{words}"


def _cell_title(experiment: Experiment, rows: Sequence[ResultRow], row: ResultRow) -> str:
    """Return the line of a row as a title, with the value of the axis if there are several."""
    several_values = len({each.value for each in rows}) > 1
    return f"{row.line}, {setting_name(experiment.axis)} {row.value:g}" if several_values else row.line


def _decay_words(curve: Series) -> str:
    """Return how fast the sorted values of the last diagnostic decay."""
    pairs = zip(curve.at, curve.mean, strict=True)
    rank = next((rank for rank, value in pairs if value <= curve.mean[0] / 10), None)
    decay = "never falls to a tenth of it" if rank is None else f"falls to a tenth of it at rank {rank:g}"
    return f"at the end the largest value is {curve.mean[0]:.2g}, and the curve {decay}"


def _share_limits(all_axes: Sequence[Axes], *, horizontal: bool) -> None:
    """Give panels the same vertical limits, and on request the same horizontal ones."""
    vertical_limits = [axes.get_ylim() for axes in all_axes]
    horizontal_limits = [axes.get_xlim() for axes in all_axes]
    for axes in all_axes:
        axes.set_ylim(min(low for low, _ in vertical_limits), max(high for _, high in vertical_limits))
        if horizontal:
            axes.set_xlim(min(low for low, _ in horizontal_limits), max(high for _, high in horizontal_limits))


def _median_radius(points: Series) -> float:
    """Return the median distance of points from their mean."""
    centre = sum(points.at) / len(points.at), sum(points.mean) / len(points.mean)
    pairs = zip(points.at, points.mean, strict=True)
    return sorted(((x - centre[0]) ** 2 + (y - centre[1]) ** 2) ** 0.5 for x, y in pairs)[len(points.at) // 2]
