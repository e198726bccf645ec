"""Pictures of what `gnomon.diagnose` recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from gnomon.figures.picture import BLUE, COLOURS, GREY, RUST, Picture, blank, legend

Records = Sequence[dict[str, Any]]
GREEN = COLOURS[2]
ENERGY = "unprotected/energy"
SOURCES = {"unprotected": "private gradients", "public": "public gradients"}


class PlotLine(NamedTuple):
    """A value of every record, drawn against epochs."""

    key: str
    label: str
    colour: str
    style: str = "-"
    value: Callable[[Any], float] = float


def diagnostic_pictures(records: Records) -> list[Picture]:
    """Spectra, subspaces, norms, clipping bias and noise, as far as they were recorded.

    >>> [one.name for one in diagnostic_pictures([{"epoch": 0.0, "public/spectrum": [2.0, 1.0]}])]
    ['spectrum-public']
    """
    records = sorted(records, key=lambda record: record["epoch"])
    made = [
        *(_spectrum(records, source) for source in SOURCES),
        _components(records),
        _subspace(records),
        _angles(records),
        _norms(records),
        _bias(records),
        _noise(records),
        _cloud(records),
    ]
    return [picture for picture in made if picture is not None]


def _with(records: Records, key: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get(key) not in (None, [])]


def _middle(values: Sequence[float]) -> float:
    return values[len(values) // 2]


def _over_time(records: Records, lines: Sequence[PlotLine], name: str, caption: str, ylabel: str) -> Picture | None:
    """Lines against epochs in one picture; lines without values are left out."""
    figure, (axes,) = blank()
    said, raw = [], False
    for line in lines:
        mine = _with(records, line.key)
        if not mine:
            continue
        values = [line.value(record[line.key]) for record in mine]
        axes.plot([record["epoch"] for record in mine], values, line.style, color=line.colour, label=line.label,
                  marker="o", markersize=3)  # fmt: skip
        said.append(f"{line.label} from {values[0]:.3g} to {values[-1]:.3g}")
        raw = raw or line.key.startswith("unprotected/")
    if not said:
        return None
    axes.set_xlabel("epoch")
    axes.set_ylabel(ylabel)
    legend(axes)
    return Picture(name, caption, f"{caption} {'; '.join(said)}.", figure, raw)


def _spectrum(records: Records, source: str) -> Picture | None:
    key = f"{source}/spectrum"
    mine = _with(records, key)
    if not mine:
        return None
    figure, (axes,) = blank()
    chosen = list({id(one): one for one in (mine[0], mine[len(mine) // 2], mine[-1])}.values())
    for colour, record in zip((GREY, BLUE, RUST), chosen, strict=False):
        values = [value for value in record[key] if value > 0]
        axes.plot(range(1, len(values) + 1), values, color=colour, label=f"epoch {record['epoch']:.3g}")
    axes.set_yscale("log")
    axes.set_xlabel("rank of the eigenvalue")
    axes.set_ylabel("eigenvalue")
    legend(axes)
    gap = mine[-1].get(f"{source}/gap")
    rank = mine[-1].get(f"{source}/gap/rank")
    behind = "at the chosen rank" if rank is None else f"behind the first {rank}"
    told = "" if gap is None else f" Eigen-gap {behind} at the end: {gap:.2g} of the largest."
    caption = f"Eigenvalues of the second moment of {SOURCES[source]}.{told}"
    first, last = mine[0][key], mine[-1][key]
    alt = (
        f"{caption} The largest goes from {first[0]:.3g} to {last[0]:.3g}; the last shown is {last[-1]:.2g} at the end."
    )
    return Picture(f"spectrum-{source}", caption, alt, figure, source == "unprotected")


def _components(records: Records) -> Picture | None:
    source = next((one for one in SOURCES if _with(records, f"{one}/components")), None)
    if source is None:
        return None
    key = f"{source}/components"
    mine = _with(records, key)
    figure, (axes,) = blank()
    for colour, record in zip((GREY, RUST), (mine[0], mine[-1])[: len(mine)], strict=False):
        points = [(rank, value) for rank, value in record[key] if value > 0]
        axes.plot(*zip(*points, strict=True), color=colour, label=f"epoch {record['epoch']:.3g}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rank of the component")
    axes.set_ylabel("magnitude")
    legend(axes)
    caption = f"Components of the mean of {SOURCES[source]}, sorted by magnitude."
    alt = f"{caption} The largest is {mine[-1][key][0][1]:.2g} at the end, of {mine[-1][key][-1][0]} components."
    return Picture("components", caption, alt, figure, source == "unprotected")


SUBSPACES = {
    "method": ("private gradients", RUST, "the method's public subspace"),
    "diagnosis": ("private gradients, no projection yet", GREEN, "the subspace of the public records"),
    "": ("private gradients", RUST, "the public subspace"),
}
"""Where the energy of private gradients was looked for: a line, its colour, and the place in words."""


def _subspace(records: Records) -> Picture | None:
    kinds = _kinds(records)
    records = [one | {f"{ENERGY}/in {one.get(f'{ENERGY}/of', '')}": one.get(ENERGY)} for one in records]
    lines = (
        *(
            PlotLine(
                f"{ENERGY}/in {kind}",
                SUBSPACES[kind][0] if len(kinds) > 1 else "private gradients",
                SUBSPACES[kind][1],
                value=_middle,
            )
            for kind in kinds
        ),
        PlotLine("public/energy", "held-out public gradients", BLUE, value=_middle),
        PlotLine("public/skew/frobenius", "skew between halves of the public records", GREY, "--"),
    )
    picture = _over_time(records, lines, "subspace", _of_energy(records), "share (0 to 1)")
    if picture is not None:
        picture.figure.axes[0].set_ylim(0, 1.02)
    return picture


def _kinds(records: Records) -> dict[str, dict[str, Any]]:
    """In which subspaces private energy was measured, each with its last record."""
    return {record.get(f"{ENERGY}/of", ""): record for record in _with(records, ENERGY)}


def _of_energy(records: Records) -> str:
    """What the lines about energy show, in which subspace each."""
    kinds = _kinds(records)
    said = [
        f"private gradients in {SUBSPACES[kind][2]}{_rank(last, 'unprotected')}"
        + (" until projection starts" if kind == "diagnosis" and len(kinds) > 1 else "")
        for kind, last in kinds.items()
    ]
    if public := _with(records, "public/energy"):
        half = "that" if said else "the subspace"
        said.append(f"held-out public gradients in {half} of the other half{_rank(public[-1], 'public')}")
    halves = "How far the subspaces of two halves of the public records differ."
    if not said:
        return halves
    shares = f"Share of gradients' energy inside public subspaces (median): {', and '.join(said)}."
    return f"{shares} {halves}" if _with(records, "public/skew/frobenius") else shares


def _rank(record: dict[str, Any], source: str) -> str:
    rank = record.get(f"{source}/energy/rank")
    return "" if rank is None else f" (rank {rank})"


def _angles(records: Records) -> Picture | None:
    lines = (
        PlotLine("public/drift", "since the last look, median", BLUE, value=_middle),
        PlotLine("public/drift", "since the last look, largest", BLUE, "--", max),
        PlotLine("public/angles", "between halves, median", GREY, value=_middle),
    )
    caption = "Principal angles of the public subspace: over time, and between two halves of the public records."
    picture = _over_time(records, lines, "angles", caption, "angle (degrees)")
    if picture is not None:
        picture.figure.axes[0].set_ylim(0, 92)
    return picture


def _norms(records: Records) -> Picture | None:
    source = next((one for one in SOURCES if _with(records, f"{one}/norms")), None)
    if source is None:
        return None
    figure, (axes,) = blank()
    said = []
    for key, label, colour in (("norms", "whole", BLUE), ("norms_projected", "projected", RUST)):
        mine = _with(records, f"{source}/{key}")
        if mine:
            _band(axes, mine, f"{source}/{key}", label, colour)
            said.append(f"{label}: median {_middle(mine[-1][f'{source}/{key}']):.3g} at the end")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel("norm of an update")
    legend(axes)
    caption = f"Norms of {SOURCES[source]} before and after projection: median, middle half, and 5 to 95 %."
    return Picture("lengths", caption, f"{caption} {'; '.join(said)}.", figure, source == "unprotected")


def _band(axes: Axes, records: Records, key: str, label: str, colour: str) -> None:
    epochs = [record["epoch"] for record in records]
    columns = list(zip(*(record[key] for record in records), strict=True))
    axes.plot(epochs, columns[2], color=colour, label=label, marker="o", markersize=3)
    axes.fill_between(epochs, columns[1], columns[3], color=colour, alpha=0.2, linewidth=0)
    axes.fill_between(epochs, columns[0], columns[4], color=colour, alpha=0.1, linewidth=0)


def _bias(records: Records) -> Picture | None:
    source = next((one for one in SOURCES if _with(records, f"{one}/bias/cosine")), "public")
    lines = (
        PlotLine(f"{source}/bias/cosine", "cosine with the true mean", BLUE),
        PlotLine(f"{source}/bias/ratio", "length over the true mean's", RUST),
        PlotLine(f"{source}/clipped", "share of updates clipped", GREY, "--"),
    )
    whose = {
        "unprotected": "What clipping and projection do to the mean of private gradients",
        "public": "What clipping does to the mean of gradients of held-out public records, clipped as they are, "
        "without projection",
    }
    caption = f"{whose[source]}: its direction and its length."
    return _over_time(records, lines, "bias", caption, "ratio")


def _noise(records: Records) -> Picture | None:
    lines = (PlotLine("unprotected/signal_to_noise", "signal over noise", GREEN),)
    caption = "Length of the clipped sum over the expected length of its noise, step by step."
    return _over_time(records, lines, "signal-to-noise", caption, "ratio")


def _cloud(records: Records) -> Picture | None:
    source = next((one for one in SOURCES if _with(records, f"{one}/cloud")), None)
    if source is None:
        return None
    record = _with(records, f"{source}/cloud")[-1]
    figure, (axes,) = blank()
    kinds = (("whole", BLUE, "as they are"), ("projected", RUST, "projected"))
    for key, colour, label in kinds:
        points = record[f"{source}/cloud"].get(key)
        if points:
            across, up = zip(*points, strict=True)
            axes.scatter(across, up, s=9, color=colour, alpha=0.6, label=label, linewidths=0)
    axes.set_xlabel("random direction 1")
    axes.set_ylabel("random direction 2")
    legend(axes)
    count = len(record[f"{source}/cloud"]["whole"])
    caption = f"{count} {SOURCES[source]} in a random plane, at epoch {record['epoch']:.3g}."
    return Picture("cloud", caption, f"{caption} Each point is one record.", figure, source == "unprotected")
