"""A picture with its words: inline SVG that follows the page's colours, and PNG and SVG files."""

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
"""In a page these colours are variables, so that they can differ on a dark ground."""

SMALL = (4.7, 3.0)
"""Inches at which letters stay legible on a phone."""

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
"""What a figure of unprotected values says above its axes, wherever the figure is taken."""


@dataclass(frozen=True)
class Picture:
    """One figure, what it shows in words, and whether it shows unprotected values.

    A picture of unprotected values says so in the image itself and in the names of its files, because both travel
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
    figure: Figure
    unprotected: bool = False

    def __post_init__(self) -> None:
        if self.unprotected and self.figure.get_suptitle() != WARNING:
            label_unprotected(self.figure)

    @property
    def file(self) -> str:
        """The name of the picture's files, without their endings."""
        marked = not self.unprotected or self.name.endswith(UNPROTECTED)
        return self.name if marked else f"{self.name}-{UNPROTECTED}"

    def inline(self) -> Markup:
        """The figure as an SVG element without outside references, named for screen readers."""
        text = _svg(self.figure, self.name)
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
        text = re.sub(r'(<g|<svg|<text) id="[^"]*"', r"\1", text)
        box = re.compile(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>')
        text = box.sub(lambda found: f'<svg viewBox="{found[1]}" {self._name()}>', text, count=1)
        text = re.sub(r"font: (?:(\d+|bold) )?([\d.]+)px [^;\"<]*", _font, text)
        text = re.sub(r"font-family: [^;\"<]*;? ?", "", text)
        for colour, variable in THEMED.items():
            text = text.replace(colour, f"var({variable})")
        return Markup(text)  # our own figure; its labels are escaped by matplotlib

    def _name(self) -> str:
        return f'role="img" aria-label="{html.escape(self.alt)}"'

    def save(self, folder: Path) -> None:
        """Write the picture as PNG and SVG, under the name `file`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.figure.savefig(folder / f"{self.file}.png", dpi=160)
        (folder / f"{self.file}.svg").write_text(_svg(self.figure, self.name))


def label_unprotected(figure: Figure) -> None:
    """Write `WARNING` above everything else in a figure, and make room for it.

    >>> figure, _ = blank()
    >>> label_unprotected(figure)
    >>> figure.get_suptitle() == WARNING
    True
    """
    figure.set_figheight(figure.get_figheight() + 0.2)
    figure.suptitle(WARNING, color=RUST, fontsize=8.5, weight="bold")


def blank(columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure in the common style, and its axes.

    >>> figure, axes = blank(2)
    >>> len(axes)
    2
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SMALL[0] * columns, SMALL[1]), layout="constrained")
        axes = list(figure.subplots(1, columns, squeeze=False)[0])
    for one in axes:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(axes: Axes, most: int = 3) -> None:
    """The legend, if there is anything to tell apart; below the axes if it is long, where it hides nothing."""
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


def bars(deviations: Sequence[float | None]) -> list[float] | None:
    """Lengths of error bars; one run has no deviation, and gets no bar.

    >>> bars([0.5, None]), bars([None])
    ([0.5, nan], None)
    """
    if all(one is None for one in deviations):
        return None
    return [math.nan if one is None else one for one in deviations]


def over_seeds(deviations: Sequence[float | None], what: str = "bars") -> str:
    """What bars or bands show, for a caption.

    >>> over_seeds([0.5, 0.2]), over_seeds([None])
    ('with bars of one standard deviation over seeds', 'one seed')
    """
    if all(one is None for one in deviations):
        return "one seed"
    some = " where there are several" if any(one is None for one in deviations) else ""
    return f"with {what} of one standard deviation over seeds{some}"


def _svg(figure: Figure, salt: str) -> str:
    """The figure as a file; the same figure gives the same text, and no two pictures share an id."""
    out = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _font(found: re.Match[str]) -> str:
    weight = f"; font-weight: {found[1]}" if found[1] else ""
    return f"font-size: {found[2]}px{weight}"
