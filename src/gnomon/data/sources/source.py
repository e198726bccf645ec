"""A source: the training and test records of one data set, and their public facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gnomon.data.records import Records
from gnomon.data.sources.columns import Column


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, ready for training.

    Scales and category lists are published constants. None is computed from the records, so loading
    costs no privacy.

    >>> import torch
    >>> few = Records(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> Source("toy", few, few, classes=2, input_shape=(2,), description="four zeros").classes
    2
    """

    name: str
    train: Records
    test: Records
    classes: int
    input_shape: tuple[int, ...]
    description: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Where the named columns of a table stand among the inputs."""
    cut: bool = False
    """Whether the test records were drawn from the file's records here."""
    counted: bool = False
    """Whether the number of classes was read off the labels, which makes the largest one public."""
