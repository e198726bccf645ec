"""The subspace of a round: made by the server, made again by each client, and compared."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnomon.federated.refusal import Refused
from gnomon.release import SeededNoise
from gnomon.subspaces import Basis, StepContext, Subspace
from gnomon.updates import Loss

PROBES = 16
"""How many numbers a fingerprint has."""

TOLERANCE = 2e-2
"""How far two machines' bases may be apart. Rounding gives up to 5e-3 where eigenvalues lie close together (other
kernels on the same weights, along training); a turned sign gives several times this, another basis about 1."""


class _Made(NamedTuple):
    """The last basis of this process, and all that it was made of."""

    space: Subspace
    loss: Loss
    numbers: tuple[int, int, int]
    weights: dict[str, Tensor]
    basis: Basis

    def same(self, space: Subspace, loss: Loss, numbers: tuple[int, int, int], weights: dict[str, Tensor]) -> bool:
        alike = self.space is space and self.loss is loss and self.numbers == numbers
        return alike and all(torch.equal(value, self.weights[name]) for name, value in weights.items())


_last: list[_Made] = []
_print: list[tuple[Basis, Tensor]] = []


def round_basis(space: Subspace, model: nn.Module, loss: Loss, number: int, rounds: int, seed: int) -> Basis:
    """The basis of a round, from the weights in the model, public records and a public seed.

    Clients in one process that have the same subspace object and the same weights share the result.

    >>> from gnomon.subspaces import Ambient
    >>> round_basis(Ambient(), nn.Linear(2, 1), nn.MSELoss(reduction="none"), 0, 10, seed=1).like["weight"].shape
    torch.Size([1, 2])
    """
    context = StepContext(model, loss, number, 1, rounds, SeededNoise(seed))
    weights, numbers = context.like, (number, rounds, seed)
    if not (_last and _last[0].same(space, loss, numbers, weights)):
        kept = {name: value.clone() for name, value in weights.items()}
        _last[:] = [_Made(space, loss, numbers, kept, space.basis(context))]
    return _last[0].basis


def fingerprint(basis: Basis) -> Tensor:
    """A few numbers that tell whether two machines mean the same vector by the same coordinates.

    A fixed vector of coordinates is lifted and seen from fixed random directions, so every basis vector, its sign
    and its place count. It is scaled to compare with `TOLERANCE`, whatever the sizes.

    >>> from gnomon.subspaces.basis import AmbientBasis
    >>> fingerprint(AmbientBasis({"weight": torch.zeros(3)})).shape
    torch.Size([16])
    """
    random = SeededNoise(20240229)
    vector = {}
    for name, like in basis.like.items():
        values = 1.0 + random.uniform(like.numel())
        vector[name] = values.reshape(like.shape).to(like)
    total = torch.zeros(PROBES, dtype=torch.float64)
    square = 0.0
    for value in basis.lift(vector).values():
        flat = value.detach().double().cpu().flatten()
        square += float(flat.square().sum())
        for probe in range(PROBES):
            total[probe] += random.normal(len(flat)) @ flat
    return (total / max(square, 1e-300) ** 0.5).float()


def shared_fingerprint(basis: Basis) -> Tensor:
    """The same, worked out once for a basis that server and clients of one process share.

    >>> from gnomon.subspaces.basis import AmbientBasis
    >>> basis = AmbientBasis({"weight": torch.zeros(3)})
    >>> torch.equal(shared_fingerprint(basis), fingerprint(basis))
    True
    """
    if not (_print and _print[0][0] is basis):
        _print[:] = [(basis, fingerprint(basis))]
    return _print[0][1].clone()


def check_fingerprint(basis: Basis, expected: Tensor) -> None:
    """Refuses to train in a subspace that is not the server's: the coordinates would mean something else."""
    apart = (
        float((shared_fingerprint(basis) - expected.cpu()).abs().max()) if expected.shape == (PROBES,) else float("inf")
    )
    if not apart <= TOLERANCE:
        raise Refused(
            "basis", f"the rebuilt basis is {apart:.2g} away from the server's; at most {TOLERANCE:g} is allowed"
        )
