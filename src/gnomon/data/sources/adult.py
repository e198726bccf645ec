"""Adult (census income), from its official comma-separated files, with its published columns and categories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gnomon.data.records import Records
from gnomon.data.sources.columns import layout, numeric, one_hot
from gnomon.data.sources.files import find, text
from gnomon.data.sources.source import Source
from gnomon.errors import DataError

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)

SCALES = {"age": 100.0, "education-num": 16.0, "hours-per-week": 100.0}
LARGEST_CAPITAL = 99_999  # dollars, the published top code; gains and losses are scaled as log(1 + x)

_VALUES = {
    "workclass": ("Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked"),
    "education": (
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool"
    ),
    "marital-status": (
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": (
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces"
    ),
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": (
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
        "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam "
        "Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia "
        "Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru "
        "Hong Holand-Netherlands"
    ),
}

CATEGORIES = {name: tuple(values.split()) for name, values in _VALUES.items()}

CAPITAL = ("capital-gain", "capital-loss")
LABELS = {"<=50K": 0, ">50K": 1}


def adult(folder: Path) -> Source:
    """Load Adult: 104 features; the target is 1 for an income above 50,000 dollars."""
    train, test = (
        parse(text(path), path) for path in (find(folder / "adult" / f"adult.{part}") for part in ("data", "test"))
    )
    shape = tuple(train.inputs.shape[1:])
    description = "Adult: does a person of the 1994 census earn over $50K?"
    return Source("adult", train, test, 2, shape, description, layout((*SCALES, *CAPITAL), CATEGORIES))


def parse(table: str, where: str | Path) -> Records:
    """Parse the text of adult.data or adult.test.

    The column fnlwgt is dropped. Numbers are scaled by constants, and categories come from the published list.

    >>> line = "39, ?, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Male, 0, 0, 40, Cuba, <=50K."
    >>> records = parse(line, "adult.test")
    >>> records.inputs.shape, records.targets
    (torch.Size([1, 104]), tensor([0]))
    """
    rows = []
    for number, line in enumerate(table.splitlines(), start=1):
        if not line.strip() or line.startswith("|"):  # adult.test starts with a comment line
            continue
        row = [value.strip() for value in line.split(",")]
        if len(row) != len(COLUMNS):
            problem = f"has {len(row)} columns in line {number}, not {len(COLUMNS)}"
            raise DataError(where, problem, "the file is truncated or not Adult; download it again")
        if row[-1].rstrip(".") not in LABELS:
            problem = f"has the label {row[-1]!r} in line {number}"
            raise DataError(where, problem, "the label must be <=50K or >50K; download the file again")
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
