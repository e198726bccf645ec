"""Tables and pictures of the federated study: measured beside published, with the number of seeds in each cell."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gnomon.accounting import digits
from gnomon.figures.comparison import colours
from gnomon.figures.picture import GREY, Picture, bars, blank, legend, over_seeds
from gnomon.studies.reproduce.names import difference, spread, three
from gnomon.studies.store import made_with, made_words

NAMES = {
    "fedavg": "FedAvg", "fedprox": "FedProx", "fedlrs": "FedLRS", "fedpdp": "FedPDP", "fedpcdp": "FedPCDP",
    "pfa": "PFA (simplified)", "scaffold": "SCAFFOLD", "moon": "MOON", "q-ffl q=1": "q-FFL",
    "fedfdp fair=0.01": "FedFDP, λ = 0.01", "fedfdp fair=0.1": "FedFDP, λ = 0.1",
}  # fmt: skip

SETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "digits": "digits"}

PUBLISHED = {
    "mnist": {
        "fedavg": ((84.70, 0.79), (63.95, 4.52), (37.45, 4.79), (26.66, 2.63)),
        "fedprox": ((84.64, 1.03), (62.80, 5.44), (36.74, 3.20), (26.56, 1.92)),
        "fedlrs": ((83.56, 1.48), (61.05, 5.70), (31.58, 1.61), (23.88, 4.47)),
        "fedpdp": ((86.73, 0.72), (83.38, 1.85), (79.98, 2.35), (75.09, 1.75)),
        "fedpcdp": ((88.96, 1.38), (87.21, 1.72), (85.58, 0.86), (83.65, 2.83)),
    },
    "fashion-mnist": {
        "fedavg": ((72.33, 0.61), (66.80, 0.74), (56.46, 2.13), (43.17, 3.82)),
        "fedprox": ((72.45, 0.72), (66.56, 1.22), (56.75, 2.08), (42.73, 4.47)),
        "fedlrs": ((72.02, 0.64), (67.55, 1.12), (56.91, 0.81), (41.32, 4.70)),
        "fedpdp": ((70.88, 0.65), (69.21, 0.50), (68.13, 0.55), (67.28, 1.26)),
        "fedpcdp": ((71.10, 0.46), (70.23, 0.55), (68.59, 0.66), (69.08, 0.66)),
    },
}
"""FedPCDP's paper: accuracy in per cent and its standard deviation over 3 runs, IID, by `SIGMAS`."""

SIGMAS = (4.0, 6.0, 8.0, 10.0)
PAPER_EPSILON = dict(zip(SIGMAS, (1.30, 0.83, 0.62, 0.50), strict=True))

FAIR_PUBLISHED = {
    "mnist": {"fedavg": ((93.40, 0.47), 1.1e11), "q-ffl": ((93.74, 1.41), 7.8e10), "fedfdp": ((95.13, 0.83), 2.3e10)},
    "fashion-mnist": {
        "fedavg": ((84.15, 1.97), 3.0e8), "q-ffl": ((83.13, 2.74), 4.2e9), "fedfdp": ((85.99, 0.76), 2.8e8),
    },
}  # fmt: skip
"""FedFDP's paper, at epsilon 3.52, as a third party quotes it: accuracy and Psi."""

COLUMNS = (
    "study", "data", "method", "sigma", "epsilon", "paper_epsilon", "seeds", "accuracy", "accuracy_std", "published",
    "published_std", "unfairness", "unfairness_std", "published_unfairness", "worst_accuracy", "bytes_down",
    "bytes_down_first", "bytes_up", "rounds", "seconds",
)  # fmt: skip

Row = dict[str, Any]


