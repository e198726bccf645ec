"""The content of the page about one folder, independent of its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.figures.picture import Picture

Cell = tuple[str, float | str]
"""The text of a table cell, and the value by which it is sorted."""


@dataclass(frozen=True)
class Table:
    """A sortable table."""

    caption: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


@dataclass(frozen=True)
class Section:
    """Everything that the page says about one folder."""

    title: str
    slug: str
    """The name of the folder."""
    kind: str
    """`run`, `comparison` or `reproduction`."""
    pictures: list[Picture]
    command: str
    """The command that repeats the run; empty if it is not known."""
    diagnostics: list[Picture] = field(default_factory=list)
    """The figures of diagnostics."""
    promise: list[str] = field(default_factory=list)
    """The paragraphs about the privacy guarantee, or about the study."""
    guarantee: bool | None = None
    """Whether the page repeats the privacy claim of the run."""
    facts: list[tuple[str, str]] = field(default_factory=list)
    terms: list[tuple[str, str]] = field(default_factory=list)
    """The entries of the privacy statement."""
    caveats: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)
    grid: Table | None = None
    """The results as a paper prints them: a row per line and a column per value."""
    table: Table | None = None
    """All results, one per row."""
    ledger: list[tuple[str, str]] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)
    environment: list[tuple[str, str]] = field(default_factory=list)
    seeded: bool = False
    """Whether noise and sampling were seeded."""
    repeatable: bool = True
    """Whether a single command can repeat the run."""

    @property
    def all_pictures(self) -> list[Picture]:
        """The figures of the results and of the diagnostics."""
        return [*self.pictures, *self.diagnostics]


def environment_terms(environment: dict[str, Any]) -> list[tuple[str, str]]:
    """Return package versions and the machine of a run as rows of a table."""
    if not environment:
        return []
    packages = ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items())
    threads = f"{environment.get('threads', 'unknown')} threads used by torch"
    return [
        ("gnomon", str(environment.get("gnomon", "unknown"))),
        ("Python", str(environment.get("python", "unknown"))),
        ("torch", str(environment.get("torch", "unknown"))),
        ("other packages", packages or "unknown"),
        ("system", f"{environment.get('system', 'unknown')}, {environment.get('machine', '')}"),
        ("processors", f"{environment.get('cpus', 'unknown')}, {threads}"),
    ]
