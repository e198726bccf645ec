"""The interfaces of subspaces and bases, and the two trivial subspaces: all parameters, and a basis that is held fixed.

A subspace is a rule that makes the basis of each step. A basis maps per-sample updates to coordinates, in which they
are clipped, and lifts a released vector of coordinates back to the parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.accounting import Expansion
from gnomon.clipping import ClipRule
from gnomon.constraints import Constraint
from gnomon.randomness import NoiseSource
from gnomon.updates import Dense, Layouts, Loss, Updates

COORDINATES = "coordinates"
"""The name of the single block of coordinates of a basis that mixes all parameters."""


@dataclass(frozen=True)
class StepContext:
    """The state of training from which a basis may be made. Nothing in it is private: the weights were released.

    Args:
        model: the model with its released weights.
        loss: the per-sample loss.
        step: the number of the step, from 0.
        steps_per_epoch: the number of steps in an epoch.
        steps: the planned number of steps.
        randomness: source of public randomness.

    >>> from gnomon.randomness import SeededNoise
    >>> context = StepContext(nn.Linear(2, 1), nn.MSELoss(reduction="none"), 0, 40, 3200, SeededNoise(0))
    >>> list(context.like)
    ['weight', 'bias']
    """

    model: nn.Module
    loss: Loss
    step: int
    steps_per_epoch: int
    steps: int
    randomness: NoiseSource
    layouts: Layouts = field(default_factory=Layouts, repr=False, compare=False)
    """The cache of model layouts of the run, which contains shapes only."""

    @property
    def like(self) -> dict[str, Tensor]:
        """The trainable parameters by name."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}


class Basis(ABC):
    """The map between parameters and coordinates in one step. A subclass defines `like`, `coordinates` and `lift`.

    A basis is made of public data, released weights and public randomness, so it may itself be published.
    """

    like: Mapping[str, Tensor]
    """A tensor of the shape, dtype and device of each block of coordinates, by name."""

    @property
    def rank(self) -> int | None:
        """The number of dimensions, for logs; None where it says nothing."""
        return None

    @abstractmethod
    def coordinates(self, updates: Updates) -> Updates:
        """Return the coordinates of each sample's update. Those of one sample may depend on that sample alone."""

    @abstractmethod
    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the change of the parameters that a vector of coordinates stands for."""

    def sketch_sum(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the coordinates of a sum of clipped updates, before noise is added; zero for zero.

        The subspace of a basis that overrides this states in `expansion` how far the map can stretch a change.

        >>> AmbientBasis({}).sketch_sum({})
        Traceback (most recent call last):
        NotImplementedError: AmbientBasis cannot sketch a sum before noise is added: use a GaussianSketch
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot sketch a sum before noise is added: use a GaussianSketch"
        )

    def extra(self, released: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the values by name that a release carries beside the update, such as the mean loss."""
        return {}

    def constrained_point(
        self,
        constraint: Constraint,
        weights: Tensor,
        displacement: Mapping[str, Tensor],
        accuracy: float,
        max_iterations: int,
    ) -> Tensor:
        """Return the point of a convex set whose coordinates fit a constrained step best.

        It minimises `|Phi w - (Phi weights + displacement)|` over the set, where Phi maps parameters to coordinates.
        Only bases of a subspace with `supports_constraints` can do this.

        Args:
            constraint: the convex set.
            weights: all trainable parameters in one vector, a point of the set.
            displacement: the unconstrained step in coordinates, in the shape of `like`.
            accuracy: the relative accuracy at which an iterative solver may stop.
            max_iterations: the number of iterations after which it stops in any case.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot take a constrained step: use Ambient() or a GaussianSketch"
        )


class Subspace(ABC):
    """The rule that makes the basis of each step. A subclass defines `name`, `key` and `basis`.

    A basis may depend on public data, released weights and public randomness alone. Training refuses public records
    that occur among the private records, so a subspace that uses records must declare them as `public`.
    """

    public: Any = None
    """The public records from which bases are made, or None."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The text used in statements and logs."""

    @property
    def whole_space(self) -> bool:
        """Whether the coordinates are the parameters themselves, so that no projection takes place."""
        return False

    @property
    def supports_constraints(self) -> bool:
        """Whether the bases implement `Basis.constrained_point`."""
        return False

    @property
    def sketches_sums(self) -> bool:
        """Whether the bases implement `Basis.sketch_sum`."""
        return False

    @property
    def requires_clipped_coordinates(self) -> bool:
        """Whether updates must be clipped in the coordinates, because `clip_rule` treats their blocks differently."""
        return False

    @property
    def expansion(self) -> Expansion | None:
        """The bound on how far `Basis.sketch_sum` stretches a change of a sum; None if there is none."""
        return None

    @abstractmethod
    def key(self, context: StepContext) -> Hashable:
        """Return a value that changes when a new basis is due."""

    @abstractmethod
    def basis(self, context: StepContext) -> Basis:
        """Return the basis of a step."""

    def clip_rule(self, rule: ClipRule) -> ClipRule:
        """Return the clip rule for the coordinates: `rule`, extended to the block structure of this subspace."""
        return rule


