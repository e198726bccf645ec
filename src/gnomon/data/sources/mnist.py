"""MNIST and Fashion-MNIST, from their official files in the IDX format."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gnomon.data.records import Records
from gnomon.data.sources.files import contents, find
from gnomon.data.sources.source import Source, class_labels
from gnomon.errors import DataError


def mnist(folder: Path) -> Source:
    """Load MNIST, standardised with the published mean 0.1307 and standard deviation 0.3081."""
    return _source("mnist", folder / "mnist", 0.1307, 0.3081, "MNIST: 28x28 handwritten digits, 0 to 9")


def fashion_mnist(folder: Path) -> Source:
    """Load Fashion-MNIST, standardised with the published mean 0.2860 and standard deviation 0.3530."""
    description = "Fashion-MNIST: 28x28 images of clothing, ten classes"
    return _source("fashion-mnist", folder / "fashion-mnist", 0.2860, 0.3530, description)


def parse_idx(stored: bytes, dimensions: int, where: str | Path) -> NDArray[np.uint8]:
    """Parse an IDX file of unsigned bytes: a magic number, the sizes of the dimensions, then the values.

    Args:
        stored: the contents of the file.
        dimensions: the number of dimensions that the array must have.
        where: the file that error messages name.

    Raises:
        DataError: if the file is truncated or has another type or size than its header claims.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), 1, "labels").tolist()
    [7, 9]
    """
    start = 4 + 4 * dimensions
    if len(stored) < start:
        problem = f"is truncated: {len(stored)} bytes, fewer than the {start} of the header"
        raise DataError(where, problem, "download the file again")
    magic, expected_magic = int.from_bytes(stored[:4], "big"), 0x0800 + dimensions
    if magic != expected_magic:
        problem = f"has the magic number {magic}, not {expected_magic}"
        raise DataError(where, problem, "check that the file is the official one under its official name")
    shape = tuple(int(size) for size in np.frombuffer(stored, ">u4", dimensions, offset=4))
    size, expected_size = len(stored) - start, math.prod(shape)
    if size != expected_size:
        problem = f"has {size} bytes of data where its header {shape} asks for {expected_size}"
        raise DataError(where, problem, "download the file again")
    return np.frombuffer(stored, np.uint8, offset=start).reshape(shape)


def _source(name: str, folder: Path, mean: float, std: float, description: str) -> Source:
    train, test = (_records(folder, part, mean, std) for part in ("train", "t10k"))
    return Source(name, train, test, 10, (1, 28, 28), description)


def _records(folder: Path, part: str, mean: float, std: float) -> Records:
    image_file = find(folder / f"{part}-images-idx3-ubyte")
    label_file = find(folder / f"{part}-labels-idx1-ubyte")
    images = parse_idx(contents(image_file), 3, image_file)
    labels = parse_idx(contents(label_file), 1, label_file)
    if images.shape[1:] != (28, 28):
        problem = f"has images of size {images.shape[1:]}, not (28, 28)"
        raise DataError(image_file, problem, "check that the file is the official one")
    if len(images) != len(labels):
        problem = f"has {len(labels)} labels for the {len(images)} images of {image_file.name}"
        raise DataError(label_file, problem, "download both files again")
    inputs = torch.from_numpy(images.astype(np.float32)).unsqueeze(1)
    inputs.sub_(255 * mean).div_(255 * std)  # (x / 255 - mean) / std, in place
    return Records(inputs, class_labels(labels, 10, label_file))
