"""Tables and figures of the federated study: measured and published results, with the number of seeds of each cell."""

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
from gnomon.figures.picture import GREY, Picture, blank, deviation_words, error_bars, legend
from gnomon.studies.reproduce.formatting import format_deviation, format_difference, format_number
from gnomon.studies.store import package_versions, versions_sentence

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
"""Results of the FedPCDP paper on IID clients: accuracy in per cent and its standard deviation over 3 runs, in the
order of `SIGMAS`."""

SIGMAS = (4.0, 6.0, 8.0, 10.0)
PAPER_EPSILON = dict(zip(SIGMAS, (1.30, 0.83, 0.62, 0.50), strict=True))

FAIR_PUBLISHED = {
    "mnist": {"fedavg": ((93.40, 0.47), 1.1e11), "q-ffl": ((93.74, 1.41), 7.8e10), "fedfdp": ((95.13, 0.83), 2.3e10)},
    "fashion-mnist": {
        "fedavg": ((84.15, 1.97), 3.0e8), "q-ffl": ((83.13, 2.74), 4.2e9), "fedfdp": ((85.99, 0.76), 2.8e8),
    },
}  # fmt: skip
"""Results of the FedFDP paper at epsilon 3.52, as quoted by a third party: accuracy with its deviation, and Psi."""

COLUMNS = (
    "study", "data", "method", "sigma", "epsilon", "paper_epsilon", "seeds", "accuracy", "accuracy_std", "published",
    "published_std", "unfairness", "unfairness_std", "published_unfairness", "worst_accuracy", "bytes_down",
    "bytes_down_first", "bytes_up", "rounds", "seconds",
)  # fmt: skip

Row = dict[str, Any]