def rows(results: Sequence[dict[str, Any]]) -> list[Row]:
    """A row for each method, data set and noise level: mean and standard deviation over seeds."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in results:
        groups.setdefault((one["study"], one["data"], one["label"], one["sigma"]), []).append(one)
    return [_row(*key, group) for key, group in groups.items()]


def _row(study: str, data: str, label: str, sigma: float, group: list[dict[str, Any]]) -> Row:
    accuracy, off = _over([100 * one["accuracy"] for one in group])
    unfair, unfair_off = _over([one["unfairness"] for one in group if one["unfairness"] is not None])
    published: tuple[float | None, float | None] = (None, None)
    psi = None
    if study == "iid" and label in PUBLISHED.get(data, {}) and sigma in SIGMAS:
        published = PUBLISHED[data][label][SIGMAS.index(sigma)]
    elif study == "fair" and data in FAIR_PUBLISHED:
        published, psi = FAIR_PUBLISHED[data][label.partition(" ")[0]]
    values = (
        study, data, label, sigma, max(math.inf if one["epsilon"] is None else one["epsilon"] for one in group),
        PAPER_EPSILON.get(sigma) if study == "iid" else 3.52 if study == "fair" else None,
        len(group), accuracy, off, *published, unfair, unfair_off, psi,
        _over([100 * one["worst"] for one in group if one["worst"] is not None])[0],
        group[0]["down"], group[0]["first down"], group[0]["up"], group[0]["rounds"],
        _over([one["seconds"] for one in group])[0],
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _over(values: Sequence[float]) -> tuple[float | None, float | None]:
    off = statistics.stdev(values) if len(values) > 1 else None
    return (statistics.fmean(values) if values else None), off


def write(results: Sequence[dict[str, Any]], folder: Path) -> str:
    """Leave CSV, Markdown and pictures in a folder; the Markdown, to be shown."""
    found = rows(results)
    folder.mkdir(parents=True, exist_ok=True)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    (folder / "federated.csv").write_text(out.getvalue())
    parts = (iid_tables, fair_tables, skew_tables, traffic)
    lines = [line for part in parts for line in part(found)]
    about = "Measured in bold, [seeds] behind it, published in parentheses with measured minus published."
    about = f"{about} {made_words(made_with(results))}".rstrip()
    text = "\n".join([about, "", *lines])
    (folder / "federated.md").write_text(text + "\n")
    for picture in (iid_picture(found), fair_picture(found), skew_picture(found)):
        if picture is not None:
            picture.save(folder)
    return text


def _of(found: Sequence[Row], study: str) -> dict[str, list[Row]]:
    """The rows of a study, by data set."""
    sets: dict[str, list[Row]] = {}
    for row in found:
        if row["study"] == study:
            sets.setdefault(row["data"], []).append(row)
    return sets


def _table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines)]
    return [f"**{title}**", "", *body, ""]


def _measured(row: Row | None) -> str:
    if row is None:
        return "not run"
    theirs = ""
    if row["published"] is not None:
        apart = difference(row["accuracy"], row["published"])
        theirs = f" ({three(row['published'])}{spread(row['published_std'], row['published'])}; {apart})"
    return f"**{three(row['accuracy'])}{spread(row['accuracy_std'], row['accuracy'])}** [{row['seeds']}]{theirs}"


def iid_tables(found: Sequence[Row]) -> list[str]:
    lines = []
    for data, mine in _of(found, "iid").items():
        sigmas = sorted({row["sigma"] for row in mine})
        cells = {(row["method"], row["sigma"]): row for row in mine}
        body = [
            [NAMES.get(method, method), *(_measured(cells.get((method, sigma))) for sigma in sigmas)]
            for method in dict.fromkeys(row["method"] for row in mine)
        ]
        for name, key in (("epsilon, true", "epsilon"), ("epsilon, published", "paper_epsilon")):
            known = {row["sigma"]: row[key] for row in mine}
            body.append([name, *("" if known[sigma] is None else f"{known[sigma]:.2f}" for sigma in sigmas)])
        title = f"IID, {SETS[data]}: accuracy in %, {mine[0]['rounds']} rounds"
        lines += _table(title, ["", *(f"σ = {sigma:g}" for sigma in sigmas)], body)
    return lines


def fair_tables(found: Sequence[Row]) -> list[str]:
    lines = []
    for data, mine in _of(found, "fair").items():
        body = []
        for row in mine:
            off = "" if row["unfairness_std"] is None else f" ± {row['unfairness_std']:.2g}"
            psi = "" if row["published_unfairness"] is None else f" ({row['published_unfairness']:.1e})"
            unfair = "–" if row["unfairness"] is None else f"**{row['unfairness']:.3g}{off}**{psi}"
            worst = "–" if row["worst_accuracy"] is None else f"{row['worst_accuracy']:.1f}"
            body.append([NAMES.get(row["method"], row["method"]), _measured(row), unfair, worst])
        title = (
            f"Fairness, {SETS[data]}: Dirichlet 0.1, ε = {digits(mine[0]['epsilon'], 2)}, {mine[0]['rounds']} rounds"
        )
        lines += _table(title, ["", "accuracy, %", "variance of the clients' losses", "worst client, %"], body)
    return lines


def skew_tables(found: Sequence[Row]) -> list[str]:
    lines = []
    for data, mine in _of(found, "skew").items():
        cells = {(row["method"], row["sigma"]): row for row in mine}
        sigmas = sorted({row["sigma"] for row in mine})
        epsilon = {row["sigma"]: row["epsilon"] for row in mine}
        heads = ["no noise" if not sigma else f"σ = {sigma:g}, ε = {digits(epsilon[sigma], 2)}" for sigma in sigmas]
        body = [
            [NAMES.get(method, method), *(_measured(cells.get((method, sigma))) for sigma in sigmas)]
            for method in dict.fromkeys(row["method"] for row in mine)
        ]
        title = f"Almost one class a client, {SETS[data]}: accuracy in %, {mine[0]['rounds']} rounds"
        lines += _table(title, ["", *heads], body)
    return lines


def traffic(found: Sequence[Row]) -> list[str]:
    """Bytes of a client and round, beside FedAvg's."""
    for study in ("skew", "iid", "fair"):
        for data, mine in _of(found, study).items():
            whole = next((row for row in mine if row["method"] == "fedavg"), None)
            if whole is None:
                continue
            each = {row["method"]: row for row in reversed(mine)}
            body = [
                [NAMES.get(method, method), f"{row['bytes_down']:,.0f}", f"{row['bytes_down_first']:,.0f}",
                 f"{row['bytes_up']:,.0f}", f"{row['bytes_up'] / whole['bytes_up']:.3g}"]
                for method, row in reversed(each.items())
            ]  # fmt: skip
            heads = ["", "down", "down, first time", "up", "up, in units of FedAvg's"]
            return _table(f"Bytes of a client and round, {SETS[data]}", heads, body)
    return []


