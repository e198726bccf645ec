"""The command `gnomon recipes`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gnomon.text import counted

if TYPE_CHECKING:
    from gnomon.recipes.evidence import Evidence


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "recipes",
        help="list the recipes with what was measured",
        description="List the recipes, which choose every setting from the budget and public facts, with the results "
        "that were measured. Train with one: gnomon train --recipe best --target-epsilon 1",
    )
    parser.set_defaults(run=_recipes)


def _recipes(args: argparse.Namespace) -> int:
    from gnomon.features import MAPS
    from gnomon.recipes import RECIPES
    from gnomon.recipes.evidence import evidence

    print("recipes")
    for name, summary in RECIPES.items():
        print(f"  {name:<10} {summary}")
    print("\nfeature maps")
    for name, entry in MAPS.items():
        print(f"  {name:<10} {entry.summary}")
    print("\nmeasured: mean test accuracy at the true epsilon")
    for line in measured(evidence()):
        print(f"  {line}".rstrip())
    print("\nSettings are formulas of rho = records / (noise of one release); docs/recipes.md has them.")
    return 0


def measured(entries: Sequence[Evidence]) -> list[str]:
    """Return a table of results with a row for each line on each data set, and a column for each epsilon.

    >>> from gnomon.recipes.evidence import Evidence
    >>> entries = [Evidence("recipes-mnist", "mnist", 10_000, 0.38, line, 0.969, 0.001, 5) for line in ("best", "cold")]
    >>> print("\\n".join(measured(entries)))
    mnist, 10000 records, 5 seeds (gnomon reproduce recipes-mnist)
                           0.38
      best         96.9 ± 0.1 %
      cold         96.9 ± 0.1 %
    """
    lines: list[str] = []
    for study in dict.fromkeys((entry.experiment, entry.data) for entry in entries):
        own = [entry for entry in entries if (entry.experiment, entry.data) == study]
        seeds = sorted({entry.seeds for entry in own})
        count = counted(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        lines.append(f"{own[0].data}, {own[0].records} records, {count} (gnomon reproduce {own[0].experiment})")
        epsilons = sorted({entry.epsilon for entry in own})
        lines.append(" " * 13 + "".join(f"{epsilon:>14g}" for epsilon in epsilons))
        for name in dict.fromkeys(entry.line for entry in own):
            results = {entry.epsilon: entry.text() for entry in own if entry.line == name}
            lines.append(f"  {name:<11}" + "".join(f"{results.get(epsilon, '-'):>14}" for epsilon in epsilons))
    return lines
