"""The 8x8 handwritten digits that are part of scikit-learn."""

from __future__ import annotations

from pathlib import Path

import torch

from gnomon.data.records import Records
from gnomon.data.sources.source import Source
from gnomon.data.split import holdout


def digits(folder: Path | None = None) -> Source:
    """Load the digits: 1,437 training and 360 test images, scaled to [0, 1]; no files are needed.

    >>> digits().train.inputs.shape
    torch.Size([1437, 1, 8, 8])
    """
    from sklearn.datasets import load_digits  # noqa: PLC0415  # no other data set needs scikit-learn

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().div(16).unsqueeze(1)  # (1797, 1, 8, 8)
    train, test = holdout(Records(images, torch.from_numpy(bunch.target).long()), test=360)
    return Source("digits", train, test, 10, (1, 8, 8), "scikit-learn's 8x8 handwritten digits, 0 to 9")