def iid_picture(found: Sequence[Row]) -> Picture | None:
    """Accuracy against the noise multiplier; published values dashed."""
    sets = _of(found, "iid")
    if not sets:
        return None
    figure, axes = blank(len(sets))
    shades = colours([row["method"] for mine in sets.values() for row in mine])
    for panel, (data, mine) in zip(axes, sets.items(), strict=True):
        for method in dict.fromkeys(row["method"] for row in mine):
            line = sorted((row for row in mine if row["method"] == method), key=lambda row: row["sigma"])
            sigmas, shade = [row["sigma"] for row in line], shades[method]
            off = bars([row["accuracy_std"] for row in line])
            panel.errorbar(
                sigmas, [row["accuracy"] for row in line], off, color=shade, marker="o", markersize=4, capsize=2,
                label=NAMES.get(method, method) if panel is axes[0] else None,
            )  # fmt: skip
            known = [row for row in line if row["published"] is not None]
            panel.plot([row["sigma"] for row in known], [row["published"] for row in known], "--", color=shade, lw=1)
        panel.set_title(SETS[data], fontsize=10)
        panel.set_xticks(sorted({row["sigma"] for row in mine}))
        panel.set_xlabel("noise multiplier σ")
    axes[0].plot([], [], "--", color=GREY, lw=1, label="published")
    axes[0].set_ylabel("test accuracy (%)")
    legend(axes[0])
    spreads = [row["accuracy_std"] for mine in sets.values() for row in mine]
    caption = f"IID clients: measured ({over_seeds(spreads)}) and published (dashed)."
    return Picture("federated-iid", caption, caption, figure)


def skew_picture(found: Sequence[Row]) -> Picture | None:
    """Accuracy of each method with and without noise."""
    sets = _of(found, "skew")
    if not sets:
        return None
    figure, axes = blank(len(sets))
    shades = colours(["noise", "no noise"])
    for panel, (data, mine) in zip(axes, sets.items(), strict=True):
        methods = list(dict.fromkeys(row["method"] for row in mine))
        for shift, (name, noisy) in zip((-0.2, 0.2), (("no noise", False), ("noise", True)), strict=True):
            group = [row for row in mine if bool(row["sigma"]) == noisy]
            label = name if not noisy or not group else f"σ = {group[0]['sigma']:g}"
            panel.bar(
                [methods.index(row["method"]) + shift for row in group], [row["accuracy"] for row in group], 0.38,
                yerr=bars([row["accuracy_std"] for row in group]), capsize=2, color=shades[name],
                label=label if panel is axes[0] else None,
            )  # fmt: skip
        panel.set_xticks(range(len(methods)), [NAMES.get(m, m) for m in methods], rotation=45, ha="right", fontsize=8)
        panel.set_title(SETS[data], fontsize=10)
        panel.set_ylim(0, 100)
    axes[0].set_ylabel("test accuracy (%)")
    legend(axes[0], most=1)
    spreads = [row["accuracy_std"] for mine in sets.values() for row in mine]
    caption = f"Almost one class a client, with and without noise, {over_seeds(spreads)}."
    return Picture("federated-skew", caption, caption, figure)


def fair_picture(found: Sequence[Row]) -> Picture | None:
    """Unfairness against accuracy: down and right is better."""
    sets = _of(found, "fair")
    if not sets:
        return None
    figure, axes = blank(len(sets))
    shades = colours([row["method"] for mine in sets.values() for row in mine])
    for panel, (data, mine) in zip(axes, sets.items(), strict=True):
        for row in mine:
            panel.errorbar(
                row["accuracy"], row["unfairness"], row["unfairness_std"], row["accuracy_std"], "o", capsize=2,
                color=shades[row["method"]],
                label=NAMES.get(row["method"], row["method"]) if panel is axes[0] else None,
            )  # fmt: skip
        panel.set_ylim(bottom=0)
        panel.set_title(SETS[data], fontsize=10)
        panel.set_xlabel("accuracy (%)")
    axes[0].set_ylabel("variance of the clients' losses")
    legend(axes[0])
    caption = "Accuracy and unfairness; right and down is better."
    return Picture("federated-fair", caption, caption, figure)
