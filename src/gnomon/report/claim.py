"""Whether a page may repeat what a run's statement claims."""

from __future__ import annotations

from gnomon.report.read import SavedRun
from gnomon.statement.consistency import contradictions

NO_CLAIM = "This page makes no claim."


def doubts(run: SavedRun) -> list[str]:
    """Why the page must not repeat what the statement claims; empty if it may.

    >>> doubts(SavedRun("a", statement={"guarantee": True, "epsilon": None}))[0].endswith(NO_CLAIM)
    True
    """
    said = []
    if wrong := contradictions(run.statement) if run.statement else []:
        said.append(f"The statement's numbers do not fit together: {'; '.join(wrong)}. {NO_CLAIM}")
    if run.statement.get("guarantee") and run.config.get("insecure-noise-seed") is not None:
        said.append(f"The statement promises privacy, but config.yaml seeds the noise. {NO_CLAIM}")
    if (beyond := _steps_beyond(run)) is not None:
        said.append(
            f"The statement covers {run.statement['steps']:,} steps, but the run has gone on to {beyond:,}. {NO_CLAIM}"
        )
    if run.changed:
        names = " and ".join(run.changed)
        said.append(f"The statement was written for another {names}: the SHA-256 differs. {NO_CLAIM}")
    return said


def _steps_beyond(run: SavedRun) -> int | None:
    """The last step that was recorded, if the statement was written before it."""
    stated, last = run.statement.get("steps"), run.history[-1].get("step") if run.history else None
    return last if isinstance(stated, int) and isinstance(last, int) and last > stated else None


def claims(run: SavedRun) -> bool:
    """Whether the run's epsilon is a promise.

    >>> claims(SavedRun("killed"))
    False
    """
    return bool(run.statement.get("guarantee")) and not doubts(run)
