"""CIFAR-10, from its official binary files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gnomon.data.records import Records
from gnomon.data.sources.files import OTHER_FOLDER, contents, find
from gnomon.data.sources.source import Source, class_labels
from gnomon.errors import DataError

FOLDER = "cifar-10-batches-bin"
RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the red, green and blue planes
MEAN = (125.30691805, 122.95039414, 113.86538318)  # published, for pixel values from 0 to 255
STD = (62.99321928, 62.08870764, 66.70489964)


def cifar10(folder: Path) -> Source:
    """Load CIFAR-10, standardised with the published mean and standard deviation of each colour channel."""
    batches = folder / FOLDER
    if not batches.is_dir():
        raise DataError(batches, "is missing", _remedy(folder))
    train = _records([batches / f"data_batch_{i}.bin" for i in range(1, 6)])
    test = _records([batches / "test_batch.bin"])
    return Source("cifar10", train, test, 10, (3, 32, 32), "CIFAR-10: 32x32 colour images, ten classes")


def parse(stored: bytes, where: str | Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Parse one batch file and return (images, labels).

    >>> images, labels = parse(bytes([3]) + bytes(3072), "data_batch_1.bin")
    >>> images.shape, labels.tolist()
    ((1, 3, 32, 32), [3])
    """
    if not stored or len(stored) % RECORD:
        problem = f"has {len(stored)} bytes, not a multiple of {RECORD}"
        raise DataError(where, problem, "the file is truncated or not CIFAR-10's binary version; download it again")
    rows = np.frombuffer(stored, np.uint8).reshape(-1, RECORD)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _records(paths: Sequence[Path]) -> Records:
    images, labels = [], []
    for path in map(find, paths):
        pixels, classes = parse(contents(path), path)
        images.append(pixels)
        labels.append(class_labels(classes, 10, path))
    inputs = torch.from_numpy(np.concatenate(images, dtype=np.float32))
    inputs.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))
    return Records(inputs, torch.cat(labels))


def _remedy(folder: Path) -> str:
    if (folder / "cifar10_train.npz").is_file() and (folder / "unpack.py").is_file():
        return (
            f"{folder} contains the packed form; run `python {folder / 'unpack.py'} DEST` "
            "and point data_dir (--data-dir) at DEST"
        )
    return f"unpack the official binary version there, {OTHER_FOLDER}"
