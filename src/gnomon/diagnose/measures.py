"""How gradients spread over directions and over parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gnomon.updates import Updates


def gram(updates: Updates) -> Tensor:
    """Inner products among the samples in float64, (B, B): what every spectrum here is computed from.

    >>> from gnomon.updates import Dense
    >>> gram(Updates({"w": Dense(torch.eye(2) * 2)}, torch.zeros(2)))
    tensor([[4., 0.],
            [0., 4.]], dtype=torch.float64)
    """
    return torch.stack([leaf.self_gram() for leaf in updates.leaves.values()]).sum(0)


def spectrum(inner: Tensor) -> Tensor:
    """Eigenvalues of the second context `1/B sum_i g_i g_i^T`, largest first, from the Gram matrix of B gradients.

    It has the eigenvalues of the p x p matrix that are not zero.

    >>> spectrum(torch.diag(torch.tensor([2.0, 6.0])))
    tensor([3., 1.])
    """
    return torch.linalg.eigvalsh(inner / max(1, len(inner))).flip(0).clamp_min(0)


def gap(values: Tensor, rank: int) -> float:
    """The eigen-gap behind the first `rank` eigenvalues, in units of the largest: small means that they are arbitrary.

    >>> gap(torch.tensor([4.0, 2.0, 1.0]), 2)
    0.25

    So many gradients have so many eigenvalues; the next one is zero.

    >>> gap(torch.tensor([4.0, 2.0, 1.0]), 3)
    0.25
    """
    if rank > len(values) or float(values[0]) == 0:
        return 0.0
    following = values[rank] if rank < len(values) else 0.0
    return float((values[rank - 1] - following) / values[0])


def components(vector: Mapping[str, Tensor], points: int = 40) -> list[list[float]]:
    """The magnitudes of a gradient's components sorted, as [rank, magnitude] at ranks that grow by a constant factor.

    >>> components({"w": torch.tensor([1.0, -3.0, 2.0])})
    [[1, 3.0], [2, 2.0], [3, 1.0]]
    """
    sizes = torch.cat([value.flatten() for value in vector.values()]).abs().double()
    order = sizes.sort(descending=True).values
    ranks = torch.logspace(0, torch.tensor(float(len(order))).log10().item(), points).round().long()
    return [[int(rank), float(order[rank - 1])] for rank in ranks.clamp(1, len(order)).unique()]
