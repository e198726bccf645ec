"""The folder of a run: each file enters it whole or not at all."""

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
    "config.yaml", "environment.json", "metrics.jsonl", "model.safetensors", "statement.txt", "statement.json",
    "curve.png", "diagnostics.jsonl", "diagnosis.json", "audit.txt", "audit.json", "audit.png", "public-only.json",
    "report.html",
)  # fmt: skip
"""What a run, a look inside it, an audit or a report leaves."""

PICTURES = ("*.png", "*.svg")
"""What pictures of a page are called."""

FOLDERS = {"tensorboard": ("events.out.tfevents.*",), "report-figures": PICTURES}
"""The same in folders: their names, and the files in them that are ours."""


@contextmanager
def claimed(stem: str, place: Path = Path("runs")) -> Iterator[Path]:
    """A new folder named after the time, for this process alone; taken away again if an error leaves it empty.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as where, claimed("digits", Path(where)) as one:
    ...     with claimed("digits", Path(where)) as other:
    ...         one != other, one.is_dir()
    (True, True)
    """
    start = place / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
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
    """A new folder for a run, or, with `again`, that of a run which goes on.

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
            raise SettingError("out", str(path), "a folder: this is a file")
        if again:
            return
        if path.is_dir() and any(path.iterdir()) and not overwrite:
            raise SettingError("out", str(path), "an empty or new folder, or --overwrite to replace that run")
        try:
            path.mkdir(parents=True, exist_ok=True)
            if overwrite:
                _clear(path)
        except OSError as error:
            raise SettingError("out", str(path), f"a folder that can be written ({error.strerror})") from None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file by a complete new one."""
        write_atomic(self.path / name, content)

    def append(self, name: str, line: str) -> None:
        with (self.path / name).open("a") as file:
            file.write(line + "\n")

    def history(self) -> list[dict[str, Any]]:
        """The metrics so far. A line that a kill cut off is taken out of the file."""
        try:
            lines = (self.path / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found: list[dict[str, Any]] = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                self.write("metrics.jsonl", "".join(json.dumps(one) + "\n" for one in found).encode())
                break
        return found


def _clear(path: Path) -> None:
    """Take away what an earlier run left; files of somebody else stay."""
    for old in [*(path / name for name in FILES), *path.glob("checkpoint*"), *path.glob(".*.partial")]:
        old.unlink(missing_ok=True)
    for name, patterns in FOLDERS.items():
        clear_folder(path / name, patterns)


def clear_folder(folder: Path, patterns: Sequence[str]) -> None:
    """Take away the files of these patterns, and the folder if it is empty then.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("old.png", "note.txt"):
    ...         write_atomic(Path(place) / name, b"")
    ...     clear_folder(Path(place), PICTURES)
    ...     [path.name for path in Path(place).iterdir()]
    ['note.txt']
    """
    for old in [one for pattern in patterns for one in folder.glob(pattern)]:
        old.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
