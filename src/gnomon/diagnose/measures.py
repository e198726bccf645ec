"""Measures of gradients: their spectrum, the position of subspaces, the bias of clipping, and points to draw.

A subspace is represented by gradients H and a mixing matrix U (see `subspaces.eigenspace`): its basis is `V = H^T U`.
The inner products of two bases are `V^T V' = U^T (H H'^T) U'`, so no basis vector is ever formed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gnomon.subspaces import Basis
from gnomon.updates import Dense, Updates


def gram(updates: Updates) -> Tensor:
    """Return the inner products of all pairs of updates in float64, (B, B).

    >>> from gnomon.updates import Dense
    >>> gram(Updates({"w": Dense(torch.eye(2) * 2)}, torch.zeros(2)))
    tensor([[4., 0.],
            [0., 4.]], dtype=torch.float64)
    """
    return torch.stack([leaf.self_gram() for leaf in updates.leaves.values()]).sum(0)


def spectrum(inner: Tensor) -> Tensor:
    """Return the eigenvalues of the second moment `1/B sum_i g_i g_i^T`, largest first.

    They are computed from the Gram matrix of the B gradients, which has the same nonzero eigenvalues as the p x p
    matrix.

    >>> spectrum(torch.diag(torch.tensor([2.0, 6.0])))
    tensor([3., 1.])
    """
    return torch.linalg.eigvalsh(inner / max(1, len(inner))).flip(0).clamp_min(0)


def gap(values: Tensor, rank: int) -> float:
    """Return the gap between eigenvalues number `rank` and `rank + 1`, relative to the largest eigenvalue.

    If the gap is small, the choice of the leading `rank` directions is arbitrary.

    >>> gap(torch.tensor([4.0, 2.0, 1.0]), 2)
    0.25

    Eigenvalues beyond the number of gradients are zero.

    >>> gap(torch.tensor([4.0, 2.0, 1.0]), 3)
    0.25
    """
    if rank > len(values) or float(values[0]) == 0:
        return 0.0
    following = values[rank] if rank < len(values) else 0.0
    return float((values[rank - 1] - following) / values[0])


def components(vector: Mapping[str, Tensor], points: int = 40) -> list[list[float]]:
    """Return the sorted magnitudes of a gradient's components as [rank, magnitude], at geometrically spaced ranks.

    >>> components({"w": torch.tensor([1.0, -3.0, 2.0])})
    [[1, 3.0], [2, 2.0], [3, 1.0]]
    """
    magnitudes = torch.cat([value.flatten() for value in vector.values()]).abs().double()
    ordered = magnitudes.sort(descending=True).values
    ranks = torch.logspace(0, torch.tensor(float(len(ordered))).log10().item(), points).round().long()
    return [[int(rank), float(ordered[rank - 1])] for rank in ranks.clamp(1, len(ordered)).unique()]


def angles(overlap: Tensor) -> Tensor:
    """Return the principal angles in degrees, smallest first, from the k x k' inner products of orthonormal bases.

    >>> angles(torch.tensor([[1.0, 0.0], [0.0, 0.5]])).round()
    tensor([ 0., 60.])
    """
    cosines = torch.linalg.svdvals(overlap).clamp(0, 1)
    return torch.rad2deg(torch.arccos(cosines))


def skew(overlap: Tensor) -> tuple[float, float]:
    """Return the distance `|V V^T - V' V'^T|` of two subspaces in the spectral and in the scaled Frobenius norm.

    The Frobenius norm is scaled so that orthogonal subspaces have distance 1.

    >>> skew(torch.eye(2)), skew(torch.zeros(2, 2))
    ((0.0, 0.0), (1.0, 1.0))
    >>> skew(torch.zeros(0, 0))
    (0.0, 0.0)
    """
    rank, other_rank = overlap.shape
    if rank + other_rank == 0:  # two empty subspaces are equal
        return 0.0, 0.0
    cosines = torch.linalg.svdvals(overlap).clamp(0, 1)
    spectral = 1.0 if rank != other_rank else float((1 - cosines[-1] ** 2).clamp_min(0).sqrt())
    frobenius = (rank + other_rank - 2 * float(cosines.square().sum())) / (rank + other_rank)
    return spectral, max(0.0, frobenius) ** 0.5


def energy_inside(inside: Updates, updates: Updates) -> Tensor:
    """Return the fraction of each update's squared norm that its coordinates in a subspace retain, (B,).

    >>> from gnomon.updates import Dense
    >>> whole = Updates({"w": Dense(torch.tensor([[3.0, 4.0]]))}, torch.zeros(1))
    >>> energy_inside(Updates({"c": Dense(torch.tensor([[3.0]]))}, torch.zeros(1)), whole)
    tensor([0.3600], dtype=torch.float64)
    """
    return (inside.norms() / updates.norms().clamp_min(1e-300)).square()


class Bias(NamedTuple):
    """The bias of a clipped mean: its cosine with the unclipped mean, and the ratio of their norms."""

    cosine: float
    ratio: float


def bias(clipped: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> Bias:
    """Return the bias of a clipped mean with respect to the unclipped mean.

    >>> import torch
    >>> bias({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([2.0, 0.0])})
    Bias(cosine=1.0, ratio=0.5)
    """
    product = sum(float((clipped[name].double() * value.double()).sum()) for name, value in true.items())
    clipped_norm, true_norm = norm(clipped), norm(true)
    return Bias(product / max(clipped_norm * true_norm, 1e-300), clipped_norm / max(true_norm, 1e-300))


def norm(vector: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of a vector given by parameter.

    >>> import torch
    >>> norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    5.0
    """
    return float(sum(float(value.double().square().sum()) for value in vector.values()) ** 0.5)


def signal_to_noise(signal: float, deviation: float, dimensions: float) -> float:
    """Return the norm of the summed signal over the expected norm of its noise; infinite without noise.

    >>> signal_to_noise(10.0, 2.0, 25)
    1.0
    """
    noise = deviation * dimensions**0.5
    return signal / noise if noise > 0 else float("inf")


def cloud(updates: Updates, basis: Basis | None = None, points: int = 100) -> dict[str, list[list[float]]]:
    """Project up to `points` updates on a random plane of parameter space, before and after a projection.

    Both sets of points use the same plane: a coordinate of the projected update is
    `<V V^T g, r> = <V^T g, V^T r>`, for an orthonormal basis V.

    >>> updates = Updates({"w": Dense(torch.eye(3))}, torch.zeros(3))
    >>> len(cloud(updates)["whole"]), len(cloud(updates)["whole"][0])
    (3, 2)
    """
    chosen = updates.select(evenly_spaced(len(updates), points))
    generator = torch.Generator().manual_seed(0)  # the plane serves pictures, and is the same at every step
    plane = Updates(
        {
            name: Dense(torch.randn(2, *leaf.shape, generator=generator).to(leaf.like))
            for name, leaf in updates.leaves.items()
        },
        updates.losses.new_zeros(2),
    )
    coordinates = {"whole": chosen.gram(plane).tolist()}
    if basis is not None:
        coordinates["projected"] = basis.coordinates(chosen).gram(basis.coordinates(plane)).tolist()
    return coordinates


def evenly_spaced(size: int, most: int) -> Tensor:
    """Return at most `most` evenly spaced positions of a sequence of `size` elements.

    >>> evenly_spaced(10, 3)
    tensor([0, 4, 9])
    """
    return torch.linspace(0, size - 1, min(size, most)).long() if size else torch.zeros(0, dtype=torch.long)
