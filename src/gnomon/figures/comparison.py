"""Accuracy against epsilon, several methods in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gnomon.accounting import digits
from gnomon.figures.picture import COLOURS, INK, STYLE, Picture, bars, blank, legend, over_seeds
from gnomon.figures.training import dots, series


class ComparisonPoint(Protocol):
    """A method at one noise level."""

    @property
    def method(self) -> str: ...
    @property
    def noise_multiplier(self) -> float | None: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def mean(self) -> float: ...
    @property
    def deviation(self) -> float | None: ...


def comparison(rows: Sequence[ComparisonPoint], title: str, path: Path) -> None:
    """Lines, with bands of one standard deviation over seeds; what public records alone give is a dashed line.

    >>> import tempfile
    >>> from types import SimpleNamespace as row
    >>> rows = [row(method="dp-sgd", noise_multiplier=s, epsilon=1 / s, mean=0.9 - s / 50, deviation=0.01)
    ...         for s in (1.0, 2.0)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     comparison(rows, "toy", Path(folder) / "a.png")
    """
    figure = Figure(figsize=(7.5, 4.4), dpi=140, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    draw(rows, axes)
    axes.set_title(title, fontsize=11)
    figure.savefig(path)


def draw(rows: Sequence[ComparisonPoint], axes: Axes) -> None:
    """Accuracy against epsilon on given axes."""
    for method, colour in colours([row.method for row in rows]).items():
        mine = sorted((row for row in rows if row.method == method), key=lambda row: row.epsilon)
        if mine[0].noise_multiplier is None:
            axes.axhline(100 * mine[0].mean, color=INK, linestyle="--", linewidth=1.2, label=f"{method}, epsilon 0")
            continue
        epsilons = [row.epsilon for row in mine]
        means = [100 * row.mean for row in mine]
        axes.plot(epsilons, means, "o-", color=colour, label=method, markersize=4)
        if (spread := bars([row.deviation for row in mine])) is not None:
            low = [100 * (row.mean - off) for row, off in zip(mine, spread, strict=True)]
            high = [100 * (row.mean + off) for row, off in zip(mine, spread, strict=True)]
            axes.fill_between(epsilons, low, high, color=colour, alpha=0.15, linewidth=0)
    finite = sorted({row.epsilon for row in rows if 0 < row.epsilon < float("inf")})
    if len(finite) > 1:
        axes.set_xscale("log")
    if finite:
        with mpl.rc_context(STYLE):
            axes.set_xticks(finite, [digits(value, significant=2) for value in finite])
            axes.minorticks_off()
    axes.set_xlabel("epsilon (less is more private)")
    axes.set_ylabel("test accuracy (%)")
    legend(axes)


def colours(methods: Sequence[str]) -> dict[str, str]:
    """A colour for each method, in the order in which they come.

    >>> list(colours(["dp-sgd", "pdp", "dp-sgd"]))
    ['dp-sgd', 'pdp']
    """
    return dict(zip(dict.fromkeys(methods), COLOURS * (1 + len(methods)), strict=False))


def comparison_pictures(rows: Sequence[ComparisonPoint], cells: Sequence[dict[str, Any]]) -> list[Picture]:
    """Accuracy against epsilon, then learning curves and what clipping cut off at the most private level.

    >>> from types import SimpleNamespace as row
    >>> rows = [row(method="dp-sgd", noise_multiplier=1.0, epsilon=1.0, mean=0.9, deviation=None)]
    >>> comparison_pictures(rows, [])[0].alt
    'Test accuracy against epsilon. dp-sgd: 90.0 % at epsilon 1.'
    """
    figure, (axes,) = blank()
    draw(rows, axes)
    alt = "Test accuracy against epsilon. " + " ".join(
        f"{method}: {_spoken([row for row in rows if row.method == method])}."
        for method in dict.fromkeys(row.method for row in rows)
    )
    caption = f"Accuracy against privacy, {over_seeds([row.deviation for row in rows], 'bands')}."
    made = [Picture("comparison", caption, alt, figure)]
    shades = colours([row.method for row in rows])
    loudest = _loudest(cells)
    curves = (
        _curves(loudest, shades, "validation/accuracy", 100, "learning", "test accuracy (%)"),
        _curves(loudest, shades, "unprotected/incremental/mean", 1, "norms", "length beyond the clip bound"),
    )
    return [*made, *(one for one in curves if one is not None)]


def _loudest(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of each method at its highest noise, which need not be that of the others."""
    told = [cell for cell in cells if cell.get("noise_multiplier") is not None and cell.get("history")]
    most: dict[str, float] = {}
    for cell in told:
        most[cell["label"]] = max(cell["noise_multiplier"], most.get(cell["label"], 0.0))
    return [cell for cell in told if cell["noise_multiplier"] == most[cell["label"]]]


def _spoken(rows: Sequence[ComparisonPoint]) -> str:
    return ", ".join(f"{100 * row.mean:.1f} % at epsilon {digits(row.epsilon, significant=2)}" for row in rows)


def _curves(
    cells: Sequence[dict[str, Any]], shades: Mapping[str, str], key: str, scale: float, name: str, label: str
) -> Picture | None:
    """A metric against epochs, the mean over seeds for each method."""
    figure, (axes,) = blank()
    said = []
    for method, colour in shades.items():
        found = [series(cell["history"], key, scale) for cell in cells if cell["label"] == method]
        length = min((len(values) for _, values in found), default=0)
        if not length:
            continue
        epochs = found[0][0][:length]
        means = [sum(values[i] for _, values in found) / len(found) for i in range(length)]
        axes.plot(epochs, means, dots(means), color=colour, label=method, markersize=3)
        said.append(f"{method} ends at {means[-1]:.3g}")
    if not said:
        return None
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    legend(axes)
    noises = sorted({cell["noise_multiplier"] for cell in cells})
    span = " to ".join(dict.fromkeys(f"{noise:.3g}" for noise in (noises[0], noises[-1])))
    caption = f"{label[0].upper()}{label[1:]} while training, at the highest noise (multiplier {span})."
    raw = key.startswith("unprotected/")
    return Picture(name, caption, f"{label} against epochs: {', '.join(said)}.", figure, raw)
