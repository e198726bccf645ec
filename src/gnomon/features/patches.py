"""Features of images from whitened random patches of public images (Coates and Ng, 2011)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import FeatureMap, Origin, as_float, unit_norm
from gnomon.features.images import image_batch, public_images
from gnomon.validate import non_negative, whole

CHUNK = 64
"""Images whose patches are extracted at a time."""

MOST_PATCHES = 100_000
"""Public patches from which the filters and their whitening are computed."""

LEAST_IMAGES = 2

CONTRAST = 0.0025
"""Added to the variance of a patch, in multiples of the variance of the public pixels: 10 / 255^2 on CIFAR-10."""

FLAT = 0.016
"""Public patches with less than this multiple of the variance of the public pixels are not used as filters."""

RIDGE = 0.1
"""Added to the eigenvalues of the covariance of normalised patches before whitening."""

LARGEST_COSINE = 0.85
"""Two filters are not more similar than this."""


class WhitenedPatches(FeatureMap):
    """Responses to whitened patches of public images: a convolutional network of one layer without any training.

    Each patch of an image is normalised to mean zero and contrast one, its inner product with every filter is
    soft-thresholded with both signs, and the responses are averaged over a grid of cells and, optionally, over the
    image and its mirror image. Then follow a square root and unit norm ("The Importance of Encoding Versus Training
    with Sparse Coding and Vector Quantization", Coates and Ng, 2011). All constants are relative to the variance of
    the public pixels, so the scale of the pixels does not matter.

    Args:
        public_images: public images, (N, channels, height, width); a hundred are enough.
        filters: the number of filters; fewer if the public images have fewer patches that differ.
        size: the side of a patch.
        pool: the number of cells along each side of the grid.
        threshold: the soft threshold.
        mirror: whether to average over the image and its mirror image; mirrored public patches become filters too.
        seed: the seed of the random choice of patches.

    Raises:
        DataError: there are too few public images, they differ in size, or they are constant.

    >>> public = torch.rand(20, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    >>> patches = WhitenedPatches(public, filters=10, size=4)
    >>> features = patches(torch.rand(5, 3, 12, 12))
    >>> features.shape, patches.origin.records  # 2 signs x 10 filters x 2 x 2 cells
    (torch.Size([5, 80]), 20)
    """

    weight: Tensor
    even: Tensor
    odd: Tensor
    bias: Tensor

    def __init__(
        self,
        public_images: Any,
        filters: int = 600,
        size: int = 6,
        pool: int = 2,
        threshold: float = 1.25,
        mirror: bool = True,
        seed: int = 0,
    ) -> None:
        filters, size, pool = whole("filters", filters), whole("size", size, least=2), whole("pool", pool)
        threshold, seed = non_negative("threshold", threshold), whole("seed", seed, least=0)
        images = _checked(public_images, size, pool)
        self.shape: Sequence[int] = tuple(images.shape[1:])
        variance = float(images.double().var())
        contrast = CONTRAST * variance
        weight, bias = _filters(images, filters, size, contrast, FLAT * variance, mirror, seed)
        sizes = f"{'x'.join(map(str, self.shape))} images"
        super().__init__(
            f"{len(weight)} whitened {size}x{size} patches on {sizes}, threshold {threshold:g}, {pool}x{pool} cells"
            + (", mirror average" if mirror else ""),
            2 * len(weight) * pool * pool,
            origin=Origin.public(images),
            settings={"shape": list(self.shape), "size": size, "pool": pool, "threshold": threshold, "mirror": mirror},
        )
        self.filters, self.size, self.pool = len(weight), size, pool
        self.threshold, self.mirror, self.contrast = threshold, bool(mirror), contrast
        self.settings["contrast"] = contrast
        self.notes = () if len(weight) == filters else (f"filters = {filters} was reduced to {len(weight)}",)
        # The response of a mirrored patch is even - odd where that of the patch is even + odd, and each of the two
        # parts is an inner product with the sums or the differences of mirrored columns: half the work of two filters.
        columns = weight.reshape(len(weight), -1, size)  # (filters, channels * rows, columns)
        half, middle = size // 2, size % 2
        even, odd = (columns + columns.flip(2)) / 2, (columns - columns.flip(2)) / 2
        self.register_buffer("bias", bias)
        self.register_buffer("weight", columns.flatten(1).T.contiguous() if not mirror else torch.zeros(0))
        self.register_buffer("even", even[:, :, : half + middle].flatten(1).T.contiguous())
        self.register_buffer("odd", odd[:, :, :half].flatten(1).T.contiguous())

    def features(self, inputs: Tensor) -> Tensor:
        """Return the pooled responses of each image after the square root, with unit norm."""
        images = image_batch(inputs, self.shape)
        responses = torch.cat([self._pooled(as_float(chunk)) for chunk in images.split(CHUNK)])
        return unit_norm(responses.sqrt_())

    def _pooled(self, images: Tensor) -> Tensor:
        patches = _normalised(_patches(images, self.size), self.contrast)  # (B, positions, channels * size * size)
        result = images.new_empty(len(images), 2 * self.filters, self.pool, self.pool)
        pooled = self._mirrored if self.mirror else self._plain
        height, width = (side - self.size + 1 for side in self.shape[1:])
        for image, rows in enumerate(patches):  # one image at a time: its responses stay in the processor's cache
            result[image] = pooled(rows, height, width)
        return result.clamp_(min=0)

    def _plain(self, patches: Tensor, height: int, width: int) -> Tensor:
        responses = torch.addmm(-self.bias, patches, self.weight)
        return self._thresholded(responses, height, width)

    def _mirrored(self, patches: Tensor, height: int, width: int) -> Tensor:
        columns = patches.reshape(len(patches), -1, self.size)
        half, middle = self.size // 2, self.size % 2
        left, right = columns[:, :, :half], columns.flip(2)[:, :, :half]
        sums = left + right
        if middle:
            sums = torch.cat([sums, columns[:, :, half : half + 1]], 2)
        even = torch.addmm(-self.bias, sums.flatten(1), self.even)  # (positions, filters)
        odd = (left - right).flatten(1) @ self.odd
        responses = even + odd
        mirrored = even.sub_(odd)
        cells = self._thresholded(responses, height, width)
        return cells.add_(self._thresholded(mirrored, height, width).flip(2)).div_(2)

    def _thresholded(self, responses: Tensor, height: int, width: int) -> Tensor:
        """Return the mean in each cell of the positive and of the negative part; overwrites the responses."""
        positive = self._cells(responses.clamp(min=self.threshold), height, width)
        negative = self._cells(responses.clamp_(max=-self.threshold), height, width)
        return torch.cat([positive.sub_(self.threshold), negative.neg_().sub_(self.threshold)])

    def _cells(self, responses: Tensor, height: int, width: int) -> Tensor:
        images = responses.reshape(1, height, width, -1).permute(0, 3, 1, 2)  # channels last, without a copy
        return F.adaptive_avg_pool2d(images, self.pool)[0]


def _checked(images: Any, size: int, pool: int) -> Tensor:
    images = public_images(images, LEAST_IMAGES)
    positions = min(images.shape[2:]) - size + 1
    if positions < 1:
        raise SettingError("size", size, f"at most {min(images.shape[2:])}, the side of the public images")
    if pool > positions:
        raise SettingError("pool", pool, f"at most {positions}, the number of patches along a side")
    return images


def _patches(images: Tensor, size: int) -> Tensor:
    return F.unfold(images, size).transpose(1, 2)  # (N, positions, channels * size * size)


def _normalised(patches: Tensor, contrast: float) -> Tensor:
    centred = patches - patches.mean(-1, keepdim=True)
    return centred.mul_((centred.square().mean(-1, keepdim=True) + contrast).rsqrt_())


def _filters(
    images: Tensor, count: int, size: int, contrast: float, flat: float, mirror: bool, seed: int
) -> tuple[Tensor, Tensor]:
    """Return at most `count` filters, (filters, channels * size * size), and the response of the mean patch."""
    generator = torch.Generator().manual_seed(seed)
    if mirror:
        images = torch.cat([images, images.flip(3)])
    rows = _patches(images, size).flatten(0, 1)
    rows = rows[torch.randperm(len(rows), generator=generator)[:MOST_PATCHES].to(rows.device)]
    rows = rows[rows.var(1) > flat]
    if len(rows) < 2 or not contrast:
        remedy = "give public images of the same kind as the private ones"
        raise DataError("the public images", "are constant, or almost, in every patch", remedy)
    rows = _normalised(rows, contrast)
    mean = rows.mean(0)
    covariance = (rows - mean).T.double() @ (rows - mean).double() / len(rows)
    values, vectors = torch.linalg.eigh(covariance)
    whitening = ((vectors * (values.clamp(min=0) + RIDGE).rsqrt()) @ vectors.T).float()
    candidates = F.normalize((rows - mean) @ whitening)
    chosen = candidates[:0]
    for block in candidates[torch.randperm(len(candidates), generator=generator).to(rows.device)].split(count):
        new = block[(block @ chosen.T).abs().amax(1) < LARGEST_COSINE] if len(chosen) else block
        earlier = (new @ new.T).abs().triu(1)
        chosen = torch.cat([chosen, new[earlier.amax(0) < LARGEST_COSINE]])
        if len(chosen) >= count:
            break
    weight = chosen[:count] @ whitening
    return weight, weight @ mean
