"""The statistics of a set of updates, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnomon.diagnose.measures import bias, cloud, components, energy_inside, evenly_spaced, gap, gram, norm, spectrum
from gnomon.release import Admitted
from gnomon.subspaces import Basis
from gnomon.subspaces.eigenspace import SharedBasis, TensorBases
from gnomon.updates import Updates

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN = 60
"""Default number of eigenvalues in a record."""


@dataclass(frozen=True)
class ClippedUpdates:
    """Updates, the weights with which they were clipped, and the map from their clipped sum to the parameters."""

    updates: Updates
    admitted: Admitted
    coordinates: Updates
    """The updates in the coordinates in which they were clipped."""
    lift: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """Map from a sum in these coordinates to the change of the parameters, without noise."""
    projection: Basis | None
    """Orthonormal basis for norms after projection, if any."""
    public: SharedBasis | TensorBases | None
    """Subspace of public gradients for the share of energy inside it, if any."""

    def select(self, index: Tensor) -> ClippedUpdates:
        """Return a subset of the samples."""
        return dataclasses.replace(
            self,
            updates=self.updates.select(index),
            coordinates=self.coordinates.select(index),
            admitted=self.admitted.select(index),
        )


def update_statistics(
    batch: ClippedUpdates, *, bound: float, unit: float, rank: int, records: int, shown: int = SHOWN
) -> tuple[dict[str, Any], float]:
    """Return the statistics of a set of updates, and the norm of their clipped mean as it reaches the parameters.

    Samples with non-finite updates are left out, as the release leaves them out.

    Args:
        batch: the updates.
        bound: the clip bound.
        unit: the unit of the norms beyond the bound, such as the local step size.
        rank: the rank at which the eigengap is measured.
        records: the largest number of updates for the spectrum and the points.
        shown: the largest number of eigenvalues in the record.
    """
    batch = batch.select(torch.isfinite(batch.updates.norms()).nonzero().squeeze(1))
    updates, weights = batch.updates, batch.admitted.weights
    if not len(updates):
        return {}, 0.0
    true_mean = updates.weighted_sum(torch.full_like(updates.losses, 1 / len(updates)))
    leaf_weights = weights if weights.shape[1] == len(batch.coordinates.leaves) else weights.squeeze(1)
    clipped_mean = batch.lift(batch.coordinates.weighted_sum(leaf_weights / len(updates)))
    subset = updates.select(evenly_spaced(len(updates), records))
    eigenvalues = spectrum(gram(subset))
    clipped_norms = batch.admitted.norms.square().sum(1).sqrt()
    clipping_bias = bias(clipped_mean, true_mean)
    record: dict[str, Any] = {
        "spectrum": eigenvalues[:shown].tolist(),
        "gap": gap(eigenvalues, rank),
        "gap/rank": rank,
        "components": components(true_mean),
        "norms": quantiles(updates.norms()),
        "norms/mean": float(updates.norms().mean()),
        "clipped": float(batch.admitted.clipped.double().mean()),
        "incremental": float((clipped_norms - bound).clamp_min(0).mean()) / unit,
        "bias/cosine": clipping_bias.cosine,
        "bias/ratio": clipping_bias.ratio,
        "cloud": cloud(subset, batch.projection),
    }
    if batch.projection is not None:
        projected = batch.projection.coordinates(updates)
        record["norms_projected"] = quantiles(projected.norms())
        record["norms_projected/mean"] = float(projected.norms().mean())
    if batch.public is not None:
        inside = projected if batch.public is batch.projection else batch.public.coordinates(updates)
        record["energy"] = quantiles(energy_inside(inside, updates))
        record["energy/rank"] = batch.public.rank
    return record, norm(clipped_mean)


def quantiles(values: Tensor) -> list[float]:
    """Return the 5, 25, 50, 75 and 95 % quantiles of the finite values.

    >>> quantiles(torch.arange(101.0))
    [5.0, 25.0, 50.0, 75.0, 95.0]
    """
    finite = values[torch.isfinite(values)].double()
    if not len(finite):
        return []
    return torch.quantile(finite, torch.tensor(QUANTILES, dtype=torch.float64, device=finite.device)).tolist()
