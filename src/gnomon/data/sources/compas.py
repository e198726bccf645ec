"""COMPAS two-year recidivism, from ProPublica's table."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from gnomon.data.records import Records
from gnomon.data.sources.columns import layout, numeric, one_hot
from gnomon.data.sources.files import find, text
from gnomon.data.sources.source import Source, class_labels
from gnomon.data.split import holdout
from gnomon.errors import DataError

SCALES = {
    "age": 100.0,
    "juv_fel_count": 20.0,
    "juv_misd_count": 20.0,
    "juv_other_count": 20.0,
    "priors_count": 40.0,
}
CATEGORIES = {
    "sex": ("Female", "Male"),
    "race": ("African-American", "Asian", "Caucasian", "Hispanic", "Native American", "Other"),
    "c_charge_degree": ("F", "M"),
}
FILTER = ("days_b_screening_arrest", "is_recid", "score_text")
TARGET = "two_year_recid"
USED = (*SCALES, *CATEGORIES, *FILTER, TARGET)


def compas(folder: Path) -> Source:
    """Load COMPAS: 15 features; the target is 1 for a new offence within two years; a fixed 80/20 split."""
    path = find(folder / "compas_two_years.csv")
    records = parse(text(path), path)
    train, test = holdout(records, test=len(records) // 5)
    shape = tuple(records.inputs.shape[1:])
    description = "COMPAS: is a defendant charged again within two years?"
    return Source("compas", train, test, 2, shape, description, layout(SCALES, CATEGORIES))


def parse(table: str, where: str | Path) -> Records:
    """Parse the table and return the records that pass ProPublica's filter, in file order.

    The filter examines each record by itself: the charge is within 30 days of the screening, the outcome and the
    score are known, and the charge is not an ordinary traffic offence.

    >>> header = ",".join(USED)
    >>> kept = "69,0,0,0,0,Male,Other,F,-1,0,Low,0"
    >>> dropped = "34,0,0,0,0,Male,Other,F,31,0,Low,0"
    >>> parse("\\n".join([header, kept, dropped]), "compas.csv").inputs.shape
    torch.Size([1, 15])
    """
    header, *lines = list(csv.reader(table.splitlines())) or [[]]
    if missing := [name for name in USED if name not in header]:
        problem = f"has no column {', '.join(missing)}"
        raise DataError(where, problem, "use ProPublica's compas-scores-two-years table with its header line")
    rows = []
    for number, row in enumerate(lines, start=2):
        if len(row) != len(header):
            problem = f"has {len(row)} columns in row {number}, not {len(header)}"
            raise DataError(where, problem, "the file is truncated or damaged; download it again")
        # Two column names occur twice in the table, with equal contents; index() takes the first.
        record = {name: row[header.index(name)] for name in USED}
        if _passes(record, number, where):
            rows.append(record)
    if not rows:
        raise DataError(where, "has no records that pass the filter", "download the file again")
    columns = {name: [row[name] for row in rows] for name in USED}
    features = [numeric(columns[name], name, where) / scale for name, scale in SCALES.items()]
    features += [one_hot(columns[name], values) for name, values in CATEGORIES.items()]
    inputs = torch.from_numpy(np.concatenate(features, axis=1, dtype=np.float32))
    return Records(inputs, class_labels(numeric(columns[TARGET], TARGET, where)[:, 0], 2, where))


def _passes(record: dict[str, str], number: int, where: str | Path) -> bool:
    days = record["days_b_screening_arrest"]
    try:
        near = days != "" and -30 <= float(days) <= 30
    except ValueError:
        problem = f"has days_b_screening_arrest = {days!r} in row {number}"
        raise DataError(where, problem, "expected a number; download the file again") from None
    known = record["is_recid"] != "-1" and record["score_text"] != "N/A"
    return near and known and record["c_charge_degree"] != "O"
