"""Adult (census income), from its official comma-separated files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gnomon.data.records import Records
from gnomon.data.sources.adult_columns import CATEGORIES, COLUMNS, LARGEST_CAPITAL, SCALES
from gnomon.data.sources.columns import layout, numeric, one_hot
from gnomon.data.sources.files import find, text
from gnomon.data.sources.source import Source
from gnomon.errors import DataError

CAPITAL = ("capital-gain", "capital-loss")
LABELS = {"<=50K": 0, ">50K": 1}


def adult(folder: Path) -> Source:
    """Adult: 104 features, target 1 for an income above 50,000 dollars."""
    train, test = (
        parse(text(path), path) for path in (find(folder / "adult" / f"adult.{part}") for part in ("data", "test"))
    )
    shape = tuple(train.inputs.shape[1:])
    about = "Adult: does a person of the 1994 census earn over $50K?"
    return Source("adult", train, test, 2, shape, about, layout((*SCALES, *CAPITAL), CATEGORIES))


def parse(table: str, where: str | Path) -> Records:
    """The records of adult.data or adult.test.

    fnlwgt is dropped. Numbers are scaled by constants and categories come from the published list.

    >>> line = "39, ?, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Male, 0, 0, 40, Cuba, <=50K."
    >>> records = parse(line, "adult.test")
    >>> records.inputs.shape, records.targets
    (torch.Size([1, 104]), tensor([0]))
    """
    rows = []
    for number, line in enumerate(table.splitlines(), start=1):
        if not line.strip() or line.startswith("|"):  # adult.test opens with a comment
            continue
        row = [value.strip() for value in line.split(",")]
        if len(row) != len(COLUMNS):
            problem = f"has {len(row)} columns in line {number}, not {len(COLUMNS)}"
            raise DataError(where, problem, "the file is truncated or not Adult; download it again")
        if row[-1].rstrip(".") not in LABELS:
            problem = f"has the label {row[-1]!r} in line {number}"
            raise DataError(where, problem, "labels must be <=50K or >50K")
        rows.append(row)
    if not rows:
        raise DataError(where, "has no records", "download the file again")
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    features = [numeric(columns[name], name, where) / scale for name, scale in SCALES.items()]
    for name in CAPITAL:
        dollars = numeric(columns[name], name, where)
        features.append(np.log1p(dollars.clip(min=0)) / np.log1p(np.float32(LARGEST_CAPITAL)))
    features += [one_hot(columns[name], values) for name, values in CATEGORIES.items()]
    inputs = torch.from_numpy(np.concatenate(features, axis=1, dtype=np.float32))
    targets = torch.tensor([LABELS[row[-1].rstrip(".")] for row in rows])
    return Records(inputs, targets)
