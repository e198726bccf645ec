"""Gradients as points in a plane."""

from __future__ import annotations

import torch

from gnomon.subspaces import Basis
from gnomon.updates import Dense, Updates


def cloud(updates: Updates, basis: Basis | None = None, points: int = 100) -> dict[str, list[list[float]]]:
    """Up to so many updates in a random plane of all parameters, and what is left of them in a subspace.

    Both are seen in the same plane: the projected update's coordinate is `<V V^T g, r> = <V^T g, V^T r>`, for an
    orthonormal basis.

    >>> updates = Updates({"w": Dense(torch.eye(3))}, torch.zeros(3))
    >>> len(cloud(updates)["whole"]), len(cloud(updates)["whole"][0])
    (3, 2)
    """
    chosen = updates.select(spread(len(updates), points))
    generator = torch.Generator().manual_seed(0)  # the plane is for drawing, and the same at every step
    plane = Updates(
        {
            name: Dense(torch.randn(2, *leaf.shape, generator=generator).to(leaf.like))
            for name, leaf in updates.leaves.items()
        },
        updates.losses.new_zeros(2),
    )
    found = {"whole": chosen.gram(plane).tolist()}
    if basis is not None:
        found["projected"] = basis.coordinates(chosen).gram(basis.coordinates(plane)).tolist()
    return found


def spread(size: int, most: int) -> torch.Tensor:
    """At most so many positions, evenly spread.

    >>> spread(10, 3)
    tensor([0, 4, 9])
    """
    return torch.linspace(0, size - 1, min(size, most)).long() if size else torch.zeros(0, dtype=torch.long)
