"""Checks of images where they enter a feature map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gnomon.data.records import Records
from gnomon.errors import DataError
from gnomon.features.feature_map import as_float
from gnomon.text import counted


def image_batch(images: Any, shape: Sequence[int]) -> Tensor:
    """Return images of a declared shape, (B, channels, height, width), or raise a DataError.

    >>> image_batch(torch.zeros(2, 8, 8), (1, 8, 8)).shape
    torch.Size([2, 1, 8, 8])
    """
    if isinstance(images, Tensor):
        if images.ndim == 3 and shape[0] == 1:
            images = images.unsqueeze(1)
        if images.ndim == 4 and tuple(images.shape[1:]) == tuple(shape):
            return images
    got = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else f"type {type(images).__name__}"
    size = "x".join(map(str, shape))
    raise DataError("a batch of images", f"has {got}", f"this feature map takes a tensor of (B, {size}) images")


def public_images(images: Any, least: int = 1) -> Tensor:
    """Return public images, (N, channels, height, width) in float32, or raise a DataError that says what is wrong.

    Args:
        images: Records, a tensor of images (bytes are divided by 255), or a list of images of one size.
        least: the smallest number of images that is enough.

    >>> public_images(torch.eye(4).repeat(3, 1, 1)).shape
    torch.Size([3, 1, 4, 4])
    """
    if isinstance(images, Records):
        images = images.inputs
    if isinstance(images, list | tuple):
        sizes = sorted({tuple(image.shape) for image in images})
        if len(sizes) > 1:
            problem = f"have {len(sizes)} sizes, such as {sizes[0]} and {sizes[1]}"
            raise DataError("the public images", problem, "crop or resize them to the size of the private images")
        images = torch.stack(list(images)) if images else torch.zeros(0, 1, 1, 1)
    if not isinstance(images, Tensor) or images.ndim not in (3, 4):
        got = f"have shape {tuple(images.shape)}" if isinstance(images, Tensor) else f"are a {type(images).__name__}"
        raise DataError("the public images", got, "give a tensor of (N, channels, height, width)")
    if len(images) < least:
        problem = f"are {counted(len(images), 'image')}"
        raise DataError("the public images", problem, f"give at least {least}, better 100 or more")
    images = as_float(images if images.ndim == 4 else images.unsqueeze(1))
    bad = ~images.flatten(1).isfinite().all(1)
    if bad.any():
        first = int(bad.nonzero()[0])
        raise DataError(f"public image {first}", "has pixels that are not finite", "remove it from the public images")
    return images
