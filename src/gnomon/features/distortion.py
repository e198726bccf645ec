"""Small random distortions of public images, which stand for the variation that a hundred images do not show."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.features.images import public_images
from gnomon.validate import non_negative, whole

GRID = 5
"""Elastic displacements are drawn on a coarse grid of this side and interpolated."""


@dataclass(frozen=True)
class Distortion:
    """The size of random affine and elastic distortions; lengths are relative to half the side of an image.

    Args:
        rotation: the largest angle, in radians.
        scale: the largest relative change of each side.
        shift: the largest shift along each side.
        shear: the largest shear.
        elastic: the standard deviation of smooth displacements.
        mirror: whether every second copy, at random, is mirrored.
        padding: pixels from outside the image: "darkest" for the smallest value of the image, or "reflection".

    >>> Distortion.preset("objects").mirror, Distortion.preset("strokes").mirror
    (True, False)
    >>> Distortion(rotation=-1.0)
    Traceback (most recent call last):
    gnomon.errors.SettingError: rotation = -1.0 is invalid; expected a finite number, 0 or above
    """

    rotation: float = 0.0
    scale: float = 0.0
    shift: float = 0.0
    shear: float = 0.0
    elastic: float = 0.0
    mirror: bool = False
    padding: str = "darkest"

    def __post_init__(self) -> None:
        for entry in fields(self)[:5]:
            non_negative(entry.name, getattr(self, entry.name))
        if self.padding not in ("darkest", "reflection"):
            raise SettingError("padding", self.padding, "'darkest' or 'reflection'")

    @staticmethod
    def preset(name: str) -> Distortion:
        """Return the distortion of a kind of images: "strokes", "objects" or "colour"."""
        if name not in DISTORTIONS:
            raise SettingError("kind", name, f"a Distortion, or one of {', '.join(DISTORTIONS)}")
        return DISTORTIONS[name]


DISTORTIONS = {
    "strokes": Distortion(rotation=0.25, scale=0.15, shift=0.12, shear=0.2, elastic=0.07),
    "objects": Distortion(rotation=0.06, scale=0.08, shift=0.06, elastic=0.03, mirror=True),
    "colour": Distortion(rotation=0.06, scale=0.12, shift=0.12, mirror=True, padding="reflection"),
}
"""Named distortions: handwriting, grey images of objects, and colour photographs."""


def augmented(images: Any, copies: int = 20, kind: str | Distortion = "strokes", seed: int = 0) -> Tensor:
    """Return the images and distorted copies of them, (copies * N, channels, height, width).

    Only public images may be distorted: copies of a private image would count as several records of one person. The
    first N are the images themselves, and copy c of image i is at c * N + i, so labels are `labels.repeat(copies)`.

    Args:
        images: public images, (N, channels, height, width).
        copies: how often each image occurs, the image itself included.
        kind: "strokes", "objects", "colour", or a Distortion.
        seed: the seed of the distortions.

    Raises:
        DataError: these are not images.

    >>> images = torch.rand(3, 1, 8, 8)
    >>> result = augmented(images, copies=4, kind="objects")
    >>> result.shape, bool((result[:3] == images).all())
    (torch.Size([12, 1, 8, 8]), True)
    """
    images, copies = public_images(images), whole("copies", copies)
    distortion = kind if isinstance(kind, Distortion) else Distortion.preset(kind)
    generator = torch.Generator().manual_seed(whole("seed", seed, least=0))
    return torch.cat([images, *(_distorted(images, distortion, generator) for _ in range(copies - 1))])


def _distorted(images: Tensor, distortion: Distortion, generator: torch.Generator) -> Tensor:
    count, _, height, width = images.shape

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator) * 2 - 1

    angle = uniform(count) * distortion.rotation
    scales = 1 + uniform(2, count) * distortion.scale
    shear = uniform(count) * distortion.shear
    affine = torch.zeros(count, 2, 3)
    affine[:, 0, 0], affine[:, 0, 1] = scales[0] * angle.cos(), shear - angle.sin()
    affine[:, 1, 0], affine[:, 1, 1] = angle.sin(), scales[1] * angle.cos()
    affine[:, :, 2] = uniform(count, 2) * distortion.shift
    if distortion.mirror:
        sign = torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)
        affine[:, 0, :2] *= sign[:, None]
    grid = F.affine_grid(affine, [count, 1, height, width], align_corners=False)
    if distortion.elastic:
        coarse = torch.randn(count, 2, GRID, GRID, generator=generator) * distortion.elastic
        smooth = F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=True)
        grid = grid + smooth.permute(0, 2, 3, 1)
    grid = grid.to(images.device)
    if distortion.padding == "reflection":
        return F.grid_sample(images, grid, align_corners=False, padding_mode="reflection")
    darkest = images.amin((2, 3), keepdim=True)
    return F.grid_sample(images - darkest, grid, align_corners=False) + darkest
