"""Features of images from whitened random patches of public images (Coates and Ng, 2011)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import SMALLEST_NORM, FeatureMap, Origin, as_float, unit_norm
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
    soft-thresholded with both signs, and the responses are averaged over a grid of overlapping cells and, optionally,
    over the image and its mirror image. Then follow a square root, and unit norm in each cell and as a whole ("The
    Importance of Encoding Versus Training with Sparse Coding and Vector Quantization", Coates and Ng, 2011). All
    constants are relative to the variance of the public pixels, so the scale of the pixels does not matter.

    Args:
        public_images: public images, (N, channels, height, width); a hundred are enough.
        filters: the number of filters; fewer if the public images have fewer patches that differ.
        size: the side of a patch.
        stride: the distance between neighbouring patches; one costs four times as much as two.
        pool: the number of cells along each side of the grid.
        overlap: the part of a cell by which it reaches into its neighbours. The weight of a position falls off linearly
            over twice that length around the border of the cell.
        threshold: the soft threshold.
        mirror: whether to average over the image and its mirror image; mirrored public patches become filters too.
        seed: the seed of the random choice of patches.

    Raises:
        DataError: there are too few public images, they differ in size, or they are constant.

    >>> public = torch.rand(20, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    >>> patches = WhitenedPatches(public, filters=10, size=4)
    >>> features = patches(torch.rand(5, 3, 12, 12))
    >>> features.shape, patches.origin.records  # 2 signs x 10 filters x 3 x 3 cells
    (torch.Size([5, 180]), 20)
    """

    weight: Tensor
    even: Tensor
    odd: Tensor
    bias: Tensor
    cells: Tensor

    def __init__(
        self,
        public_images: Any,
        filters: int = 600,
        size: int = 6,
        stride: int = 2,
        pool: int = 3,
        overlap: float = 0.5,
        threshold: float = 1.25,
        mirror: bool = True,
        seed: int = 0,
    ) -> None:
        filters, size, pool = whole("filters", filters), whole("size", size, least=2), whole("pool", pool)
        stride, overlap = whole("stride", stride), non_negative("overlap", overlap)
        threshold, seed = non_negative("threshold", threshold), whole("seed", seed, least=0)
        images = _checked(public_images, size, stride, pool)
        self.shape: Sequence[int] = tuple(images.shape[1:])
        variance = float(images.double().var())
        contrast = CONTRAST * variance
        weight, bias = _filters(images, filters, size, contrast, FLAT * variance, mirror, seed)
        sizes = f"{'x'.join(map(str, self.shape))} images"
        super().__init__(
            f"{len(weight)} whitened {size}x{size} patches on {sizes}, stride {stride}, threshold {threshold:g}, "
            f"{pool}x{pool} cells" + (", mirror average" if mirror else ""),
            2 * len(weight) * pool * pool,
            origin=Origin.public(images),
            settings={
                "shape": list(self.shape),
                "size": size,
                "stride": stride,
                "threshold": threshold,
                "mirror": mirror,
            },
        )
        self.filters, self.size, self.stride, self.pool = len(weight), size, stride, pool
        self.grid_cells = pool * pool
        self.threshold, self.mirror, self.contrast = threshold, bool(mirror), contrast
        self.settings["contrast"] = contrast
        self.notes = () if len(weight) == filters else (f"filters = {filters} was reduced to {len(weight)}",)
        # The response of a mirrored patch is even - odd where that of the patch is even + odd, and each of the two
        # parts is an inner product with the sums or the differences of mirrored columns: half the work of two filters.
        columns = weight.reshape(len(weight), -1, size)  # (filters, channels * rows, columns)
        half, middle = size // 2, size % 2
        even, odd = (columns + columns.flip(2)) / 2, (columns - columns.flip(2)) / 2
        self.register_buffer("bias", bias)
        height, width = ((side - size) // stride + 1 for side in self.shape[1:])
        self.register_buffer("cells", _pooling(height, width, pool, overlap))
        self.register_buffer("weight", columns.flatten(1).T.contiguous())
        self.register_buffer("even", even[:, :, : half + middle].flatten(1).T.contiguous())
        self.register_buffer("odd", odd[:, :, :half].flatten(1).T.contiguous())

    def features(self, inputs: Tensor) -> Tensor:
        """Return the pooled responses of each image after the square root, with unit norm in each cell."""
        images = image_batch(inputs, self.shape)
        responses = torch.cat([self._pooled(as_float(chunk)) for chunk in images.split(CHUNK)])  # (B, cells, 2 filters)
        responses = responses.clamp_(min=0).sqrt_()
        norms = torch.linalg.vector_norm(responses, dim=2, keepdim=True)
        return unit_norm(responses.div_(norms.clamp_(min=SMALLEST_NORM)))

    def _pooled(self, images: Tensor) -> Tensor:
        symmetric = (self.shape[2] - self.size) % self.stride == 0
        if self.mirror and not symmetric:  # the patches of a mirrored image lie elsewhere
            mirrored = self._of_patches(images.flip(3), self._plain)
            return (self._of_patches(images, self._plain) + mirrored) / 2
        return self._of_patches(images, self._mirrored if self.mirror else self._plain)

    def _of_patches(self, images: Tensor, pooled: Callable[[Tensor], Tensor]) -> Tensor:
        patches = _normalised(_patches(images, self.size, self.stride), self.contrast)  # (B, positions, entries)
        # one image at a time: its responses stay in the processor's cache
        return torch.stack([pooled(rows) for rows in patches])

    def _plain(self, patches: Tensor) -> Tensor:
        return self._thresholded(torch.addmm(-self.bias, patches, self.weight))

    def _mirrored(self, patches: Tensor) -> Tensor:
        columns = patches.reshape(len(patches), -1, self.size)
        half, middle = self.size // 2, self.size % 2
        left, right = columns[:, :, :half], columns.flip(2)[:, :, :half]
        sums = left + right
        if middle:
            sums = torch.cat([sums, columns[:, :, half : half + 1]], 2)
        even = torch.addmm(-self.bias, sums.flatten(1), self.even)  # (positions, filters)
        odd = (left - right).flatten(1) @ self.odd
        responses = even + odd
        mirrored = self._thresholded(even.sub_(odd)).unflatten(0, (self.pool, self.pool)).flip(1).flatten(0, 1)
        return self._thresholded(responses).add_(mirrored).div_(2)

    def _thresholded(self, responses: Tensor) -> Tensor:
        """Return the means of the positive and of the negative parts in each cell; overwrites the responses."""
        positive = self.cells @ responses.clamp(min=self.threshold)
        negative = self.cells @ responses.clamp_(max=-self.threshold)
        return torch.cat([positive.sub_(self.threshold), negative.neg_().sub_(self.threshold)], 1)


def _pooling(height: int, width: int, pool: int, overlap: float) -> Tensor:
    """Return the weights of all positions in each cell, (cells, positions); each row sums to one."""

    def along(positions: int) -> Tensor:
        centres = torch.arange(pool, dtype=torch.float64)[:, None] + 0.5
        distance = ((torch.arange(positions, dtype=torch.float64) + 0.5) / positions * pool - centres).abs()
        inside = (distance <= 0.5).double()
        weights = inside if overlap == 0 else ((0.5 + overlap - distance) / (2 * overlap)).clamp(0, 1)
        return weights / weights.sum(1, keepdim=True)

    return torch.einsum("ai,bj->abij", along(height), along(width)).reshape(pool * pool, height * width).float()


def _checked(images: Any, size: int, stride: int, pool: int) -> Tensor:
    images = public_images(images, LEAST_IMAGES)
    positions = (min(images.shape[2:]) - size) // stride + 1
    if positions < 1:
        raise SettingError("size", size, f"at most {min(images.shape[2:])}, the side of the public images")
    if pool > positions:
        raise SettingError("pool", pool, f"at most {positions}, the number of patches along a side")
    return images


def _patches(images: Tensor, size: int, stride: int = 1) -> Tensor:
    return F.unfold(images, size, stride=stride).transpose(1, 2)  # (N, positions, channels * size * size)


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
