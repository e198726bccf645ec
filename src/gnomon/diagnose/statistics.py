"""Everything a set of updates says about itself, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnomon.diagnose.clipping import bias, length
from gnomon.diagnose.cloud import cloud, spread
from gnomon.diagnose.overlap import energy_inside
from gnomon.diagnose.spectrum import components, gap, gram, spectrum
from gnomon.release import Admitted
from gnomon.subspaces import Basis
from gnomon.subspaces.eigenspace import SharedBasis, TensorBases
from gnomon.updates import Updates

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN = 60
"""How many eigenvalues are kept unless told otherwise."""


@dataclass(frozen=True)
class Sitter:
    """Updates, how they were clipped, and what becomes of their clipped sum."""

    updates: Updates
    admitted: Admitted
    seen: Updates
    """In the coordinates in which they were clipped."""
    lift: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """From a sum of them to what the model would get without noise."""
    basis: Basis | None
    """The subspace into which they are projected to be looked at, if any; orthonormal."""
    public: SharedBasis | TensorBases | None
    """The public subspace that is to hold their energy, if any."""

    def select(self, index: Tensor) -> Sitter:
        """Some of the samples."""
        return dataclasses.replace(
            self,
            updates=self.updates.select(index),
            seen=self.seen.select(index),
            admitted=self.admitted.select(index),
        )


def portrait(
    sitter: Sitter, *, bound: float, unit: float, rank: int, records: int, shown: int = SHOWN
) -> tuple[dict[str, Any], float]:
    """The statistics of some updates, and the length of their clipped mean as the model would get it without noise.

    Spectrum and cloud look at no more than `records` of them. Samples that are not finite are left out, as by the door.
    """
    sitter = sitter.select(torch.isfinite(sitter.updates.norms()).nonzero().squeeze(1))
    updates, weights = sitter.updates, sitter.admitted.weights
    if not len(updates):
        return {}, 0.0
    true = updates.weighted_sum(torch.full_like(updates.losses, 1 / len(updates)))
    wide = weights if weights.shape[1] == len(sitter.seen.leaves) else weights.squeeze(1)
    clipped = sitter.lift(sitter.seen.weighted_sum(wide / len(updates)))
    few = updates.select(spread(len(updates), records))
    values = spectrum(gram(few))
    lengths = sitter.admitted.norms.square().sum(1).sqrt()
    off = bias(clipped, true)
    record: dict[str, Any] = {
        "spectrum": values[:shown].tolist(),
        "gap": gap(values, rank),
        "gap/rank": rank,
        "components": components(true),
        "norms": quantiles(updates.norms()),
        "norms/mean": float(updates.norms().mean()),
        "clipped": float(sitter.admitted.clipped.double().mean()),
        "incremental": float((lengths - bound).clamp_min(0).mean()) / unit,
        "bias/cosine": off.cosine,
        "bias/ratio": off.ratio,
        "cloud": cloud(few, sitter.basis),
    }
    if sitter.basis is not None:
        inside = sitter.basis.coordinates(updates)
        record["norms_projected"] = quantiles(inside.norms())
        record["norms_projected/mean"] = float(inside.norms().mean())
    if sitter.public is not None:
        seen = inside if sitter.public is sitter.basis else sitter.public.coordinates(updates)
        record["energy"] = quantiles(energy_inside(seen, updates))
        record["energy/rank"] = sitter.public.rank
    return record, length(clipped)


def quantiles(values: Tensor) -> list[float]:
    """The 5, 25, 50, 75 and 95 % quantiles.

    >>> quantiles(torch.arange(101.0))
    [5.0, 25.0, 50.0, 75.0, 95.0]
    """
    finite = values[torch.isfinite(values)].double()
    if not len(finite):
        return []
    return torch.quantile(finite, torch.tensor(QUANTILES, dtype=torch.float64, device=finite.device)).tolist()
