"""The folder of a run, in which every file is written completely or not at all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError
from gnomon.files import write_atomic

FILES = (
    "config.yaml", "environment.json", "metrics.jsonl", "model.safetensors", "model.json", "feature-map.safetensors",
    "public.safetensors", "statement.txt", "statement.json", "curve.png", "diagnostics.jsonl", "diagnosis.json",
    "audit.txt", "audit.json", "audit.png", "public-only.json", "report.html",
)  # fmt: skip
"""Files that a run, its diagnostics, its audit or its report writes."""

PICTURES = ("*.png", "*.svg")
"""Name patterns of the figures of a report."""

FOLDERS = {"tensorboard": ("events.out.tfevents.*",), "report-figures": PICTURES}
"""Folders that a run or a report writes, with the name patterns of its files in them."""

TRAINING_RUN = "a training run"

MARKER_FILES = {
    "reproduction.json": "a reproduction",
    "comparison.csv": "a comparison",
    "bytes.md": "a federation",
    "metrics.jsonl": TRAINING_RUN,
    "statement.json": TRAINING_RUN,
    "config.yaml": TRAINING_RUN,
}
"""Files that identify the kind of run in a folder, the most specific first."""


def kind_of_run(folder: Path) -> str:
    """Return the kind of run that a folder holds, in words; an empty string if it holds none.

    >>> kind_of_run(Path("nowhere"))
    ''
    """
    return next((kind for name, kind in MARKER_FILES.items() if (folder / name).exists()), "")


def runs_inside(folder: Path) -> str:
    """Return the folders of runs in a folder as a list to read; an empty string if there are none.

    >>> runs_inside(Path("nowhere"))
    ''
    """
    if not folder.is_dir():
        return ""
    runs = [str(path) for path in sorted(folder.iterdir()) if path.is_dir() and kind_of_run(path)]
    return ", ".join(runs[:10]) + (f" and {len(runs) - 10} more" if len(runs) > 10 else "")


@contextmanager
def claimed(name: str, place: Path = Path("runs")) -> Iterator[Path]:
    """Create a new folder named after the current time, which no other process uses, and yield its path.

    If an error leaves the folder empty, it is removed again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, claimed("digits", Path(place)) as first:
    ...     with claimed("digits", Path(place)) as second:
    ...         first != second, first.is_dir()
    (True, True)
    """
    start = place / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        path = start if number == 1 else start.with_name(f"{start.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise SettingError("out", str(path), f"a folder that can be written ({error.strerror})") from None
        break
    try:
        yield path
    except BaseException:
        with suppress(OSError):
            path.rmdir()
        raise


class RunFolder:
    """The folder of a run: a new one, or with `again` that of a run that is resumed.

    Args:
        path: the folder; it is created if it does not exist.
        overwrite: whether to remove the files of an earlier run. Files of other origin stay.
        again: whether to use the folder as it is, to resume the run in it.

    Raises:
        SettingError: the folder holds an earlier run and `overwrite` is not set, or it cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = RunFolder(Path(place) / "run")
    ...     folder.write("note.txt", b"hello")
    ...     (folder.path / "note.txt").read_text()
    'hello'
    """

    def __init__(self, path: Path, overwrite: bool = False, *, again: bool = False) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise SettingError("out", str(path), "a folder, not a file")
        if again:
            return
        if path.is_dir() and any(path.iterdir()) and not overwrite:
            raise SettingError("out", str(path), "an empty or new folder, or --overwrite to replace the run in it")
        try:
            path.mkdir(parents=True, exist_ok=True)
            if overwrite:
                _clear(path)
        except OSError as error:
            raise SettingError("out", str(path), f"a folder that can be written ({error.strerror})") from None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, replacing an existing one atomically."""
        write_atomic(self.path / name, content)

    def append(self, name: str, line: str) -> None:
        """Append a line to a file."""
        with (self.path / name).open("a") as file:
            file.write(line + "\n")

    def history(self) -> list[dict[str, Any]]:
        """Return the metrics written so far. A last line that a kill truncated is removed from the file."""
        try:
            lines = (self.path / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        records: list[dict[str, Any]] = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                self.write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
                break
        return records


def _clear(path: Path) -> None:
    """Remove the files of an earlier run; all other files stay."""
    for old in [*(path / name for name in FILES), *path.glob("checkpoint*"), *path.glob(".*.partial")]:
        old.unlink(missing_ok=True)
    for name, patterns in FOLDERS.items():
        clear_folder(path / name, patterns)


def clear_folder(folder: Path, patterns: Sequence[str]) -> None:
    """Remove the files that match the patterns, and the folder if it is then empty.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("old.png", "note.txt"):
    ...         write_atomic(Path(place) / name, b"")
    ...     clear_folder(Path(place), PICTURES)
    ...     [path.name for path in Path(place).iterdir()]
    ['note.txt']
    """
    for old in [path for pattern in patterns for path in folder.glob(pattern)]:
        old.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
