"""Write the measured results into docs/results.md and into the package, and draw the figures of the federated study.

`make figures` runs this. What the recipes reached is written to src/gnomon/recipes/evidence.json, which
`gnomon recipes` shows.

The blocks of the page between `<!-- measured: NAME -->` and `<!-- end -->` are generated from the finished runs in
experiments/results. NAME is an experiment of `gnomon reproduce --list` (with the suffix `-fast` for its short form), a
part of the federated study, or `progress`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from gnomon.recipes.evidence import FILE as EVIDENCE
from gnomon.studies.cells import stored_cells
from gnomon.studies.compare import PUBLIC_START_ACCURACY
from gnomon.studies.reproduce import available, markdown, read_experiment
from gnomon.studies.reproduce.run import done_rows
from gnomon.studies.reproduce.tables import progress_sentence

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "experiments" / "results"
FAST = "-fast"
BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

sys.path.insert(0, str(ROOT / "experiments"))
import federated_tables  # noqa: E402

import federated  # noqa: E402  a script of that folder


def table(name: str) -> str:
    """Return the table of an experiment, with published and measured results."""
    experiment = read_experiment(name.removesuffix(FAST))
    if name.endswith(FAST):
        experiment = experiment.shortened()
    rows = done_rows(experiment, RESULTS)
    return markdown(experiment, rows) if rows else f"Not run: `gnomon reproduce {name}`.\n"


def progress() -> str:
    """Return the table of the finished cells and seeds of every experiment."""
    lines, not_run = ["| `gnomon reproduce` | experiment | finished |", "|---|---|---|"], []
    for name in available():
        experiment = read_experiment(name)
        rows = done_rows(experiment, RESULTS)
        if rows:
            lines.append(f"| `{name}` | {experiment.title} | {progress_sentence(experiment, rows)} |")
        else:
            not_run.append(name)
    return "\n".join([*lines, "", f"Not run at full length: {', '.join(not_run)}.", ""])


def federated_rows() -> list[federated_tables.Row]:
    """Return the rows of the finished runs of the federated study."""
    finished = stored_cells(federated.cells(federated.arguments([])), RESULTS / "federated")
    return federated_tables.rows([result for _, result in finished])


def study(part: Callable[[list[federated_tables.Row]], list[str]]) -> str:
    """Return the tables of a part of the federated study."""
    return "\n".join(part(federated_rows())) or "Not run: `python experiments/federated.py`.\n"


STUDIES = {
    "federated-iid": federated_tables.iid_tables,
    "federated-fair": federated_tables.fair_tables,
    "federated-skew": federated_tables.skew_tables,
    "federated-traffic": federated_tables.traffic,
}


def measured(name: str) -> str:
    """Return the content of a block."""
    if name == "progress":
        return progress()
    return study(STUDIES[name]) if name in STUDIES else table(name)


def written(page: str, but: Collection[str] = ()) -> str:
    """Return the page with its blocks generated again, except those named in `but`."""

    def block(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        return match[0] if name in but else f"{start}\n{measured(name).strip()}\n\n{end}"

    return BLOCK.sub(block, page)


def evidence() -> list[dict[str, object]]:
    """Return the accuracies of the recipes and of their baselines, as `gnomon.recipes.evidence` keeps them."""
    entries: list[dict[str, object]] = []
    for name in (name for name in available() if name.startswith("recipes-")):
        experiment = read_experiment(name)
        lines = {line.name: line for line in experiment.lines}
        for row in done_rows(experiment, RESULTS):
            line = lines[row.line]
            settings = experiment.settings | line.settings
            measure = experiment.measure_of(line)
            if row.measured is None or measure not in ("accuracy", PUBLIC_START_ACCURACY):
                continue
            key = "public-only" if measure == PUBLIC_START_ACCURACY else settings.get("recipe", line.method)
            entries.append(
                {
                    "experiment": name,
                    "data": settings["data"],
                    "records": settings["private-records"],
                    "epsilon": row.value,
                    "line": key,
                    "accuracy": round(row.measured / 100, 5),
                    "deviation": None if row.measured_std is None else round(row.measured_std / 100, 5),
                    "seeds": row.seeds,
                }
            )
    return entries


def main() -> None:
    EVIDENCE.write_text(json.dumps(evidence(), indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text()))
    rows = federated_rows()
    for draw in (federated_tables.iid_picture, federated_tables.fair_picture, federated_tables.skew_picture):
        if picture := draw(rows):
            picture.figure.savefig(ROOT / "docs" / "figures" / f"{picture.name}.png", dpi=160)


if __name__ == "__main__":
    main()
