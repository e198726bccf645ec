"""Statistics of private steps, for the data holder only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnomon.release import Admitted

Metrics = dict[str, float | int]
"""Metrics by name."""

QUARTILES = {"q25": 0.25, "q50": 0.5, "q75": 0.75}


class StepMetrics:
    """Statistics of one step over its physical batches. None of them is protected.

    The incremental norm `max(0, |u_i| - C)` is by how much an update exceeded the clip bound. A sample whose update is
    not finite adds nothing to the step; `left_out` is the share of such samples, which no other statistic includes.

    Args:
        bound: the clip bound C.
        unit: the step size of local steps, by which incremental norms are divided so that methods are comparable.

    >>> metrics = StepMetrics(bound=1.0)
    >>> metrics.record()["unprotected/batch"]
    0
    """

    def __init__(self, bound: float, unit: float = 1.0) -> None:
        self.bound, self.unit = bound, unit
        self.losses = self.clipped = 0.0
        self.left_out = 0
        self.beyond: list[Tensor] = []

    def add(self, losses: Tensor, admitted: Admitted) -> None:
        """Add one physical batch: the losses of its records, and the norms and weights the door admitted them with."""
        lengths = admitted.norms.square().sum(1).sqrt()
        losses, clipped = losses.double(), admitted.clipped
        if not math.isfinite(float(lengths.sum())):  # a norm is not finite, or the sum overflowed
            counts = torch.isfinite(admitted.norms).all(1)
            self.left_out += int((~counts).sum())
            losses, clipped = losses[counts], clipped[counts]
        self.losses += float(losses.sum())
        self.clipped += int(clipped.sum())
        self.beyond.append((lengths - self.bound).clamp_min(0).div(self.unit).cpu())

    def record(self) -> Metrics:
        """Return all statistics, under names that begin with `unprotected/`."""
        beyond = torch.cat(self.beyond) if self.beyond else torch.zeros(0)
        drawn = len(beyond)
        count = drawn - self.left_out
        total = float(beyond.sum())
        if not math.isfinite(total):
            beyond = beyond[torch.isfinite(beyond)]
            total = float(beyond.sum())
        metrics: Metrics = {
            "unprotected/loss": self.losses / count if count else math.nan,
            "unprotected/clipped": self.clipped / count if count else math.nan,
            "unprotected/left_out": self.left_out / drawn if drawn else math.nan,
            "unprotected/batch": drawn,
        }
        if len(beyond):
            metrics["unprotected/incremental/mean"] = total / len(beyond)
            metrics["unprotected/incremental/std"] = float(beyond.std(correction=0))
            cuts = _quantiles(beyond, tuple(QUARTILES.values()))
            metrics |= {f"unprotected/incremental/{name}": cut for name, cut in zip(QUARTILES, cuts, strict=True)}
        return metrics


def _quantiles(values: Tensor, shares: Sequence[float]) -> list[float]:
    """Return what `torch.quantile` returns for finite values, which takes far longer for the few values of a step."""
    ordered = np.sort(values.numpy())
    quantiles = []
    for share in shares:
        rank = share * (len(ordered) - 1)
        low, high = float(ordered[math.floor(rank)]), float(ordered[math.ceil(rank)])
        weight = rank - math.floor(rank)
        quantiles.append(low + weight * (high - low) if weight < 0.5 else high - (1 - weight) * (high - low))
    return quantiles


def averaged(records: Sequence[Metrics]) -> Metrics:
    """Return the mean of each statistic over steps, without values that are not finite.

    >>> averaged([{"unprotected/loss": 1.0}, {"unprotected/loss": 3.0}, {"unprotected/loss": float("nan")}])
    {'unprotected/loss': 2.0}
    """
    names = dict.fromkeys(name for record in records for name in record)
    means: Metrics = {}
    for name in names:
        values = [float(record[name]) for record in records if name in record and math.isfinite(record[name])]
        means[name] = sum(values) / len(values) if values else math.nan
    return means
