"""Figures of the diagnostics that `gnomon.diagnose` records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from gnomon.figures.picture import BLUE, COLOURS, GREY, RUST, Picture, blank, legend

Records = Sequence[dict[str, Any]]
GREEN = COLOURS[2]
ENERGY = "unprotected/energy"
SOURCES = {"unprotected": "private gradients", "public": "public gradients"}
"""The prefixes of diagnostics, and the gradients from which they are computed."""


class PlotLine(NamedTuple):
    """A curve over epochs: which diagnostic to draw, and how."""

    key: str
    label: str
    colour: str
    style: str = "-"
    value: Callable[[Any], float] = float
    """Turns the recorded value into the number to draw."""


def diagnostic_pictures(records: Records) -> list[Picture]:
    """Return figures of spectra, subspaces, norms, clipping bias and noise, as far as they were recorded.

    >>> [picture.name for picture in diagnostic_pictures([{"epoch": 0.0, "public/spectrum": [2.0, 1.0]}])]
    ['spectrum-public']
    """
    records = sorted(records, key=lambda record: record["epoch"])
    pictures = [
        *(_spectrum(records, source) for source in SOURCES),
        _components(records),
        _subspace(records),
        _angles(records),
        _norms(records),
        _bias(records),
        _noise(records),
        _cloud(records),
    ]
    return [picture for picture in pictures if picture is not None]


def _with(records: Records, key: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get(key) not in (None, [])]


def _median(quantiles: Sequence[float]) -> float:
    """Return the middle one of sorted values."""
    return quantiles[len(quantiles) // 2]


def _over_time(records: Records, lines: Sequence[PlotLine], name: str, caption: str, ylabel: str) -> Picture | None:
    """Draw curves over epochs; curves without values are left out, and a figure without curves is None."""
    figure, (axes,) = blank()
    descriptions, unprotected = [], False
    for line in lines:
        recorded = _with(records, line.key)
        if not recorded:
            continue
        values = [line.value(record[line.key]) for record in recorded]
        axes.plot([record["epoch"] for record in recorded], values, line.style, color=line.colour, label=line.label,
                  marker="o", markersize=3)  # fmt: skip
        descriptions.append(f"{line.label} from {values[0]:.3g} to {values[-1]:.3g}")
        unprotected = unprotected or line.key.startswith("unprotected/")
    if not descriptions:
        return None
    axes.set_xlabel("epoch")
    axes.set_ylabel(ylabel)
    legend(axes)
    return Picture(name, caption, f"{caption} {'; '.join(descriptions)}.", figure, unprotected)


def _spectrum(records: Records, source: str) -> Picture | None:
    key = f"{source}/spectrum"
    recorded = _with(records, key)
    if not recorded:
        return None
    figure, (axes,) = blank()
    shown = [recorded[number] for number in sorted({0, len(recorded) // 2, len(recorded) - 1})]
    for colour, record in zip((GREY, BLUE, RUST), shown, strict=False):
        values = [value for value in record[key] if value > 0]
        axes.plot(range(1, len(values) + 1), values, color=colour, label=f"epoch {record['epoch']:.3g}")
    axes.set_yscale("log")
    axes.set_xlabel("rank of the eigenvalue")
    axes.set_ylabel("eigenvalue")
    legend(axes)
    gap = recorded[-1].get(f"{source}/gap")
    rank = recorded[-1].get(f"{source}/gap/rank")
    position = "at the chosen rank" if rank is None else f"after the first {rank}"
    gap_words = "" if gap is None else f" Eigengap {position} at the end: {gap:.2g} of the largest eigenvalue."
    caption = f"Eigenvalues of the second moment of {SOURCES[source]}.{gap_words}"
    first, last = recorded[0][key], recorded[-1][key]
    alt = (
        f"{caption} The largest changes from {first[0]:.3g} to {last[0]:.3g}; the smallest shown is {last[-1]:.2g} at "
        "the end."
    )
    return Picture(f"spectrum-{source}", caption, alt, figure, source == "unprotected")


def _components(records: Records) -> Picture | None:
    source = next((prefix for prefix in SOURCES if _with(records, f"{prefix}/components")), None)
    if source is None:
        return None
    key = f"{source}/components"
    recorded = _with(records, key)
    figure, (axes,) = blank()
    for colour, record in zip((GREY, RUST), (recorded[0], recorded[-1])[: len(recorded)], strict=False):
        points = [(rank, value) for rank, value in record[key] if value > 0]
        axes.plot(*zip(*points, strict=True), color=colour, label=f"epoch {record['epoch']:.3g}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rank of the component")
    axes.set_ylabel("magnitude")
    legend(axes)
    caption = f"Components of the mean of {SOURCES[source]}, sorted by magnitude."
    last = recorded[-1][key]
    alt = f"{caption} The largest of {last[-1][0]} components is {last[0][1]:.2g} at the end."
    return Picture("components", caption, alt, figure, source == "unprotected")


SUBSPACES = {
    "method": ("private gradients", RUST, "the method's public subspace"),
    "diagnosis": ("private gradients, no projection yet", GREEN, "the subspace of the public records"),
    "": ("private gradients", RUST, "the public subspace"),
}
"""The subspaces in which the energy of private gradients is measured: label of the curve, colour, and description."""


def _subspace(records: Records) -> Picture | None:
    kinds = _kinds(records)
    records = [record | {f"{ENERGY}/in {record.get(f'{ENERGY}/of', '')}": record.get(ENERGY)} for record in records]
    lines = (
        *(
            PlotLine(
                f"{ENERGY}/in {kind}",
                SUBSPACES[kind][0] if len(kinds) > 1 else "private gradients",
                SUBSPACES[kind][1],
                value=_median,
            )
            for kind in kinds
        ),
        PlotLine("public/energy", "held-out public gradients", BLUE, value=_median),
        PlotLine("public/skew/frobenius", "skew between halves of the public records", GREY, "--"),
    )
    picture = _over_time(records, lines, "subspace", _energy_caption(records), "share (0 to 1)")
    if picture is not None:
        picture.figure.axes[0].set_ylim(0, 1.02)
    return picture


def _kinds(records: Records) -> dict[str, dict[str, Any]]:
    """Return the subspaces in which the energy of private gradients was measured, each with its last record."""
    return {record.get(f"{ENERGY}/of", ""): record for record in _with(records, ENERGY)}


def _energy_caption(records: Records) -> str:
    """Return the caption of the figure of energies, with the subspace of each curve."""
    kinds = _kinds(records)
    curves = [
        f"private gradients in {SUBSPACES[kind][2]}{_rank(last, 'unprotected')}"
        + (" until projection starts" if kind == "diagnosis" and len(kinds) > 1 else "")
        for kind, last in kinds.items()
    ]
    if public := _with(records, "public/energy"):
        rank = _rank(public[-1], "public")
        curves.append(f"held-out public gradients in the subspace of the other half of the public records{rank}")
    skew = "Skew: distance between the subspaces of two halves of the public records."
    if not curves:
        return skew
    energy = f"Share of the gradients' energy inside public subspaces (median): {', and '.join(curves)}."
    return f"{energy} {skew}" if _with(records, "public/skew/frobenius") else energy


def _rank(record: dict[str, Any], source: str) -> str:
    rank = record.get(f"{source}/energy/rank")
    return "" if rank is None else f" (rank {rank})"


def _angles(records: Records) -> Picture | None:
    lines = (
        PlotLine("public/drift", "since the last record, median", BLUE, value=_median),
        PlotLine("public/drift", "since the last record, largest", BLUE, "--", max),
        PlotLine("public/angles", "between halves, median", GREY, value=_median),
    )
    caption = "Principal angles of the public subspace: over time, and between two halves of the public records."
    picture = _over_time(records, lines, "angles", caption, "angle (degrees)")
    if picture is not None:
        picture.figure.axes[0].set_ylim(0, 92)
    return picture


def _norms(records: Records) -> Picture | None:
    source = next((prefix for prefix in SOURCES if _with(records, f"{prefix}/norms")), None)
    if source is None:
        return None
    figure, (axes,) = blank()
    descriptions = []
    for key, label, colour in (("norms", "not projected", BLUE), ("norms_projected", "projected", RUST)):
        recorded = _with(records, f"{source}/{key}")
        if recorded:
            _draw_quantiles(axes, recorded, f"{source}/{key}", label, colour)
            descriptions.append(f"{label}: median {_median(recorded[-1][f'{source}/{key}']):.3g} at the end")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel("norm of an update")
    legend(axes)
    caption = f"Norms of {SOURCES[source]} before and after projection: median, quartiles, and 5 % to 95 % quantiles."
    return Picture("lengths", caption, f"{caption} {'; '.join(descriptions)}.", figure, source == "unprotected")


def _draw_quantiles(axes: Axes, records: Records, key: str, label: str, colour: str) -> None:
    """Draw the median with bands from the 25 % to the 75 % and from the 5 % to the 95 % quantile."""
    epochs = [record["epoch"] for record in records]
    columns = list(zip(*(record[key] for record in records), strict=True))
    axes.plot(epochs, columns[2], color=colour, label=label, marker="o", markersize=3)
    axes.fill_between(epochs, columns[1], columns[3], color=colour, alpha=0.2, linewidth=0)
    axes.fill_between(epochs, columns[0], columns[4], color=colour, alpha=0.1, linewidth=0)


def _bias(records: Records) -> Picture | None:
    source = next((prefix for prefix in SOURCES if _with(records, f"{prefix}/bias/cosine")), "public")
    lines = (
        PlotLine(f"{source}/bias/cosine", "cosine with the true mean", BLUE),
        PlotLine(f"{source}/bias/ratio", "norm relative to the true mean", RUST),
        PlotLine(f"{source}/clipped", "share of updates clipped", GREY, "--"),
    )
    effects = {
        "unprotected": "Effect of clipping and projection on the mean of private gradients",
        "public": "Effect of clipping, without projection, on the mean gradient of held-out public records",
    }
    caption = f"{effects[source]}: direction and norm."
    return _over_time(records, lines, "bias", caption, "ratio")


def _noise(records: Records) -> Picture | None:
    lines = (PlotLine("unprotected/signal_to_noise", "signal over noise", GREEN),)
    caption = "Norm of the clipped sum relative to the expected norm of its noise, at single steps."
    return _over_time(records, lines, "signal-to-noise", caption, "ratio")


def _cloud(records: Records) -> Picture | None:
    source = next((prefix for prefix in SOURCES if _with(records, f"{prefix}/cloud")), None)
    if source is None:
        return None
    record = _with(records, f"{source}/cloud")[-1]
    figure, (axes,) = blank()
    kinds = (("whole", BLUE, "not projected"), ("projected", RUST, "projected"))
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