def rows(results: Sequence[dict[str, Any]]) -> list[Row]:
    """Return a row for each method, data set and noise level, with means and standard deviations over seeds."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        key = (result["study"], result["data"], result["label"], result["sigma"])
        groups.setdefault(key, []).append(result)
    return [_row(*key, group) for key, group in groups.items()]


def _row(study: str, data: str, label: str, sigma: float, group: list[dict[str, Any]]) -> Row:
    accuracy, accuracy_std = _mean_and_deviation([100 * run["accuracy"] for run in group])
    unfairness, unfairness_std = _mean_and_deviation(
        [run["unfairness"] for run in group if run["unfairness"] is not None]
    )
    worst, _ = _mean_and_deviation([100 * run["worst"] for run in group if run["worst"] is not None])
    seconds, _ = _mean_and_deviation([run["seconds"] for run in group])
    published: tuple[float | None, float | None] = (None, None)
    psi = None
    if study == "iid" and label in PUBLISHED.get(data, {}) and sigma in SIGMAS:
        published = PUBLISHED[data][label][SIGMAS.index(sigma)]
    elif study == "fair" and data in FAIR_PUBLISHED:
        published, psi = FAIR_PUBLISHED[data][label.partition(" ")[0]]
    values = (
        study, data, label, sigma, max(math.inf if run["epsilon"] is None else run["epsilon"] for run in group),
        PAPER_EPSILON.get(sigma) if study == "iid" else 3.52 if study == "fair" else None,
        len(group), accuracy, accuracy_std, *published, unfairness, unfairness_std, psi, worst,
        group[0]["down"], group[0]["first down"], group[0]["up"], group[0]["rounds"], seconds,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return (statistics.fmean(values) if values else None), deviation


def write(results: Sequence[dict[str, Any]], folder: Path) -> str:
    """Write CSV, Markdown and figures into a folder; return the Markdown."""
    all_rows = rows(results)
    folder.mkdir(parents=True, exist_ok=True)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(all_rows)
    (folder / "federated.csv").write_text(out.getvalue())
    parts = (iid_tables, fair_tables, skew_tables, traffic)
    lines = [line for part in parts for line in part(all_rows)]
    about = (
        "Measured results are bold, with the number of seeds in brackets; published results and the difference "
        "(measured minus published) are in parentheses."
    )
    about = f"{about} {versions_sentence(package_versions(results))}".rstrip()
    text = "\n".join([about, "", *lines])
    (folder / "federated.md").write_text(text + "\n")
    for picture in (iid_picture(all_rows), fair_picture(all_rows), skew_picture(all_rows)):
        if picture is not None:
            picture.save(folder)
    return text


def _by_data_set(all_rows: Sequence[Row], study: str) -> dict[str, list[Row]]:
    """Return the rows of a study, by data set."""
    groups: dict[str, list[Row]] = {}
    for row in all_rows:
        if row["study"] == study:
            groups.setdefault(row["data"], []).append(row)
    return groups


def _table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines)]
    return [f"**{title}**", "", *body, ""]


def _measured(row: Row | None) -> str:
    if row is None:
        return "not run"
    accuracy, published = row["accuracy"], row["published"]
    text = f"**{format_number(accuracy)}{format_deviation(row['accuracy_std'], accuracy)}** [{row['seeds']}]"
    if published is not None:
        text += f" ({format_number(published)}{format_deviation(row['published_std'], published)}"
        text += f"; {format_difference(accuracy, published)})"
    return text


def iid_tables(all_rows: Sequence[Row]) -> list[str]:
    lines = []
    for data, data_rows in _by_data_set(all_rows, "iid").items():
        sigmas = sorted({row["sigma"] for row in data_rows})
        cells = {(row["method"], row["sigma"]): row for row in data_rows}
        body = [
            [NAMES.get(method, method), *(_measured(cells.get((method, sigma))) for sigma in sigmas)]
            for method in dict.fromkeys(row["method"] for row in data_rows)
        ]
        for name, key in (("true epsilon", "epsilon"), ("published epsilon", "paper_epsilon")):
            known = {row["sigma"]: row[key] for row in data_rows}
            body.append([name, *("" if known[sigma] is None else f"{known[sigma]:.2f}" for sigma in sigmas)])
        title = f"IID, {SETS[data]}: accuracy in %, {data_rows[0]['rounds']} rounds"
        lines += _table(title, ["", *(f"σ = {sigma:g}" for sigma in sigmas)], body)
    return lines


def fair_tables(all_rows: Sequence[Row]) -> list[str]:
    lines = []
    for data, data_rows in _by_data_set(all_rows, "fair").items():
        body = []
        for row in data_rows:
            deviation = "" if row["unfairness_std"] is None else f" ± {row['unfairness_std']:.2g}"
            psi = "" if row["published_unfairness"] is None else f" ({row['published_unfairness']:.1e})"
            unfairness = "–" if row["unfairness"] is None else f"**{row['unfairness']:.3g}{deviation}**{psi}"
            worst = "–" if row["worst_accuracy"] is None else f"{row['worst_accuracy']:.1f}"
            body.append([NAMES.get(row["method"], row["method"]), _measured(row), unfairness, worst])
        epsilon, rounds = digits(data_rows[0]["epsilon"], 2), data_rows[0]["rounds"]
        title = f"Fairness, {SETS[data]}: Dirichlet 0.1, ε = {epsilon}, {rounds} rounds"
        lines += _table(title, ["", "accuracy, %", "variance of the clients' losses", "worst client, %"], body)
    return lines


def skew_tables(all_rows: Sequence[Row]) -> list[str]:
    lines = []
    for data, data_rows in _by_data_set(all_rows, "skew").items():
        cells = {(row["method"], row["sigma"]): row for row in data_rows}
        sigmas = sorted({row["sigma"] for row in data_rows})
        epsilon = {row["sigma"]: row["epsilon"] for row in data_rows}
        heads = ["no noise" if not sigma else f"σ = {sigma:g}, ε = {digits(epsilon[sigma], 2)}" for sigma in sigmas]
        body = [
            [NAMES.get(method, method), *(_measured(cells.get((method, sigma))) for sigma in sigmas)]
            for method in dict.fromkeys(row["method"] for row in data_rows)
        ]
        title = f"About one class per client, {SETS[data]}: accuracy in %, {data_rows[0]['rounds']} rounds"
        lines += _table(title, ["", *heads], body)
    return lines


def traffic(all_rows: Sequence[Row]) -> list[str]:
    """Return the table of the bytes that one client receives and sends in a round, relative to FedAvg."""
    for study in ("skew", "iid", "fair"):
        for data, data_rows in _by_data_set(all_rows, study).items():
            whole = next((row for row in data_rows if row["method"] == "fedavg"), None)
            if whole is None:
                continue
            each = {row["method"]: row for row in reversed(data_rows)}
            body = [
                [NAMES.get(method, method), f"{row['bytes_down']:,.0f}", f"{row['bytes_down_first']:,.0f}",
                 f"{row['bytes_up']:,.0f}", f"{row['bytes_up'] / whole['bytes_up']:.3g}"]
                for method, row in reversed(each.items())
            ]  # fmt: skip
            heads = ["", "received", "received, first round", "sent", "sent, relative to FedAvg"]
            return _table(f"Bytes per client and round, {SETS[data]}", heads, body)
    return []


def iid_picture(all_rows: Sequence[Row]) -> Picture | None:
    """Draw accuracy against the noise multiplier, with published results as dashed lines."""
    data_sets = _by_data_set(all_rows, "iid")
    if not data_sets:
        return None
    figure, axes = blank(len(data_sets))
    shades = colours([row["method"] for data_rows in data_sets.values() for row in data_rows])
    for panel, (data, data_rows) in zip(axes, data_sets.items(), strict=True):
        for method in dict.fromkeys(row["method"] for row in data_rows):
            line = sorted((row for row in data_rows if row["method"] == method), key=lambda row: row["sigma"])
            sigmas, shade = [row["sigma"] for row in line], shades[method]
            bar_lengths = error_bars([row["accuracy_std"] for row in line])
            panel.errorbar(
                sigmas, [row["accuracy"] for row in line], bar_lengths, color=shade, marker="o", markersize=4,
                capsize=2, label=NAMES.get(method, method) if panel is axes[0] else None,
            )  # fmt: skip
            known = [row for row in line if row["published"] is not None]
            panel.plot([row["sigma"] for row in known], [row["published"] for row in known], "--", color=shade, lw=1)
        panel.set_title(SETS[data], fontsize=10)
        panel.set_xticks(sorted({row["sigma"] for row in data_rows}))
        panel.set_xlabel("noise multiplier σ")
    axes[0].plot([], [], "--", color=GREY, lw=1, label="published")
    axes[0].set_ylabel("test accuracy (%)")
    legend(axes[0])
    deviations = [row["accuracy_std"] for data_rows in data_sets.values() for row in data_rows]
    caption = f"IID clients: measured results ({deviation_words(deviations)}) and published results (dashed)."
    return Picture("federated-iid", caption, caption, figure)


def skew_picture(all_rows: Sequence[Row]) -> Picture | None:
    """Draw the accuracy of each method with and without noise."""
    data_sets = _by_data_set(all_rows, "skew")
    if not data_sets:
        return None
    figure, axes = blank(len(data_sets))
    shades = colours(["noise", "no noise"])
    for panel, (data, data_rows) in zip(axes, data_sets.items(), strict=True):
        methods = list(dict.fromkeys(row["method"] for row in data_rows))
        for shift, (name, noisy) in zip((-0.2, 0.2), (("no noise", False), ("noise", True)), strict=True):
            group = [row for row in data_rows if bool(row["sigma"]) == noisy]
            label = name if not noisy or not group else f"σ = {group[0]['sigma']:g}"
            panel.bar(
                [methods.index(row["method"]) + shift for row in group], [row["accuracy"] for row in group], 0.38,
                yerr=error_bars([row["accuracy_std"] for row in group]), capsize=2, color=shades[name],
                label=label if panel is axes[0] else None,
            )  # fmt: skip
        panel.set_xticks(range(len(methods)), [NAMES.get(m, m) for m in methods], rotation=45, ha="right", fontsize=8)
        panel.set_title(SETS[data], fontsize=10)
        panel.set_ylim(0, 100)
    axes[0].set_ylabel("test accuracy (%)")
    legend(axes[0], most=1)
    deviations = [row["accuracy_std"] for data_rows in data_sets.values() for row in data_rows]
    caption = f"About one class per client, with and without noise, {deviation_words(deviations)}."
    return Picture("federated-skew", caption, caption, figure)


def fair_picture(all_rows: Sequence[Row]) -> Picture | None:
    """Draw unfairness against accuracy."""
    data_sets = _by_data_set(all_rows, "fair")
    if not data_sets:
        return None
    figure, axes = blank(len(data_sets))
    shades = colours([row["method"] for data_rows in data_sets.values() for row in data_rows])
    for panel, (data, data_rows) in zip(axes, data_sets.items(), strict=True):
        for row in data_rows:
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
    caption = "Accuracy and unfairness: higher accuracy and lower variance are better."
    return Picture("federated-fair", caption, caption, figure)
