"""Reading the JSON files of a run folder. A missing file is tolerated; an error names a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnomon.errors import DataError

UNPROTECTED = "unprotected/"
"""The prefix of values that were computed on private records without noise."""

REMEDY = "restore the file, or run again"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; return an empty one if the file does not exist.

    Raises:
        DataError: the file is not readable, or holds no JSON object.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(path, f"is not readable as JSON ({error})", REMEDY) from None
    if not isinstance(content, dict):
        raise DataError(path, "is not a JSON object", REMEDY)
    return content


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line.

    An incomplete last line is left out, because the run may have been killed while it wrote the line.

    Raises:
        DataError: any other line is not readable.
    """
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise DataError(f"{path}, line {number}", f"is not readable as JSON ({error})", REMEDY) from None
    return records


def without_unprotected(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records without unprotected values.

    >>> without_unprotected([{"epoch": 1.0, "unprotected/loss": 0.5}])
    [{'epoch': 1.0}]
    """
    return [{name: value for name, value in record.items() if not name.startswith(UNPROTECTED)} for record in records]
