"""The subspace basis of a round, which server and clients build independently and compare by fingerprint."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnomon.federated.refusal import Refused
from gnomon.release import SeededNoise
from gnomon.subspaces import Basis, StepContext, Subspace
from gnomon.updates import Loss

PROBES = 16
"""The number of entries of a fingerprint."""

TOLERANCE = 2e-2
"""The largest difference between the fingerprints of two machines. Rounding (other kernels on the same weights) causes
differences up to 5e-3 where eigenvalues lie close together; a flipped sign causes several times the tolerance, and
another basis a difference of about 1."""


def round_basis(subspace: Subspace, model: nn.Module, loss: Loss, number: int, rounds: int, seed: int) -> Basis:
    """Build the basis of round `number` from the model's weights, public records and a public seed.

    >>> from gnomon.subspaces import Ambient
    >>> round_basis(Ambient(), nn.Linear(2, 1), nn.MSELoss(reduction="none"), 0, 10, seed=1).like["weight"].shape
    torch.Size([1, 2])
    """
    return subspace.basis(StepContext(model, loss, number, 1, rounds, SeededNoise(seed)))


def fingerprint(basis: Basis) -> Tensor:
    """Return a few numbers by which two machines can tell whether they built the same basis.

    A fixed vector of coordinates is lifted and projected on fixed random directions, so that every basis vector, its
    sign and its position count. The result is scaled so that `TOLERANCE` applies to vectors of any length.

    >>> from gnomon.subspaces.basis import AmbientBasis
    >>> fingerprint(AmbientBasis({"weight": torch.zeros(3)})).shape
    torch.Size([16])
    """
    random = SeededNoise(20240229)
    coordinates = {}
    for name, like in basis.like.items():
        values = 1.0 + random.uniform(like.numel())
        coordinates[name] = values.reshape(like.shape).to(like)
    projections = torch.zeros(PROBES, dtype=torch.float64)
    squared_norm = 0.0
    for value in basis.lift(coordinates).values():
        flat = value.detach().double().cpu().flatten()
        squared_norm += float(flat.square().sum())
        for probe in range(PROBES):
            projections[probe] += random.normal(len(flat)) @ flat
    return (projections / max(squared_norm, 1e-300) ** 0.5).float()


class _Entry(NamedTuple):
    """The basis that a `BasisCache` holds, and everything that it was built from."""

    subspace: Subspace
    loss: Loss
    numbers: tuple[int, int, int]
    weights: dict[str, Tensor]
    basis: Basis

    def matches(
        self, subspace: Subspace, loss: Loss, numbers: tuple[int, int, int], weights: dict[str, Tensor]
    ) -> bool:
        same = self.subspace is subspace and self.loss is loss and self.numbers == numbers
        same = same and self.weights.keys() == weights.keys()
        return same and all(torch.equal(value, self.weights[name]) for name, value in weights.items())


class BasisCache:
    """Builds round bases and keeps the latest one with its fingerprint.

    A server and the clients of one process may share a cache. The basis is reused only if the subspace object, the
    loss, the round, the seed and all weights are the same.

    >>> from gnomon.subspaces import Ambient
    >>> cache, model, space, loss = BasisCache(), nn.Linear(2, 1), Ambient(), nn.MSELoss(reduction="none")
    >>> cache.round_basis(space, model, loss, 1, 10, seed=1) is cache.round_basis(space, model, loss, 1, 10, seed=1)
    True
    """

    def __init__(self) -> None:
        self._entry: _Entry | None = None
        self._fingerprint: tuple[Basis, Tensor] | None = None

    def round_basis(
        self, subspace: Subspace, model: nn.Module, loss: Loss, number: int, rounds: int, seed: int
    ) -> Basis:
        """Return the basis that `round_basis` builds."""
        numbers = (number, rounds, seed)
        weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        if self._entry is None or not self._entry.matches(subspace, loss, numbers, weights):
            copies = {name: value.clone() for name, value in weights.items()}
            basis = round_basis(subspace, model, loss, number, rounds, seed)
            self._entry = _Entry(subspace, loss, numbers, copies, basis)
        return self._entry.basis

    def fingerprint(self, basis: Basis) -> Tensor:
        """Return the fingerprint of a basis.

        >>> from gnomon.subspaces.basis import AmbientBasis
        >>> basis = AmbientBasis({"weight": torch.zeros(3)})
        >>> torch.equal(BasisCache().fingerprint(basis), fingerprint(basis))
        True
        """
        if self._fingerprint is None or self._fingerprint[0] is not basis:
            self._fingerprint = (basis, fingerprint(basis))
        return self._fingerprint[1].clone()

    def check_fingerprint(self, basis: Basis, expected: Tensor) -> None:
        """Check that a client's basis is the server's; in another basis the uploaded coordinates have no meaning.

        Raises:
            Refused: the fingerprint differs from `expected` by more than `TOLERANCE`.
        """
        difference = float("inf")
        if expected.shape == (PROBES,):
            difference = float((self.fingerprint(basis) - expected.cpu()).abs().max())
        if not difference <= TOLERANCE:  # also if it is not a number
            raise Refused("basis", f"the fingerprints differ by {difference:.2g}, more than {TOLERANCE:g}")
