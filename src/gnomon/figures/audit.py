"""The figure of an audit: scores with and without a record, and lower bounds on epsilon beside the claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from gnomon.accounting import digits
from gnomon.audit.findings import Scores
from gnomon.audit.report import Report
from gnomon.figures.picture import BLUE, GREY, INK, RUST

TITLES = {"E": "one record, releases with and without it", "K": "many canaries, each in every release"}
"""The title of the histogram of each attack that has scores."""


def audit_scores(report: Report, path: Path) -> None:
    """Draw histograms of the scores with the claimed distribution, and the lower bounds on epsilon.

    >>> import tempfile, torch
    >>> from gnomon.accounting import Poisson
    >>> from gnomon.audit import Claim
    >>> report = Report(Claim(1.4147, Poisson(0.01), 1000, 1e-5), 0.999, (), ())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     audit_scores(report, Path(folder) / "audit.png")
    ...     (Path(folder) / "audit.png").stat().st_size > 1000
    True
    """
    scored = dict(report.scores or {})
    figure = Figure(figsize=(4.2 * (len(scored) + 1), 3.6), dpi=130, layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(scored) + 1))
    for axes, (attack, scores) in zip(panels, scored.items(), strict=False):
        _draw_histograms(axes, scores, report.claim.noise_multiplier)
        if axes is panels[0]:
            axes.legend(frameon=False, fontsize=8, loc="upper left")
        axes.set_title(f"{attack}: {TITLES[attack]}", fontsize=9, color=INK)
    _draw_bounds(panels[-1], report)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(report.sentence(), fontsize=11, color=INK if report.ok else RUST)
    figure.savefig(path)


def _draw_histograms(axes: Axes, scores: Scores, sigma: float) -> None:
    both = np.concatenate([scores.inside.numpy(), scores.outside.numpy()])
    low, high = float(both.min()), float(both.max())
    width = max(high - low, 1e-9)
    count = min(40, max(10, int(len(both) ** 0.5)))
    bins = np.linspace(low - 0.02 * width, high + 0.02 * width, count + 1)
    grid = np.linspace(bins[0], bins[-1], 400)
    for values, centre, colour, name in (
        (scores.outside.numpy(), 0.0, BLUE, "without"),
        (scores.inside.numpy(), 1.0, RUST, "with"),
    ):
        axes.hist(values, bins.tolist(), density=True, color=colour, alpha=0.35, label=name)
        axes.plot(grid, stats.norm.pdf(grid, centre, sigma), color=colour, linewidth=1.3)
    axes.set_ylim(0, 1.35 * axes.get_ylim()[1])  # room for the legend
    axes.set_xlabel("score along the record, in units of C")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    # In units of C the record moves the score by at most 1, which the noise of standard deviation sigma has to hide.
    axes.plot([], [], color=GREY, label=f"claimed distribution, sigma = {sigma:.3g}")


def _draw_bounds(axes: Axes, report: Report) -> None:
    claimed = report.claim.epsilon
    rows = [(bound.name, bound.epsilon) for bound in report.bounds]
    if report.run is not None:
        rows.append(("whole run", report.run.epsilon))
    names, values = [name for name, _ in rows], [value for _, value in rows]
    finite = [value for value in [*values, claimed] if np.isfinite(value)]
    widest = 1.25 * max([*finite, 1e-9])
    for position, value in enumerate(values):
        colour = RUST if value > claimed else BLUE
        axes.barh(position, min(value, widest), color=colour, alpha=0.6, height=0.6)
        text = digits(value, 2, lower=True)
        alignment = "right" if value > 0.25 * widest else "left"
        axes.text(min(value, widest), position, f" {text} ", va="center", ha=alignment, fontsize=8, color=INK)
    axes.axvline(claimed, color=INK, linestyle="--", linewidth=1.2)
    axes.text(claimed, -0.7, f"claimed {digits(claimed, 2)} ", ha="right", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -1.0)
    axes.set_xlim(0, widest)
    axes.set_xlabel("epsilon")
    axes.set_title("lower bounds on epsilon", fontsize=9, color=INK)
