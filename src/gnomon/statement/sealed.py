"""The files of a run folder that a statement is bound to by their SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path

SEALED = ("model.safetensors", "config.yaml")
"""Whose hashes a statement carries."""


def fingerprints(path: Path) -> dict[str, str]:
    """The SHA-256 of model and config, as far as they are in a folder.

    >>> import tempfile
    >>> from gnomon.files import write_whole
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_whole(Path(place) / "config.yaml", b"data: digits")
    ...     {name: mark[:8] for name, mark in fingerprints(Path(place)).items()}
    {'config.yaml': '53cd71a4'}
    """
    found = [path / name for name in SEALED if (path / name).is_file()]
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in found}
