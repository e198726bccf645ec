"""The coordinates in which the auditor observes a step: those in which the noise of a release is white.

A step changes the weights by `L y`, where y is the released vector, with independent noise in every coordinate, and L
is the public linear map that lifts it to the parameters. With the singular value decomposition `L = A S B^T` the
auditor multiplies the change by `S^-1 A^T`. The noise is white in the resulting coordinates as well, and the distance
between two data sets there decides how well they can be told apart. No noise covers a change outside the range of L.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnomon.clipping import ClipRule
from gnomon.errors import SettingError
from gnomon.methods import Method
from gnomon.release import SeededNoise
from gnomon.subspaces import Basis, StepContext, Subspace

MAX_MATRIX_SIZE = 2**25
"""Largest number of entries of the matrix L: 256 MiB in float64."""

LEAST_SINGULAR_VALUE = 1e-5
"""Singular values of L below this fraction of the largest are treated as rounding errors."""


@dataclass(frozen=True, eq=False)
class FrozenSubspace(Subspace):
    """A subspace as it is at one step of a run, with repeatable public randomness.

    Each audited copy of the Trainer computes its own basis, so a basis that depends on private records is detected.
    """

    inner: Subspace
    step: int
    steps_per_epoch: int
    steps: int
    seed: int = 0

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def public(self) -> Any:
        return self.inner.public

    @property
    def requires_clipped_coordinates(self) -> bool:
        return self.inner.requires_clipped_coordinates

    def clip_rule(self, rule: ClipRule) -> ClipRule:
        return self.inner.clip_rule(rule)

    def key(self, context: StepContext) -> Hashable:
        return 0

    def basis(self, context: StepContext) -> Basis:
        return self.inner.basis(
            dataclasses.replace(
                context,
                step=self.step,
                steps_per_epoch=self.steps_per_epoch,
                steps=self.steps,
                randomness=SeededNoise(self.seed),
            )
        )


class Whitening:
    """The map from changes of the weights to coordinates in which the noise of a step is white.

    Args:
        method: the method whose release is observed; its subspace must not depend on private records.
        context: the model and the step.

    Raises:
        SettingError: the matrix of the map would exceed `MAX_MATRIX_SIZE` entries.

    >>> from torch import nn
    >>> from gnomon.methods import dp_sgd
    >>> context = StepContext(nn.Linear(2, 1), nn.MSELoss(reduction="none"), 0, 1, 1, SeededNoise(0))
    >>> whitening = Whitening(dp_sgd(), context)
    >>> whitening.size, whitening.uncovered_norms(torch.ones(4, 3))
    (3, tensor([0., 0., 0., 0.]))
    """

    def __init__(self, method: Method, context: StepContext) -> None:
        self._basis = method.subspace.basis(context)
        self.parameters = sum(p.numel() for p in context.like.values())
        self._identity = self._basis.is_identity
        self.tensor_sizes: dict[str, int] = {}
        """Number of consecutive coordinates of each parameter tensor; empty if the subspace mixes tensors."""
        if self._identity:
            self.size = self.parameters
            self.tensor_sizes = {name: p.numel() for name, p in context.like.items()}
            return
        count = sum(value.numel() for value in self._basis.like.values())
        if count * self.parameters > MAX_MATRIX_SIZE:
            raise SettingError.with_message(
                f"a model of {self.parameters} parameters with a subspace of {count} dimensions is too large to audit; "
                "use a smaller model or a smaller rank: the step runs the same code",
                name="model",
            )
        columns = [flatten(self._basis.lift(unit)) for unit in unit_vectors(self._basis.like)]
        left, values, _ = torch.linalg.svd(torch.stack(columns, 1), full_matrices=False)
        significant = values > LEAST_SINGULAR_VALUE * values[0]
        self._directions, scales = left[:, significant], values[significant]
        self._scales = scales**method.route.noise_scale_power
        self.size = len(scales)

    def __call__(self, changes: Tensor) -> Tensor:
        """Return changes of all parameters, (N, p), in white coordinates, (N, size)."""
        return changes if self._identity else changes @ self._directions / self._scales

    def uncovered_norms(self, changes: Tensor) -> Tensor:
        """Return the norm of the part of each change that no noise covers, (N,)."""
        if self._identity:
            return changes.new_zeros(len(changes))
        return (changes - changes @ self._directions @ self._directions.T).norm(dim=1)

    def directions(self) -> Iterator[Tensor]:
        """Yield unit vectors in parameter space, each the lift of one coordinate in every block of a release.

        Every block contributes a coordinate, so that clip rules that clip each block separately reach their bound.
        """
        blocks = self._basis.like
        for index in range(max(value.numel() for value in blocks.values())):
            units = {name: unit_vector(value, index) for name, value in blocks.items()}
            lifted = flatten(self._basis.lift(units))
            if float(lifted.norm()) > 0:
                yield lifted / lifted.norm()


def flatten(vector: Mapping[str, Tensor]) -> Tensor:
    """Return a vector given by parameter as one tensor in float64.

    >>> flatten({"a": torch.ones(1, 2), "b": torch.zeros(1)})
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    return torch.cat([value.detach().cpu().flatten().double() for value in vector.values()])


def unit_vector(like: Tensor, index: int) -> Tensor:
    """Return a tensor of zeros with a one at `index`; all zeros if the index is out of range.

    >>> unit_vector(torch.zeros(2, 2), 3), unit_vector(torch.zeros(2), 3)
    (tensor([[0., 0.],
            [0., 1.]]), tensor([0., 0.]))
    """
    vector = torch.zeros_like(like)
    if index < vector.numel():
        vector.view(-1)[index] = 1
    return vector


def unit_vectors(like: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield every unit vector of a space of named tensors."""
    for chosen, chosen_like in like.items():
        for index in range(chosen_like.numel()):
            yield {name: unit_vector(value, index if name == chosen else value.numel()) for name, value in like.items()}
