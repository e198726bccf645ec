"""Writes what was measured into docs/results.md, and the pictures of the federated study: `make figures`.

A block of the page between `<!-- measured: NAME -->` and `<!-- end -->` is made from the finished runs in
experiments/results. NAME is an experiment of `gnomon reproduce --list`, with `-fast` behind it for its short form, a
part of the federated study, or `progress`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from gnomon.studies.cells import kept_cells
from gnomon.studies.reproduce import available, read_experiment
from gnomon.studies.reproduce.result import caption, markdown
from gnomon.studies.reproduce.run import done_rows

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "experiments" / "results"
FAST = "-fast"
BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

sys.path.insert(0, str(ROOT / "experiments"))
import federated_tables  # noqa: E402

import federated  # noqa: E402  a script of that folder


def table(name: str) -> str:
    """An experiment, published and measured."""
    whole = name.removesuffix(FAST)
    experiment = read_experiment(whole) if name == whole else read_experiment(whole).shortened()
    rows = done_rows(experiment, RESULTS)
    return markdown(experiment, rows) if rows else f"Not run: `gnomon reproduce {name}`.\n"


def progress() -> str:
    """How far every experiment got."""
    lines, none = ["| `gnomon reproduce` | what it is | run so far |", "|---|---|---|"], []
    for name in available():
        experiment = read_experiment(name)
        rows = done_rows(experiment, RESULTS)
        if rows:
            lines.append(f"| `{name}` | {experiment.title} | {caption(experiment, rows)} |")
        else:
            none.append(name)
    return "\n".join([*lines, "", f"Not run at full length: {', '.join(none)}.", ""])


def federated_rows() -> list[federated_tables.Row]:
    """The federated study as far as it was run."""
    kept = kept_cells(federated.cells(federated.arguments([])), RESULTS / "federated")
    return federated_tables.rows([found for _, found in kept])


def study(part: Callable[[list[federated_tables.Row]], list[str]]) -> str:
    """A part of the federated study."""
    return "\n".join(part(federated_rows())) or "Not run: `python experiments/federated.py`.\n"


STUDIES = {
    "federated-iid": federated_tables.iid_tables,
    "federated-fair": federated_tables.fair_tables,
    "federated-skew": federated_tables.skew_tables,
    "federated-traffic": federated_tables.traffic,
}


def measured(name: str) -> str:
    """What belongs into a block."""
    if name == "progress":
        return progress()
    return study(STUDIES[name]) if name in STUDIES else table(name)


def written(page: str, but: Collection[str] = ()) -> str:
    """The page with its blocks made anew, but for some of them."""

    def block(found: re.Match[str]) -> str:
        return found[0] if found[2] in but else f"{found[1]}\n{measured(found[2]).strip()}\n\n{found[3]}"

    return BLOCK.sub(block, page)


def main() -> None:
    PAGE.write_text(written(PAGE.read_text()))
    rows = federated_rows()
    for draw in (federated_tables.iid_picture, federated_tables.fair_picture, federated_tables.skew_picture):
        if picture := draw(rows):
            picture.figure.savefig(ROOT / "docs" / "figures" / f"{picture.name}.png", dpi=160)


if __name__ == "__main__":
    main()
