"""Class labels: whole numbers from 0 to classes - 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon.errors import DataError


def class_labels(values: NDArray[Any], classes: int | None, where: str | Path) -> Tensor:
    """The labels as int64, if each is a class; `classes=None` leaves the upper end open.

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
        whole = values == np.floor(values)
        if not (whole & np.isfinite(values)).all():
            problem = f"has the label {values[~(whole & np.isfinite(values))][0]}"
            raise DataError(where, problem, "store whole numbers, one class each")
    elif values.dtype.kind not in "iub":
        raise DataError(where, f"has labels of type {values.dtype}", "store whole numbers, one class each")
    labels = values.astype(np.int64)
    top = "classes - 1" if classes is None else str(classes - 1)
    wrong = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    if wrong.any():
        raise DataError(where, f"has the label {labels[wrong][0]}", f"labels must run from 0 to {top}")
    return torch.from_numpy(labels)
