"""What a page says about one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.figures.picture import Picture


@dataclass(frozen=True)
class Table:
    """A table of text that sorts by the values behind it."""

    caption: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[tuple[str, float | str], ...]]
    """Each cell: what it says, and what it sorts by."""


@dataclass(frozen=True)
class Section:
    """What the page says about one folder."""

    title: str
    slug: str
    kind: str
    pictures: list[Picture]
    command: str
    inside: list[Picture] = field(default_factory=list)
    """What diagnostics show."""
    promise: list[str] = field(default_factory=list)
    guarantee: bool | None = None
    facts: list[tuple[str, str]] = field(default_factory=list)
    terms: list[tuple[str, str]] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)
    grid: Table | None = None
    """The results as a paper prints them, lines against values."""
    table: Table | None = None
    ledger: list[tuple[str, str]] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)
    environment: list[tuple[str, str]] = field(default_factory=list)
    seeded: bool = False
    repeatable: bool = True
    """Whether a command could repeat it."""

    @property
    def drawn(self) -> list[Picture]:
        """All pictures."""
        return [*self.pictures, *self.inside]


def environment_of(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Versions and machine as terms of a table."""
    if not found:
        return []
    packages = ", ".join(f"{name} {version}" for name, version in found.get("packages", {}).items())
    return [
        ("gnomon", str(found.get("gnomon", "unknown"))),
        ("Python", str(found.get("python", "unknown"))),
        ("torch", str(found.get("torch", "unknown"))),
        ("other packages", packages or "unknown"),
        ("system", f"{found.get('system', 'unknown')}, {found.get('machine', '')}"),
        ("processors", f"{found.get('cpus', 'unknown')}, {found.get('threads', 'unknown')} threads used by torch"),
    ]
