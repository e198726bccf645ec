"""Printing of a recipe: the settings that it chose, and the accuracy of its public records alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnomon.recipes import FederatedPlan, Plan


def show_plan(plan: Plan | FederatedPlan, *, quiet: bool) -> None:
    """Print the settings that a recipe chose and why, and warnings about the public records."""
    if not quiet:
        print(f"recipe {plan.recipe}, for epsilon = {plan.budget.epsilon:g} at delta = {plan.budget.delta:g}")
        for line in plan.explain().splitlines():
            print(f"  {line}")
    for warning in plan.warnings:
        print(f"gnomon: warning: {warning}", file=sys.stderr)


def public_score(folder: Path) -> str:
    """Return the accuracy of the public records alone, or no text if the run has none or no accuracy.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "public-only.json").write_text('{"public records": 100, "accuracy": 0.9}')
    ...     public_score(Path(folder))
    '90.0 % without any private record, epsilon 0 (100 public records)'
    """
    file = folder / "public-only.json"
    scores = json.loads(file.read_text()) if file.exists() else {}
    if "accuracy" not in scores:
        return ""
    accuracy = f"{100 * scores['accuracy']:.1f} % without any private record, epsilon 0"
    return f"{accuracy} ({scores['public records']} public records)"
