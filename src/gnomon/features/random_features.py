"""Random Fourier features of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import FeatureMap, Origin, unit_norm
from gnomon.text import counted
from gnomon.validate import number, positive, whole


class RandomFeatures(FeatureMap):
    """Cosines and sines of random projections of the columns of a table, scaled by declared ranges.

    Inner products of the features approximate a Gaussian kernel on the columns ("Random Features for Large-Scale
    Kernel Machines", Rahimi and Recht, 2007). Every column is scaled from its range to [-1, 1]; values outside the
    range are clamped to it. Declare ranges that are known without the data, such as 0 to 120 years of age: a minimum
    or maximum of private records is a private statistic.

    Args:
        ranges: the smallest and the largest value of each column.
        features: the number of random projections; each gives a cosine and a sine.
        scale: the width of the Gaussian kernel on the scaled columns; None for the root of the number of columns.
        inputs: whether to append the scaled columns themselves.
        seed: the seed of the projections.

    Raises:
        SettingError: a range is empty or not finite.

    >>> ages_and_hours = RandomFeatures([(0, 120), (0, 100)], features=50)
    >>> features = ages_and_hours(torch.tensor([[37.0, 40.0], [200.0, 40.0], [120.0, 40.0]]))
    >>> features.shape, bool((features[1] == features[2]).all())  # 200 is clamped to 120
    (torch.Size([3, 100]), True)
    """

    low: Tensor
    high: Tensor
    projection: Tensor

    def __init__(
        self,
        ranges: Sequence[tuple[float, float]] | Tensor,
        features: int = 500,
        scale: float | None = None,
        *,
        inputs: bool = False,
        seed: int = 0,
    ) -> None:
        bounds = _checked(ranges)
        columns, features = len(bounds), whole("features", features)
        width = math.sqrt(columns) if scale is None else positive("scale", scale)
        generator = torch.Generator().manual_seed(whole("seed", seed, least=0))
        super().__init__(
            f"{features} random Fourier features of {counted(columns, 'column')}, scale {width:.4g}"
            + (", and the columns" if inputs else ""),
            2 * features + (columns if inputs else 0),
            origin=Origin(constants=("declared ranges of the columns",)),
            settings={"inputs": columns, "scale": width, "append": bool(inputs)},
        )
        self.append = bool(inputs)
        self.register_buffer("low", torch.tensor([low for low, _ in bounds], dtype=torch.float64))
        self.register_buffer("high", torch.tensor([high for _, high in bounds], dtype=torch.float64))
        self.register_buffer("projection", torch.randn(columns, features, generator=generator) / width)

    def features(self, inputs: Tensor) -> Tensor:
        """Return cosines, sines and, if asked for, the scaled columns, with unit norm."""
        if inputs.ndim != 2 or inputs.shape[1] != len(self.low):
            shape = tuple(inputs.shape)
            raise DataError("a batch of rows", f"has shape {shape}", f"this map takes (B, {len(self.low)}), the ranges")
        clamped = torch.minimum(torch.maximum(inputs.double(), self.low), self.high)
        scaled = ((clamped - self.low) / (self.high - self.low) * 2 - 1).float()
        angles = scaled @ self.projection
        parts = [angles.cos(), angles.sin()]
        if self.append:
            parts.append(scaled * math.sqrt(self.projection.shape[1] / scaled.shape[1]))  # as long as all the waves
        return unit_norm(torch.cat(parts, 1))


def _checked(ranges: Sequence[tuple[float, float]] | Tensor) -> list[tuple[float, float]]:
    pairs = ranges.tolist() if isinstance(ranges, Tensor) else list(ranges)
    if not pairs or any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in pairs):
        raise SettingError("ranges", pairs[:3], "one pair (smallest, largest) for each column")
    for column, (low, high) in enumerate(pairs):
        name = f"ranges[{column}]"
        if not number(name, low) < number(name, high):
            raise SettingError(name, (low, high), "a smallest value below the largest one; leave out constant columns")
    return [(float(low), float(high)) for low, high in pairs]
