"""A fixed split into training and test records, for data sets that come without one."""

from __future__ import annotations

import numpy as np
import torch

from gnomon.data.records import Records


def holdout(records: Records, test: int, seed: int = 0) -> tuple[Records, Records]:
    """(train, test): a seeded shuffle, whose last `test` records are held out.

    The order depends on the number of records and the seed alone.

    >>> train, held = holdout(Records(torch.arange(10.0), torch.arange(10)), test=2)
    >>> len(train), len(held), sorted(torch.cat([train.targets, held.targets]).tolist())
    (8, 2, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(records)))
    cut = len(records) - test
    return records[order[:cut]], records[order[cut:]]
