"""Storage of finished runs: one small JSON file per run, named by the hash of the run's settings."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnomon.errors import DataError, SettingError
from gnomon.files import write_atomic

SIGNIFICANT_DIGITS = 4
"""Digits that are stored of the numbers along a run. Its final results are stored in full."""

ROW_KEYS = ("history", "diagnostics")
"""Entries of a result that hold one row per epoch or per diagnostic."""

INFINITE = "infinite"
"""The text that stands for an infinite epsilon: JSON has no number for it."""


class ResultStore:
    """The results in the subfolder `cells` of an output folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ResultStore(Path(folder))
    ...     store.write("ab12", {"accuracy": 0.5, "history": [{"epoch": 1.0}, {"epoch": 2.0, "loss": 0.123456}]})
    ...     "ab12" in store, store.read("ab12")
    (True, {'accuracy': 0.5, 'history': [{'epoch': 1.0}, {'epoch': 2.0, 'loss': 0.1235}]})
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cells"

    def __contains__(self, key: str) -> bool:
        return self.find(key) is not None

    def read(self, key: str) -> dict[str, Any]:
        """Return the result with the given key.

        Raises:
            DataError: the result is missing or damaged.
        """
        result = self.find(key)
        if result is None:
            raise DataError(self._path(key), "is missing or damaged", "run the cell again")
        return result

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the result with the given key, or None. A damaged file counts as missing and causes a warning."""
        path = self._path(key)
        try:
            stored = json.loads(path.read_text())
            if not isinstance(stored, dict) or "accuracy" not in stored:
                raise ValueError("the file holds no result")
            return unpack(stored)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, IndexError) as error:
            warnings.warn(f"{path} cannot be read, so its run counts as not finished ({error})", stacklevel=2)
            return None

    def create(self) -> None:
        """Create the folder.

        Raises:
            SettingError: the folder cannot be created.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError("out", str(self.folder.parent), f"a writable folder ({error.strerror})") from None

    def write(self, key: str, result: dict[str, Any]) -> None:
        """Store a result atomically: a concurrent reader finds the whole file or none."""
        self.create()
        text = json.dumps(pack(result), separators=(",", ":")) + "\n"
        write_atomic(self._path(key), text.encode(), shared=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def pack(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result for storage: one list per column instead of one record per row, which is ten times smaller.

    >>> pack({"history": [{"epoch": 1.0}, {"epoch": 2.0, "loss": 0.123456}]})
    {'history': {'epoch': [1.0, 2.0], 'loss': [None, 0.1235]}}
    """
    return replace_infinity(result | {name: _columns(result[name]) for name in ROW_KEYS if name in result})


def unpack(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the result that `pack` was given, with rounded numbers. Values that a row does not have are left out.

    >>> unpack({"history": {"epoch": [1.0, 2.0], "loss": [None, 0.1235]}})
    {'history': [{'epoch': 1.0}, {'epoch': 2.0, 'loss': 0.1235}]}
    """
    rows = {name: _rows(stored[name]) for name in ROW_KEYS if isinstance(stored.get(name), dict)}
    return stored | rows | ({"epsilon": math.inf} if stored.get("epsilon") == INFINITE else {})


def package_versions(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the distinct package versions behind results; an empty text stands for results that record none.

    >>> package_versions([{"versions": {"gnomon": "0.1.0", "torch": "2.9.1"}}, {}])
    ['', 'gnomon 0.1.0, torch 2.9.1']
    """
    return sorted(
        {
            ", ".join(f"{package} {version}" for package, version in result.get("versions", {}).items())
            for result in results
        }
    )


def versions_sentence(versions: Iterable[str]) -> str:
    """Return package versions as a sentence, or an empty text if no version is known.

    >>> versions_sentence(["", "gnomon 0.1.0, torch 2.9.1"])
    'Computed with gnomon 0.1.0, torch 2.9.1; some runs did not record their versions.'
    """
    distinct = sorted(set(versions))
    known = [text for text in distinct if text]
    if not known:
        return ""
    unknown = "" if known == distinct else "; some runs did not record their versions"
    return f"Computed with {'; '.join(known)}{unknown}."


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [round_numbers(row.get(name)) for row in rows] for name in names}


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    length = max(map(len, columns.values()), default=0)
    return [
        {name: values[number] for name, values in columns.items() if values[number] is not None}
        for number in range(length)
    ]


def replace_infinity(result: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with `INFINITE` in place of infinite values, such as the epsilon of a run without noise.

    >>> replace_infinity({"epsilon": math.inf})
    {'epsilon': 'infinite'}
    """
    return {name: INFINITE if value == math.inf else value for name, value in result.items()}


def round_numbers(value: Any) -> Any:
    """Return plain values with all floats rounded to `SIGNIFICANT_DIGITS`.

    >>> round_numbers({"a": [1234.5678, 3]})
    {'a': [1235.0, 3]}
    """
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, list | tuple):
        return [round_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: round_numbers(item) for key, item in value.items()}
    return value
