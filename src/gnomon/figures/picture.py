"""Figures with captions and alternative texts, written as PNG and SVG files or as SVG inside a page."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, BLUE, RUST, GREY = "#1f2933", "#1f6feb", "#b5482a", "#7b8794"
COLOURS = (BLUE, RUST, "#2f9e44", "#9c36b5", "#e8930c", "#0b7285", "#5c677d")

THEMED = {INK: "--ink", GREY: "--grey"} | {colour: f"--c{n}" for n, colour in enumerate(COLOURS, 1)}
"""The CSS variables that replace colours in a page, so that they can differ on a dark background."""

SMALL = (4.7, 3.0)
"""The size of a panel in inches, at which text stays legible on a phone."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 9.5,
}


UNPROTECTED = "unprotected"
WARNING = f"{UNPROTECTED}: computed from private records without noise"
"""The text above the axes of every figure that shows unprotected values."""


@dataclass(frozen=True)
class Picture:
    """A figure with a name, a caption and an alternative text.

    A figure of unprotected values says so in the image itself and in the names of its files, because both may be copied
    without the page that explains them.

    >>> picture = Picture("budget", "Epsilon", "Epsilon rises to 1.", Figure(figsize=SMALL))
    >>> 'role="img" aria-label="Epsilon rises to 1."' in picture.inline()
    True
    >>> private = Picture("cloud", "Gradients", "Gradients in a plane.", Figure(figsize=SMALL), unprotected=True)
    >>> private.file, WARNING in private.inline()
    ('cloud-unprotected', True)
    """

    name: str
    caption: str
    alt: str
    """The text that screen readers read in place of the image."""
    figure: Figure
    unprotected: bool = False
    """Whether the figure shows values that were computed on private records without noise."""

    def __post_init__(self) -> None:
        if self.unprotected and self.figure.get_suptitle() != WARNING:
            label_unprotected(self.figure)

    @property
    def file(self) -> str:
        """The name of the image files, without extension."""
        complete = not self.unprotected or self.name.endswith(UNPROTECTED)
        return self.name if complete else f"{self.name}-{UNPROTECTED}"

    def inline(self) -> Markup:
        """Return the figure as an SVG element for a page: no external references, and a label for screen readers."""
        text = _svg(self.figure, self.name)
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
        text = re.sub(r'(<g|<svg|<text) id="[^"]*"', r"\1", text)
        box = re.compile(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>')
        label = f'role="img" aria-label="{html.escape(self.alt)}"'
        text = box.sub(lambda match: f'<svg viewBox="{match[1]}" {label}>', text, count=1)
        text = re.sub(r"font: (?:(\d+|bold) )?([\d.]+)px [^;\"<]*", _font, text)
        text = re.sub(r"font-family: [^;\"<]*;? ?", "", text)
        for colour, variable in THEMED.items():
            text = text.replace(colour, f"var({variable})")
        return Markup(text)  # matplotlib escapes the labels of the figure

    def save(self, folder: Path) -> None:
        """Write the figure as PNG and SVG into a folder, under the name `file`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.figure.savefig(folder / f"{self.file}.png", dpi=160)
        (folder / f"{self.file}.svg").write_text(_svg(self.figure, self.name))


def label_unprotected(figure: Figure) -> None:
    """Add `WARNING` at the top of a figure, and make room for it.

    >>> figure, _ = blank()
    >>> label_unprotected(figure)
    >>> figure.get_suptitle() == WARNING
    True
    """
    figure.set_figheight(figure.get_figheight() + 0.2)
    figure.suptitle(WARNING, color=RUST, fontsize=8.5, weight="bold")


def blank(columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure in the common style, and the axes of its columns.

    >>> figure, axes = blank(2)
    >>> len(axes)
    2
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SMALL[0] * columns, SMALL[1]), layout="constrained")
        axes = list(figure.subplots(1, columns, squeeze=False)[0])
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(axes: Axes, most: int = 3) -> None:
    """Add a legend if the axes have labels. With more than `most` entries it is below the axes and hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure()
    with mpl.rc_context(STYLE):
        if len(handles) <= most or not isinstance(figure, Figure):
            if handles:
                axes.legend(frameon=False, fontsize=8)
            return
        columns = 1 if max(map(len, labels)) > 30 else 2
        figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(len(handles) / columns))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def error_bars(deviations: Sequence[float | None]) -> list[float] | None:
    """Return the lengths of error bars: NaN where a deviation is missing, and None if all are missing.

    >>> error_bars([0.5, None]), error_bars([None])
    ([0.5, nan], None)
    """
    if all(deviation is None for deviation in deviations):
        return None
    return [math.nan if deviation is None else deviation for deviation in deviations]


def deviation_words(deviations: Sequence[float | None], marks: str = "error bars") -> str:
    """Return the part of a caption that explains error bars or bands.

    >>> deviation_words([0.5, 0.2]), deviation_words([None])
    ('with error bars of one standard deviation over seeds', 'one seed')
    """
    if all(deviation is None for deviation in deviations):
        return "one seed"
    some = " where there are several" if any(deviation is None for deviation in deviations) else ""
    return f"with {marks} of one standard deviation over seeds{some}"


def _svg(figure: Figure, salt: str) -> str:
    """Return the figure as SVG. The output is deterministic, and figures with different salts share no id."""
    out = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _font(match: re.Match[str]) -> str:
    """Replace a CSS font by its size and weight, so that the page chooses the family."""
    weight = f"; font-weight: {match[1]}" if match[1] else ""
    return f"font-size: {match[2]}px{weight}"
