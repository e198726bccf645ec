"""Accuracy against epsilon, several methods in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from matplotlib.figure import Figure

COLOURS = ("#1f6feb", "#b5482a", "#2f9e44", "#9c36b5", "#e8930c", "#0b7285", "#5c677d")


class Result(Protocol):
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
    def deviation(self) -> float: ...


def comparison(rows: Sequence[Result], title: str, path: Path) -> None:
    """Lines with bands of one standard deviation; what public records alone give is a dashed line.

    >>> import tempfile
    >>> from types import SimpleNamespace as row
    >>> rows = [row(method="dp-sgd", noise_multiplier=s, epsilon=1 / s, mean=0.9 - s / 50, deviation=0.01)
    ...         for s in (1.0, 2.0)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     comparison(rows, "toy", Path(folder) / "a.png")
    """
    figure = Figure(figsize=(7.5, 4.4), dpi=140, layout="constrained")
    axes = figure.subplots()
    for colour, method in zip(COLOURS * 9, dict.fromkeys(row.method for row in rows), strict=False):
        mine = sorted((row for row in rows if row.method == method), key=lambda row: row.epsilon)
        if mine[0].noise_multiplier is None:
            axes.axhline(
                100 * mine[0].mean, color="#1f2933", linestyle="--", linewidth=1.2, label=f"{method}, epsilon 0"
            )
            continue
        epsilons = [row.epsilon for row in mine]
        means = [100 * row.mean for row in mine]
        axes.plot(epsilons, means, "o-", color=colour, label=method, markersize=4)
        low = [100 * (row.mean - row.deviation) for row in mine]
        high = [100 * (row.mean + row.deviation) for row in mine]
        axes.fill_between(epsilons, low, high, color=colour, alpha=0.15, linewidth=0)
    finite = sorted({row.epsilon for row in rows if 0 < row.epsilon < float("inf")})
    if len(finite) > 1:
        axes.set_xscale("log")
    if finite:
        axes.set_xticks(finite, [f"{value:.2g}" for value in finite])
        axes.minorticks_off()
    axes.set_xlabel("epsilon (less is more private)")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(title, fontsize=11)
    figure.savefig(path)
