"""Where an observer looks: the coordinates in which the noise of a step is white.

A step changes the weights by `L y`: y is what the door released, with independent noise in every coordinate, and L is
the public map that lifts it. With `L = A S B^T` the observer takes `S^-1 A^T` of the change: noise is white there too,
and distances between data sets are those that tell them apart. What lies outside the range of L has no noise on it.
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
from gnomon.subspaces.basis import AmbientBasis

MOST_NUMBERS = 2**25
"""How large a matrix L may be: a quarter of a gigabyte in float64."""

LEAST_SINGULAR_VALUE = 1e-5
"""Directions that L shortens more than this, relative to the longest, are rounding."""


@dataclass(frozen=True, eq=False)
class Still(Subspace):
    """A subspace as it is at one step of a run, with repeatable public randomness.

    Each Trainer makes its own basis, so that one that depends on private records shows.
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


class Observation:
    """White coordinates of changes of the weights, by the public map from releases to them.

    >>> from torch import nn
    >>> from gnomon.methods import dp_sgd
    >>> context = StepContext(nn.Linear(2, 1), nn.MSELoss(reduction="none"), 0, 1, 1, SeededNoise(0))
    >>> view = Observation(dp_sgd(), context)
    >>> view.size, view.outside(torch.ones(4, 3))
    (3, tensor([0., 0., 0., 0.]))
    """

    def __init__(self, method: Method, context: StepContext) -> None:
        self._basis = method.subspace.basis(context)
        self.parameters = sum(p.numel() for p in context.like.values())
        self._whole = isinstance(self._basis, AmbientBasis)
        self.tensors: dict[str, int] = {}
        """How many coordinates each tensor of the model has, one after another; empty where a subspace mixes them."""
        if self._whole:
            self.size = self.parameters
            self.tensors = {name: p.numel() for name, p in context.like.items()}
            return
        count = sum(value.numel() for value in self._basis.like.values())
        if count * self.parameters > MOST_NUMBERS:
            raise SettingError(
                "model",
                f"{self.parameters} parameters in {count} coordinates",
                "a smaller model, or a smaller rank, to audit this method: the step is the same code",
            )
        columns = [flat(self._basis.lift(unit)) for unit in units(self._basis.like)]
        left, values, _ = torch.linalg.svd(torch.stack(columns, 1), full_matrices=False)
        kept = values > LEAST_SINGULAR_VALUE * values[0]
        self._directions, scales = left[:, kept], values[kept]
        self._scales = scales**method.route.noise_scale_power
        self.size = len(scales)

    def __call__(self, rows: Tensor) -> Tensor:
        """Changes of all parameters, (N, p), in white coordinates, (N, size)."""
        return rows if self._whole else rows @ self._directions / self._scales

    def outside(self, rows: Tensor) -> Tensor:
        """How long the part of each change is that no noise covers, (N,)."""
        if self._whole:
            return rows.new_zeros(len(rows))
        return (rows - rows @ self._directions @ self._directions.T).norm(dim=1)

    def spikes(self) -> Iterator[Tensor]:
        """Unit vectors of parameters, each meant for one coordinate of every block of a release.

        Every block is touched, so that rules that clip block by block reach their bound as well.
        """
        blocks = self._basis.like
        for place in range(max(value.numel() for value in blocks.values())):
            one = {name: unit(value, place) for name, value in blocks.items()}
            lifted = flat(self._basis.lift(one))
            if float(lifted.norm()) > 0:
                yield lifted / lifted.norm()


def flat(vector: Mapping[str, Tensor]) -> Tensor:
    """A vector by parameter as one, in float64.

    >>> flat({"a": torch.ones(1, 2), "b": torch.zeros(1)})
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    return torch.cat([value.detach().cpu().flatten().double() for value in vector.values()])


def unit(like: Tensor, place: int) -> Tensor:
    """A tensor with one 1, or none if the place is beyond it.

    >>> unit(torch.zeros(2, 2), 3), unit(torch.zeros(2), 3)
    (tensor([[0., 0.],
            [0., 1.]]), tensor([0., 0.]))
    """
    found = torch.zeros_like(like)
    if place < found.numel():
        found.view(-1)[place] = 1
    return found


def units(like: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Every unit vector of a space of named tensors."""
    for chosen, value in like.items():
        for place in range(value.numel()):
            yield {name: unit(other, place if name == chosen else other.numel()) for name, other in like.items()}
