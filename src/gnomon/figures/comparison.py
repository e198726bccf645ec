"""Figures of a comparison: accuracy against epsilon, and learning curves of its methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gnomon.accounting import digits
from gnomon.figures.picture import COLOURS, INK, STYLE, Picture, blank, deviation_words, error_bars, legend
from gnomon.figures.training import line_format, series


class ComparisonPoint(Protocol):
    """The results of a method at one noise level."""

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


def save_comparison(rows: Sequence[ComparisonPoint], title: str, path: Path) -> None:
    """Draw accuracy against epsilon and write the figure as PNG or SVG, by the extension of the path.

    Bands show one standard deviation over seeds; a dashed line shows the accuracy of the public records alone.

    >>> import tempfile
    >>> from types import SimpleNamespace as row
    >>> rows = [row(method="dp-sgd", noise_multiplier=s, epsilon=1 / s, mean=0.9 - s / 50, deviation=0.01)
    ...         for s in (1.0, 2.0)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_comparison(rows, "toy", Path(folder) / "a.png")
    """
    figure = Figure(figsize=(7.5, 4.4), dpi=140, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    draw_comparison(rows, axes)
    axes.set_title(title, fontsize=11)
    figure.savefig(path)


def draw_comparison(rows: Sequence[ComparisonPoint], axes: Axes) -> None:
    """Draw accuracy against epsilon on the given axes."""
    for method, colour in colours([row.method for row in rows]).items():
        points = sorted((row for row in rows if row.method == method), key=lambda row: row.epsilon)
        if points[0].noise_multiplier is None:
            axes.axhline(100 * points[0].mean, color=INK, linestyle="--", linewidth=1.2, label=f"{method}, epsilon 0")
            continue
        epsilons = [point.epsilon for point in points]
        axes.plot(epsilons, [100 * point.mean for point in points], "o-", color=colour, label=method, markersize=4)
        if (deviations := error_bars([point.deviation for point in points])) is not None:
            low = [100 * (point.mean - deviation) for point, deviation in zip(points, deviations, strict=True)]
            high = [100 * (point.mean + deviation) for point, deviation in zip(points, deviations, strict=True)]
            axes.fill_between(epsilons, low, high, color=colour, alpha=0.15, linewidth=0)
    finite = sorted({row.epsilon for row in rows if 0 < row.epsilon < float("inf")})
    if len(finite) > 1:
        axes.set_xscale("log")
    if finite:
        with mpl.rc_context(STYLE):
            axes.set_xticks(finite, [digits(value, significant=2) for value in finite])
            axes.minorticks_off()
    axes.set_xlabel("epsilon (smaller is more private)")
    axes.set_ylabel("test accuracy (%)")
    legend(axes)


def colours(methods: Sequence[str]) -> dict[str, str]:
    """Return a colour for each distinct method, in order of first appearance.

    >>> list(colours(["dp-sgd", "pdp", "dp-sgd"]))
    ['dp-sgd', 'pdp']
    """
    return dict(zip(dict.fromkeys(methods), COLOURS * (1 + len(methods)), strict=False))


def comparison_pictures(rows: Sequence[ComparisonPoint], cells: Sequence[dict[str, Any]]) -> list[Picture]:
    """Return the figures of a comparison.

    They show accuracy against epsilon and, for the highest noise level of each method, the accuracy during training and
    the norm of updates beyond the clip bound.

    Args:
        rows: the results of the comparison.
        cells: the results of its runs, with their histories.

    >>> from types import SimpleNamespace as row
    >>> rows = [row(method="dp-sgd", noise_multiplier=1.0, epsilon=1.0, mean=0.9, deviation=None)]
    >>> comparison_pictures(rows, [])[0].alt
    'Test accuracy against epsilon. dp-sgd: 90.0 % at epsilon 1.'
    """
    figure, (axes,) = blank()
    draw_comparison(rows, axes)
    alt = "Test accuracy against epsilon. " + " ".join(
        f"{method}: {_results_in_words([row for row in rows if row.method == method])}."
        for method in dict.fromkeys(row.method for row in rows)
    )
    caption = f"Accuracy against privacy, {deviation_words([row.deviation for row in rows], 'bands')}."
    method_colours = colours([row.method for row in rows])
    noisiest = _highest_noise(cells)
    curves = (
        _curves(noisiest, method_colours, "validation/accuracy", 100, "learning", "test accuracy (%)"),
        _curves(noisiest, method_colours, "unprotected/incremental/mean", 1, "norms", "norm beyond the clip bound"),
    )
    return [Picture("comparison", caption, alt, figure), *(curve for curve in curves if curve is not None)]


def _highest_noise(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of each method at the highest noise multiplier of this method."""
    noisy = [cell for cell in cells if cell.get("noise_multiplier") is not None and cell.get("history")]
    highest: dict[str, float] = {}
    for cell in noisy:
        highest[cell["label"]] = max(cell["noise_multiplier"], highest.get(cell["label"], 0.0))
    return [cell for cell in noisy if cell["noise_multiplier"] == highest[cell["label"]]]


def _results_in_words(rows: Sequence[ComparisonPoint]) -> str:
    return ", ".join(f"{100 * row.mean:.1f} % at epsilon {digits(row.epsilon, significant=2)}" for row in rows)


def _curves(
    cells: Sequence[dict[str, Any]],
    method_colours: Mapping[str, str],
    metric: str,
    scale: float,
    name: str,
    label: str,
) -> Picture | None:
    """Draw a metric against epochs, averaged over the seeds of each method; return None if no run recorded it."""
    figure, (axes,) = blank()
    descriptions = []
    for method, colour in method_colours.items():
        histories = [series(cell["history"], metric, scale) for cell in cells if cell["label"] == method]
        length = min((len(values) for _, values in histories), default=0)
        if not length:
            continue
        epochs = histories[0][0][:length]
        means = [sum(values[i] for _, values in histories) / len(histories) for i in range(length)]
        axes.plot(epochs, means, line_format(means), color=colour, label=method, markersize=3)
        descriptions.append(f"{method} ends at {means[-1]:.3g}")
    if not descriptions:
        return None
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    legend(axes)
    noises = sorted({cell["noise_multiplier"] for cell in cells})
    interval = " to ".join(dict.fromkeys(f"{noise:.3g}" for noise in (noises[0], noises[-1])))
    caption = f"{label[0].upper()}{label[1:]} during training, at the highest noise multiplier ({interval})."
    alt = f"{label} against epochs: {', '.join(descriptions)}."
    return Picture(name, caption, alt, figure, metric.startswith("unprotected/"))
