"""MNIST and Fashion-MNIST, from their IDX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gnomon.data.records import Records
from gnomon.data.sources import idx
from gnomon.data.sources.files import contents, find
from gnomon.data.sources.labels import class_labels
from gnomon.data.sources.source import Source
from gnomon.errors import DataError


def mnist(folder: Path) -> Source:
    """MNIST, standardised with the published mean 0.1307 and standard deviation 0.3081."""
    return _source("mnist", folder / "mnist", 0.1307, 0.3081, "MNIST: 28x28 handwritten digits, 0 to 9")


def fashion_mnist(folder: Path) -> Source:
    """Fashion-MNIST, standardised with the published mean 0.2860 and standard deviation 0.3530."""
    description = "Fashion-MNIST: 28x28 pictures of clothes, ten kinds"
    return _source("fashion-mnist", folder / "fashion-mnist", 0.2860, 0.3530, description)


def _source(name: str, folder: Path, mean: float, std: float, description: str) -> Source:
    train, test = (_records(folder, part, mean, std) for part in ("train", "t10k"))
    return Source(name, train, test, 10, (1, 28, 28), description)


def _records(folder: Path, part: str, mean: float, std: float) -> Records:
    image_file = find(folder / f"{part}-images-idx3-ubyte")
    label_file = find(folder / f"{part}-labels-idx1-ubyte")
    images = idx.parse(contents(image_file), 3, image_file)
    labels = idx.parse(contents(label_file), 1, label_file)
    if images.shape[1:] != (28, 28):
        problem = f"has images of size {images.shape[1:]}, not (28, 28)"
        raise DataError(image_file, problem, "check that the file is the official one")
    if len(images) != len(labels):
        problem = f"has {len(labels)} labels for the {len(images)} images of {image_file.name}"
        raise DataError(label_file, problem, "download both files again")
    inputs = torch.from_numpy(images.astype(np.float32)).unsqueeze(1)
    inputs.sub_(255 * mean).div_(255 * std)  # (x / 255 - mean) / std, without further copies
    return Records(inputs, class_labels(labels, 10, label_file))
