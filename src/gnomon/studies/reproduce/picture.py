"""The picture of a reproduction: measured lines, published marks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np

from gnomon.accounting import digits
from gnomon.figures.comparison import colours
from gnomon.figures.picture import INK, STYLE, Picture, bars, blank, legend, over_seeds
from gnomon.studies.reproduce.curves import MARKERS, curves
from gnomon.studies.reproduce.experiment import NOISE, Experiment
from gnomon.studies.reproduce.names import spoken, with_unit, words
from gnomon.studies.reproduce.result import ResultRow


def pictures(experiment: Experiment, rows: Sequence[ResultRow], *, apart: bool = False) -> list[Picture]:
    """Lines for what was measured, crosses for what was published; a map if the lines are a second axis.

    Experiments over epochs, ranks or a plane have panels, side by side or each in a picture of its own.
    """
    if experiment.over:
        return curves(experiment, rows, apart=apart)
    return [_map(experiment, rows) if experiment.heat else _lines(experiment, rows)]


def _lines(experiment: Experiment, rows: Sequence[ResultRow]) -> Picture:
    figure, (axes,) = blank()
    values = sorted({row.value for row in rows}, reverse=experiment.axis == NOISE)  # more epsilon to the right
    place = {value: number for number, value in enumerate(values)}
    said, axis = [], spoken(experiment.axis)
    for number, (name, colour) in enumerate(colours([row.line for row in rows]).items()):
        mine = sorted(
            (row for row in rows if row.line == name and row.measured is not None), key=lambda r: place[r.value]
        )
        at = [place[row.value] for row in mine]
        means = [row.measured or 0.0 for row in mine]
        lengths = bars([row.measured_std for row in mine])
        public = bool(mine) and mine[0].epsilon == 0
        shape = "" if public else MARKERS[number % len(MARKERS)]
        axes.errorbar(at, means, lengths, color=INK if public else colour, linestyle="--" if public else "-",
                      marker=shape, markersize=4, linewidth=1.3, capsize=2, label=name)  # fmt: skip
        told = [row for row in rows if row.line == name and row.published is not None]
        axes.plot([place[row.value] for row in told], [row.published or 0.0 for row in told], "x", color=colour)
        pairs = [f"{with_unit(experiment, row.measured or 0.0)} at {axis} {row.value:g}" for row in mine]
        said.append(f"{name}: {', '.join(pairs)}")
    if any(row.published is not None for row in rows):
        axes.plot([], [], "x", color=INK, label="published")
    with mpl.rc_context(STYLE):
        axes.set_xticks(range(len(values)), [_tick(experiment, rows, value) for value in values])
    axes.set_xlabel("true epsilon, and noise multiplier" if experiment.axis == NOISE else axis)
    axes.set_ylabel(words(experiment))
    legend(axes)
    theirs = " and published (crosses)" if any(row.published is not None for row in rows) else ""
    spread = over_seeds([row.measured_std for row in rows if row.measured is not None])
    caption = f"{experiment.title}: measured (lines, {spread}){theirs}."
    alt = f"{caption} {'; '.join(said)}."
    return Picture("result", caption, alt, figure, experiment.unprotected)


def _map(experiment: Experiment, rows: Sequence[ResultRow]) -> Picture:
    figure, (axes,) = blank()
    values, names = sorted({row.value for row in rows}), list(dict.fromkeys(row.line for row in rows))
    grid = np.full((len(names), len(values)), math.nan)
    for row in rows:
        grid[names.index(row.line), values.index(row.value)] = math.nan if row.measured is None else row.measured
    axes.grid(visible=False)
    image = axes.pcolormesh(grid, cmap="viridis")
    axes.invert_yaxis()
    with mpl.rc_context(STYLE):
        axes.set_xticks([0.5 + n for n in range(len(values))], [f"{value:g}" for value in values])
        axes.set_yticks([0.5 + n for n in range(len(names))], names)
        figure.colorbar(image, label=words(experiment))
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (down, across), value in np.ndenumerate(grid):
        if not math.isnan(value):
            axes.text(across + 0.5, down + 0.5, f"{value:.0f}", ha="center", va="center", fontsize=6.5,
                      color="#ffffff" if value < middle else "#000000")  # fmt: skip
    axes.set_xlabel(spoken(experiment.axis))
    caption = f"{experiment.title}, measured."
    low, high = (with_unit(experiment, float(one)) for one in (np.nanmin(grid), np.nanmax(grid)))
    size = f"{len(names)} lines by {len(values)} values of {spoken(experiment.axis)}"
    alt = f"{caption} A map of {size}, from {low} to {high}."
    return Picture("result", caption, alt, figure, experiment.unprotected)


def _tick(experiment: Experiment, rows: Sequence[ResultRow], value: float) -> str:
    if experiment.axis != NOISE:
        return f"{value:g}"
    found = next((row.epsilon for row in rows if row.value == value and row.epsilon > 0), None)
    return f"σ {value:g}" if found is None else f"{digits(found, significant=2)}\nσ {value:g}"
