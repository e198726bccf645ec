"""Source: the training and test records of a data set with its public facts, and the validation of class labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon.data.records import Records
from gnomon.data.sources.columns import Column
from gnomon.errors import DataError


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, ready for training.

    Scales and category lists are published constants; none is computed from the records, so that loading costs no
    privacy.

    >>> import torch
    >>> records = Records(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> Source("toy", records, records, classes=2, input_shape=(2,), description="four zeros").classes
    2
    """

    name: str
    train: Records
    test: Records
    classes: int
    input_shape: tuple[int, ...]
    description: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    """The positions of a table's named columns among the inputs."""
    tokens: int = 0
    """The number of different tokens, if a record is a sequence of tokens 0, 1, ...; else 0."""
    cut: bool = False
    """Whether the file has no test records of its own, so that they were drawn from its records on loading."""
    counted: bool = False
    """Whether the number of classes was read off the labels, which makes the largest label public."""
    public: Records | None = None
    """The records that the data holder declares public, none of which is among the others; None if none are declared.
    They are NOT protected."""


def class_labels(values: NDArray[Any], classes: int | None, where: str | Path) -> Tensor:
    """Return labels as int64 after checking that each is a whole number from 0 to classes - 1.

    Args:
        values: the labels, of shape (N,).
        classes: the number of classes; None for no upper limit.
        where: the file or array that error messages name.

    Raises:
        DataError: if a label is missing, not a whole number, or out of range.

    >>> class_labels(np.array([0, 2, 1], dtype=np.uint8), 3, "labels")
    tensor([0, 2, 1])
    >>> class_labels(np.array([0.0, np.nan]), 3, "labels")
    Traceback (most recent call last):
    gnomon.errors.DataError: labels has NaN labels: remove the records without a label
    """
    if values.ndim != 1:
        problem = f"has labels of shape {values.shape}"
        raise DataError(where, problem, "store one whole number for each record")
    if values.dtype.kind == "f":
        if np.isnan(values).any():
            raise DataError(where, "has NaN labels", "remove the records without a label")
        valid = np.isfinite(values) & (values == np.floor(values))
        if not valid.all():
            raise DataError(where, f"has the label {values[~valid][0]}", "store whole numbers, one for each class")
    elif values.dtype.kind not in "iub":
        raise DataError(where, f"has labels of type {values.dtype}", "store whole numbers, one for each class")
    labels = values.astype(np.int64)
    largest = "classes - 1" if classes is None else str(classes - 1)
    out_of_range = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    if out_of_range.any():
        raise DataError(where, f"has the label {labels[out_of_range][0]}", f"labels must run from 0 to {largest}")
    return torch.from_numpy(labels)
