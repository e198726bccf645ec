"""Finished cells of comparisons and experiments: one small JSON file each, named by the hash of its settings."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError
from gnomon.files import write_atomic

DIGITS = 4
"""Significant digits of the numbers along a run; its results are kept in full."""

ALONG = ("history", "diagnostics")
"""What a result has one row of for each epoch or look."""


INFINITE = "infinite"


class ResultStore:
    """The folder `cells` of an output folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = ResultStore(Path(place))
    ...     store.write("ab12", {"accuracy": 0.5, "history": [{"epoch": 1.0}, {"epoch": 2.0, "loss": 0.123456}]})
    ...     "ab12" in store, store.read("ab12")
    (True, {'accuracy': 0.5, 'history': [{'epoch': 1.0}, {'epoch': 2.0, 'loss': 0.1235}]})
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cells"

    def __contains__(self, key: str) -> bool:
        return self.find(key) is not None

    def read(self, key: str) -> dict[str, Any]:
        """A finished cell."""
        found = self.find(key)
        if found is None:
            raise SettingError("cell", str(self._path(key)), "a file with a finished cell")
        return found

    def find(self, key: str) -> dict[str, Any] | None:
        """A finished cell, or nothing. A damaged file is as good as none, and is named."""
        path = self._path(key)
        try:
            found = json.loads(path.read_text())
            if not isinstance(found, dict) or "accuracy" not in found:
                raise ValueError("no result in it")
            return unpacked(found)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, IndexError) as error:
            warnings.warn(f"{path} cannot be read and counts as not run ({error})", stacklevel=2)
            return None

    def open(self) -> None:
        """Make the folder, or say why it cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(
                "out", str(self.folder.parent), f"a folder that can be written ({error.strerror})"
            ) from None

    def write(self, key: str, result: dict[str, Any]) -> None:
        """Keep a cell; a reader finds all of it or nothing."""
        self.open()
        text = json.dumps(packed(result), separators=(",", ":")) + "\n"
        write_atomic(self._path(key), text.encode(), shared=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def packed(result: dict[str, Any]) -> dict[str, Any]:
    """A result with a list for each column instead of a record for each row, which takes a tenth of the room.

    >>> packed({"history": [{"epoch": 1.0}, {"epoch": 2.0, "loss": 0.123456}]})
    {'history': {'epoch': [1.0, 2.0], 'loss': [None, 0.1235]}}
    """
    return finite(result | {name: _columns(result[name]) for name in ALONG if name in result})


def unpacked(result: dict[str, Any]) -> dict[str, Any]:
    """What `packed` was given, with rounded numbers; values that a row does not have are left out.

    >>> unpacked({"history": {"epoch": [1.0, 2.0], "loss": [None, 0.1235]}})
    {'history': [{'epoch': 1.0}, {'epoch': 2.0, 'loss': 0.1235}]}
    """
    rows = {name: _rows(result[name]) for name in ALONG if isinstance(result.get(name), dict)}
    return result | rows | ({"epsilon": math.inf} if result.get("epsilon") == INFINITE else {})


def made_with(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """The versions that results were made with, each once; nothing in words where a cell does not say.

    >>> made_with([{"versions": {"gnomon": "0.1.0", "torch": "2.9.1"}}, {}])
    ['', 'gnomon 0.1.0, torch 2.9.1']
    """
    return sorted({", ".join(f"{name} {one}" for name, one in found.get("versions", {}).items()) for found in results})


def made_words(made: Iterable[str]) -> str:
    """The same as a sentence; nothing where nothing is known.

    >>> made_words(["", "gnomon 0.1.0, torch 2.9.1"])
    'Made with gnomon 0.1.0, torch 2.9.1, and in part with versions that were not kept.'
    """
    every = sorted(set(made))
    known = [one for one in every if one]
    if not known:
        return ""
    return (
        f"Made with {'; '.join(known)}"
        + ("" if known == every else ", and in part with versions that were not kept")
        + "."
    )


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [rounded(row.get(name)) for row in rows] for name in names}


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    length = max(map(len, columns.values()), default=0)
    return [
        {name: values[number] for name, values in columns.items() if values[number] is not None}
        for number in range(length)
    ]


def finite(result: dict[str, Any]) -> dict[str, Any]:
    """The same with a word for infinity, which JSON has no number for: the epsilon of a run without noise.

    >>> finite({"epsilon": math.inf})
    {'epsilon': 'infinite'}
    """
    return {name: INFINITE if value == math.inf else value for name, value in result.items()}


def rounded(value: Any) -> Any:
    """Plain values with their fractions cut to a few significant digits.

    >>> rounded({"a": [1234.5678, 3]})
    {'a': [1235.0, 3]}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return value
