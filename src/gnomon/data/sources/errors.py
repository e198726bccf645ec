"""The error of a file that cannot be read as data."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """A data file is missing, damaged or in the wrong format.

    >>> str(DataError("labels.gz", "has 3 labels for 4 images", "download the file again"))
    'labels.gz has 3 labels for 4 images: download the file again'
    """

    def __init__(self, path: str | Path, problem: str, remedy: str) -> None:
        self.path, self.problem, self.remedy = str(path), problem, remedy
        super().__init__(f"{path} {problem}: {remedy}")
