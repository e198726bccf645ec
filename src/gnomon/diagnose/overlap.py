"""How two subspaces, or a gradient and a subspace, lie to each other.

A subspace is a Gram matrix and a mixing U (see `subspaces.eigenspace`): `V = H^T U`. Overlaps of two of them are
`V^T V' = U^T (H H'^T) U'`, so no basis vector is ever formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnomon.updates import Updates


def angles(overlap: Tensor) -> Tensor:
    """Principal angles in degrees, smallest first, from the k x k' inner products of two orthonormal bases.

    >>> angles(torch.tensor([[1.0, 0.0], [0.0, 0.5]])).round()
    tensor([ 0., 60.])
    """
    values = torch.linalg.svdvals(overlap).clamp(0, 1)
    return torch.rad2deg(torch.arccos(values))


def skew(overlap: Tensor) -> tuple[float, float]:
    """`|V V^T - V' V'^T|` in the spectral norm, and in the Frobenius norm with 1 for subspaces at right angles.

    >>> skew(torch.eye(2)), skew(torch.zeros(2, 2))
    ((0.0, 0.0), (1.0, 1.0))
    >>> skew(torch.zeros(0, 0))
    (0.0, 0.0)
    """
    ours, theirs = overlap.shape
    if ours + theirs == 0:  # no gradients, no directions: nothing differs
        return 0.0, 0.0
    values = torch.linalg.svdvals(overlap).clamp(0, 1)
    spectral = 1.0 if ours != theirs else float((1 - values[-1] ** 2).clamp_min(0).sqrt())
    frobenius = (ours + theirs - 2 * float(values.square().sum())) / (ours + theirs)
    return spectral, max(0.0, frobenius) ** 0.5


def energy_inside(inside: Updates, updates: Updates) -> Tensor:
    """The share of each update's squared length that its coordinates in a subspace keep, (B,).

    >>> from gnomon.updates import Dense
    >>> whole = Updates({"w": Dense(torch.tensor([[3.0, 4.0]]))}, torch.zeros(1))
    >>> energy_inside(Updates({"c": Dense(torch.tensor([[3.0]]))}, torch.zeros(1)), whole)
    tensor([0.3600], dtype=torch.float64)
    """
    return (inside.norms() / updates.norms().clamp_min(1e-300)).square()