class AmbientBasis(Basis):
    """The basis in which coordinates are the parameters themselves."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self.like = like

    def coordinates(self, updates: Updates) -> Updates:
        return updates

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(vector)

    def constrained_point(
        self,
        constraint: Constraint,
        weights: Tensor,
        displacement: Mapping[str, Tensor],
        accuracy: float,
        max_iterations: int,
    ) -> Tensor:
        """Return the projection of the unconstrained step onto the set, which is exact."""
        return constraint.project(weights + torch.cat([displacement[name].flatten() for name in self.like]))


@dataclass(frozen=True)
class Ambient(Subspace):
    """No subspace: updates are clipped and noise is added in all p dimensions, as in DP-SGD.

    >>> Ambient().name
    'ambient'
    """

    name = "ambient"
    whole_space = True
    supports_constraints = True

    def key(self, context: StepContext) -> Hashable:
        return 0

    def basis(self, context: StepContext) -> Basis:
        return AmbientBasis(context.like)


@dataclass(frozen=True, eq=False)
class Held(Subspace):
    """A basis of another subspace, held fixed, for example for one round of federated training.

    Args:
        held: the basis.
        space: the subspace that made the basis; its clip rule and its public records are those of the basis.
        label: the name of the held subspace, for statements and logs.

    >>> Held(AmbientBasis({"weight": torch.zeros(2)}), Ambient(), "ambient, held for a round").name
    'ambient, held for a round'
    """

    held: Basis
    space: Subspace
    label: str

    @property
    def name(self) -> str:
        return self.label

    @property
    def public(self) -> Any:
        return self.space.public

    @property
    def requires_clipped_coordinates(self) -> bool:
        return self.space.requires_clipped_coordinates

    def key(self, context: StepContext) -> Hashable:
        return self  # the object and not its id, which another object may get later

    def basis(self, context: StepContext) -> Basis:
        return self.held

    def clip_rule(self, rule: ClipRule) -> ClipRule:
        return self.space.clip_rule(rule)


def in_coordinates(values: Tensor, losses: Tensor, ceilings: Tensor | None = None) -> Updates:
    """Return a matrix of coordinates, (B, k), as updates, so that clipping and release treat it like any other.

    Args:
        values: the coordinates.
        losses: the loss of each sample, (B,).
        ceilings: the squared size of the terms whose sums the coordinates are, (B,), for the rounding allowance.

    >>> in_coordinates(torch.ones(3, 2), torch.zeros(3)).norms()
    tensor([1.4142, 1.4142, 1.4142], dtype=torch.float64)
    """
    return Updates({COORDINATES: Dense(values, ceilings)}, losses)


def as_updates(vector: Mapping[str, Tensor]) -> Updates:
    """Return one vector by parameter as the update of a single sample."""
    first = next(iter(vector.values()))
    return Updates({name: Dense(value[None]) for name, value in vector.items()}, first.new_zeros(1))


def coordinates_of(basis: Basis, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the coordinates of a released vector.

    >>> vector = {"weight": torch.tensor([1.0, 2.0])}
    >>> coordinates_of(AmbientBasis(vector), vector)["weight"]
    tensor([1., 2.])
    """
    coordinates = basis.coordinates(as_updates(vector))
    return coordinates.weighted_sum(torch.ones(1, device=coordinates.losses.device))


def projected(basis: Basis, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the projection of a released vector onto the subspace. This is post-processing, for any basis.

    >>> vector = {"weight": torch.tensor([1.0, 2.0])}
    >>> projected(AmbientBasis(vector), vector)["weight"]
    tensor([1., 2.])
    """
    return basis.lift(coordinates_of(basis, vector))
