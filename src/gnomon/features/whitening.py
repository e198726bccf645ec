"""Whitening of features by the principal components of public features."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor

from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import FeatureMap, Origin, unit_norm
from gnomon.text import counted
from gnomon.validate import non_negative, whole

SMALLEST_EIGENVALUE = 1e-9
"""Directions with a smaller share of the largest eigenvalue are rounding errors and do not count towards the rank."""

SMALLEST_LAM = 1e-6
"""The smallest lam: a smaller one would scale rounding errors up to the size of features."""


class PublicWhitening(FeatureMap):
    """Project features onto the first k principal directions of public features, and scale the directions alike.

    The features are centred by the public mean, direction i is scaled by (e_i + lam e_0)^(-1/2), where e_0 is the
    largest eigenvalue of the covariance of the public features, and the result is scaled to norm one. With small lam
    all directions count equally; with large lam this is a PCA.

    Args:
        features_of_public: (N, d) features of the public records, preferably with augmented copies.
        k: the number of directions; None for all. More than the rank are reduced to the rank, as `notes` says.
        lam: the regularisation, relative to the largest eigenvalue.
        origin: the origin of the features, such as `feature_map.origin | Origin.public(images)`. By default, the
            rows of `features_of_public` count as the public records; then shared records are only found among
            features, not among the records they came from.

    Raises:
        DataError: there are fewer than two rows, or they are all alike or not finite.

    >>> public = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 21)
    >>> whitening = PublicWhitening(public, k=5, lam=0.1)
    >>> whitening(torch.randn(3, 20)).shape, whitening.rank, round(whitening.effective_dimension, 1)
    (torch.Size([3, 5]), 20, 4.3)
    >>> whitening.with_(k=100).notes
    ('k = 100 was reduced to 20, the rank of the public features',)
    """

    mean: Tensor
    basis: Tensor
    eigenvalues: Tensor
    """All eigenvalues of the covariance of the public features up to the rank, in descending order, in float64."""

    def __init__(
        self, features_of_public: Tensor, k: int | None = None, lam: float = 0.1, *, origin: Origin | None = None
    ) -> None:
        features = checked_features(features_of_public)
        mean, values, basis = _decomposition(features)
        super().__init__("", None, origin=origin or Origin.public(features), settings={"inputs": features.shape[1]})
        self.register_buffer("mean", mean.float())
        self.register_buffer("eigenvalues", values)
        self.register_buffer("basis", basis.float())  # (d, rank)
        self._set(k, lam)

    def with_(self, k: int | None = None, lam: float | None = None) -> Self:
        """Return the map with another k or lam, without another decomposition; what is None stays as it is."""
        changed = copy.copy(self)
        changed._buffers, changed.settings = dict(self._buffers), dict(self.settings)
        changed._set(self.k if k is None else k, self.lam if lam is None else lam)
        return changed

    @property
    def rank(self) -> int:
        """The number of directions in which the public features vary."""
        return len(self.eigenvalues)

    @property
    def effective_dimension(self) -> float:
        """The sum of e / (e + lam e_0) over the first k eigenvalues."""
        first = self.eigenvalues[: self.k]
        return float((first / (first + self.lam * self.eigenvalues[0])).sum())

    def features(self, inputs: Tensor) -> Tensor:
        """Return the scaled coordinates of each record, with unit norm."""
        if inputs.ndim != 2 or inputs.shape[1] != len(self.mean):
            shape = tuple(inputs.shape)
            raise DataError("a batch of features", f"has shape {shape}", f"this map takes (B, {len(self.mean)})")
        coordinates = (inputs.float() - self.mean) @ self.basis[:, : self.k]
        first = self.eigenvalues[: self.k]
        scale = (first + self.lam * self.eigenvalues[0]).rsqrt() * self.eigenvalues[0].sqrt()  # at most lam^(-1/2)
        return unit_norm(coordinates * scale.float())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Store the used directions alone: all of them are many times as large."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}eigenvalues"] = self.eigenvalues[: self.k].clone()
        if len(self.basis.T) > self.k:
            destination[f"{prefix}basis"] = self.basis[:, : self.k].clone()

    def _set(self, k: int | None, lam: float) -> None:
        wanted = self.rank if k is None else whole("k", k)
        self.lam = non_negative("lam", lam)
        if self.lam < SMALLEST_LAM:
            raise SettingError("lam", lam, f"a number of at least {SMALLEST_LAM:g}")
        self.k = min(wanted, self.rank)
        reduced = f"k = {wanted} was reduced to {self.k}, the rank of the public features"
        self.notes = (reduced,) if wanted > self.rank else ()
        self.settings |= {"k": self.k, "lam": self.lam}
        self._dimension = self.k
        self.name = f"whitening by {counted(self.k, 'public direction')}, lam = {self.lam:.4g}"
        if self.notes:
            self.name += f" ({self.notes[0]})"


def checked_features(features: Any) -> Tensor:
    """Return public features, (N, d), or raise a DataError that says what is wrong with them.

    >>> checked_features(torch.eye(3)).shape
    torch.Size([3, 3])
    """
    subject = "the public features"
    if not isinstance(features, Tensor) or features.ndim != 2 or not features.shape[1]:
        got = f"have shape {tuple(features.shape)}" if isinstance(features, Tensor) else f"are {type(features)}"
        raise DataError(subject, got, "give a tensor (N, d), for example gnomon.features.compute(map, public)")
    if len(features) < 2:
        raise DataError(subject, f"are of {counted(len(features), 'record')}", "give at least 2, better 100 or more")
    bad = ~features.isfinite().all(1)
    if bad.any():
        raise DataError(subject, f"are not finite in row {int(bad.nonzero()[0])}", "remove that public record")
    return features.detach()


def _decomposition(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, the eigenvalues of the covariance and its eigenvectors, (d, rank), in float64."""
    rows = features.double()
    mean = rows.mean(0)
    rows = rows - mean
    count, dimension = rows.shape
    if count < dimension:  # the Gram matrix has the same eigenvalues
        values, vectors = torch.linalg.eigh(rows @ rows.T / count)
    else:
        values, vectors = torch.linalg.eigh(rows.T @ rows / count)
    values, vectors = values.flip(0), vectors.flip(1)
    scale = features.double().square().mean()
    rank = int((values > SMALLEST_EIGENVALUE * values[0]).sum())
    if not rank or values[0] <= 1e-12 * scale:
        raise DataError("the public features", "are the same for every record", "give public records that differ")
    values, vectors = values[:rank], vectors[:, :rank]
    vectors = vectors if count >= dimension else rows.T @ vectors / (values * count).sqrt()
    return mean, values, with_signs(vectors)


def with_signs(vectors: Tensor) -> Tensor:
    """Return eigenvectors whose largest entries are positive; libraries differ in the signs that they return.

    >>> with_signs(torch.tensor([[0.6, 0.8], [-0.8, 0.6]]))
    tensor([[-0.6000,  0.8000],
            [ 0.8000,  0.6000]])
    """
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return vectors * torch.where(largest < 0, -1.0, 1.0).to(vectors.dtype)
