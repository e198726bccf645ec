"""Random rows for the records of a physical batch, in batches of few different sizes.

A kernel may round the result of a record differently at another row, or in a batch of another size. Where rounding
decides an update (for example between logits that are equal in exact arithmetic), a record that moves other records to
other rows changes their updates, and no clip bound holds. Therefore rows are drawn at random in secret, and batches are
padded to a multiple of a declared number. Then, with one record more or less and within one multiple, the rows of all
other records have exactly the same distribution.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnomon.release import NoiseSource
from gnomon.sampling.draws import shuffle
from gnomon.updates.trees import batch_size, take_rows, tensors

SMALLEST, LARGEST = 4, 32
"""The smallest and the largest number to a multiple of which batches are padded."""


class Placed(NamedTuple):
    """A physical batch as the model sees it."""

    inputs: Any
    targets: Any
    counts: Tensor
    """Which rows are records, (B,); the others are padding."""


def multiple(expected_batch_size: float) -> int:
    """Return the number to a multiple of which batches are padded: at most a 32nd of the batch, but at least 4.

    It depends on the declared batch size alone.

    >>> multiple(250), multiple(1000), multiple(60000)
    (4, 8, 32)
    """
    power = 2 ** math.floor(math.log2(max(1.0, expected_batch_size / 64)))
    return min(max(power, SMALLEST), LARGEST)


def place(inputs: Any, targets: Any, to: int, most: int | None, order: NoiseSource) -> Placed:
    """Put the records of a physical batch into random rows of a batch padded to a multiple of `to`.

    Args:
        inputs: tensors with the batch first, in any nested structure.
        targets: the same for the targets.
        to: the size becomes a multiple of this number.
        most: the largest allowed size; a batch of that size is not padded.
        order: the source of the random rows.

    Returns:
        The batch, with copies of records as padding. An empty batch stays empty.

    >>> import torch
    >>> from gnomon.release import SeededNoise
    >>> placed = place(torch.arange(3.0), None, 4, None, SeededNoise(0))
    >>> len(placed.inputs), int(placed.counts.sum()), sorted(placed.inputs[placed.counts].tolist())
    (4, 3, [0.0, 1.0, 2.0])
    """
    size = batch_size(inputs)
    padded = -(-size // to) * to
    length = padded if most is None else max(size, min(padded, most))
    rows = shuffle(length, order)
    device = tensors(inputs)[0].device
    if length == size:  # without padding, every row is a record
        counts = torch.ones(size, dtype=torch.bool, device=device)
    else:
        counts, rows = (rows < size).to(device), rows % size
    inputs, targets = take_rows((inputs, targets), rows)
    return Placed(inputs, targets, counts)
