"""Whitening of features on a grid of cells, with the same principal directions in every cell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import FeatureMap, Origin, unit_norm
from gnomon.features.whitening import SMALLEST_EIGENVALUE, PublicWhitening, checked_features, with_signs
from gnomon.validate import whole

LEADING = 100
"""Directions of the channels from which the directions of the cells are computed."""


class GridWhitening(PublicWhitening):
    """Whiten features on a grid of cells by products of a direction of the channels and a direction of the cells.

    A hundred public images show too little of the covariance of all features of all cells. The covariance of the
    channels is the same in every cell, or nearly, so it is estimated from all cells at once; the covariance of the
    cells is estimated from the leading directions of the channels. Their eigenvectors make a basis of product
    directions. The variance of the public features along each of them takes the place of an eigenvalue, and the
    number of directions is not limited by the number of public images. All else is as in `PublicWhitening`.

    Args:
        features_of_public: (N, cells * channels) features of the public records, one cell after another.
        cells: the number of cells.
        k: the number of directions; None for all. More than the rank are reduced to the rank, as `notes` says.
        lam: the regularisation, relative to the largest eigenvalue.
        origin: the origin of the features, as in `PublicWhitening`.

    Raises:
        DataError: there are fewer than two rows, or they are all alike or not finite.
        SettingError: the features cannot be divided into this number of cells.

    >>> public = torch.randn(20, 4 * 30, generator=torch.Generator().manual_seed(0))
    >>> whitening = GridWhitening(public, cells=4, k=50)
    >>> whitening(torch.randn(3, 120)).shape, whitening.rank
    (torch.Size([3, 50]), 120)
    """

    across: Tensor
    order: Tensor

    def __init__(
        self,
        features_of_public: Tensor,
        cells: int,
        k: int | None = None,
        lam: float = 0.1,
        *,
        origin: Origin | None = None,
    ) -> None:
        features, cells = checked_features(features_of_public), whole("cells", cells)
        count = features.shape[1]
        if count % cells:
            raise SettingError("cells", cells, f"a divisor of {count}, the number of features")
        mean, along, across, values = _products(features, cells)
        order = values.argsort(descending=True)
        order = order[values[order] > SMALLEST_EIGENVALUE * values[order[0]]]
        settings = {"inputs": count, "cells": cells}
        FeatureMap.__init__(self, "", None, origin=origin or Origin.public(features), settings=settings)
        self.cells = cells
        self.register_buffer("mean", mean.float())
        self.register_buffer("eigenvalues", values[order])
        self.register_buffer("basis", along.float())  # (channels, directions)
        self.register_buffer("across", across.float())  # (cells, directions)
        self.register_buffer("order", order)  # the product of directions a of the cells, b of the channels: a * C + b
        self._set(k, lam)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the scaled coordinates of each record, with unit norm."""
        if inputs.ndim != 2 or inputs.shape[1] != len(self.mean):
            shape = tuple(inputs.shape)
            raise DataError("a batch of features", f"has shape {shape}", f"this map takes (B, {len(self.mean)})")
        order, channels = self.order[: self.k], len(self.basis)
        used = int((order % channels).max()) + 1  # later directions of the channels occur in no product
        rows = (inputs.float() - self.mean).unflatten(1, (self.cells, channels)) @ self.basis[:, :used]
        coordinates = (self.across.T @ rows).flatten(1)[:, order // channels * used + order % channels]
        first = self.eigenvalues[: self.k]
        scale = (first + self.lam * self.eigenvalues[0]).rsqrt() * self.eigenvalues[0].sqrt()  # at most lam^(-1/2)
        return unit_norm(coordinates * scale.float())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Store the used products of directions alone."""
        FeatureMap._save_to_state_dict(self, destination, prefix, keep_vars)
        for name in ("eigenvalues", "order"):
            destination[f"{prefix}{name}"] = getattr(self, name)[: self.k].clone()

    def _set(self, k: int | None, lam: float) -> None:
        super()._set(k, lam)
        self.name = f"{self.name}, the same in each of {self.cells} cells"


def _products(features: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean, the directions of the channels and of the cells, and the variance along their products."""
    mean = features.float().mean(0)
    rows = (features.float() - mean).unflatten(1, (cells, -1))  # (N, cells, channels)
    if not rows.square().mean() > 1e-12 * features.float().square().mean():
        raise DataError("the public features", "are the same for every record", "give public records that differ")
    flat = rows.flatten(0, 1)
    values, along = (part.flip(-1) for part in torch.linalg.eigh((flat.T @ flat).double() / len(flat)))
    along = with_signs(along)
    rows = rows @ along.float()
    count = int((values[:LEADING] > SMALLEST_EIGENVALUE * values[0]).sum())
    leading = rows[:, :, :count] / values[:count].sqrt().float()  # each direction counts equally
    covariance = torch.einsum("nac,nbc->ab", leading, leading).double()
    across = with_signs(torch.linalg.eigh(covariance)[1].flip(1))
    variances = (across.float().T @ rows).square().mean(0)
    return mean, along, across, variances.flatten().double()
