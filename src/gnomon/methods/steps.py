"""The last stage: how a release moves the model. All of it is post-processing and costs no privacy."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from gnomon import validate
from gnomon.constraints import Constraint
from gnomon.errors import SettingError
from gnomon.methods.update_spaces import UpdateSpace
from gnomon.subspaces import Basis, Subspace


class Step(ABC):
    """Moves the parameters by a release."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The text used in statements; empty for plain descent."""

    def check(self, subspace: Subspace) -> None:  # noqa: B027  # most steps work with any subspace
        """Raise SettingError if the step cannot be taken in this subspace."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:  # noqa: B027  # most steps need no preparation
        """Check model and optimizer, and set the starting point if the step needs one. Called once before training.

        Raises:
            SettingError: the step does not work with this optimizer or model.
        """

    def within(self, space: UpdateSpace) -> Step:
        """Return the step with the noise outside of a known space of updates removed.

        Raises:
            SettingError: the step does not move along lifted updates.
        """
        raise SettingError("step", self.name, "an unconstrained step, which lifts the release to the parameters")

    @abstractmethod
    def move(
        self,
        parameters: Mapping[str, nn.Parameter],
        basis: Basis,
        released: Mapping[str, Tensor],
        optimizer: Optimizer,
        sign: float = 1.0,
    ) -> None:
        """Change the parameters in place.

        Args:
            parameters: the trainable parameters.
            basis: the basis of the step.
            released: the released coordinates, in the shape of `basis.like`.
            optimizer: the optimizer of the parameters.
            sign: 1 if the release is a gradient, -1 if it is a displacement.
        """


class Term(Protocol):
    """A term that is added to the released gradient. It sees no record, so it costs no privacy."""

    @property
    def name(self) -> str:
        """The text used in statements and logs."""

    def __call__(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the term by parameter, at the released weights."""


@dataclass(frozen=True)
class Descent(Step):
    """Lift the coordinates, project them, add the terms, and let the optimizer move the model.

    Args:
        terms: terms to add to the released gradient.
        space: a known space of updates; the noise of the release outside of it is removed.

    >>> Descent().name
    ''
    """

    terms: tuple[Term, ...] = ()
    space: UpdateSpace | None = None

    @property
    def name(self) -> str:
        space = [] if self.space is None else [self.space.name]
        return ", ".join([*space, *(f"then {term.name}" for term in self.terms)])

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        if self.space is not None:
            self.space.check({name: p for name, p in model.named_parameters() if p.requires_grad})

    def within(self, space: UpdateSpace) -> Descent:
        if not isinstance(space, UpdateSpace):
            raise SettingError("space", space, "an UpdateSpace, such as ZeroSum or what softmax_head returns")
        return dataclasses.replace(self, space=space)

    def move(
        self,
        parameters: Mapping[str, nn.Parameter],
        basis: Basis,
        released: Mapping[str, Tensor],
        optimizer: Optimizer,
        sign: float = 1.0,
    ) -> None:
        lifted = basis.lift(released)
        if self.space is not None:
            lifted = self.space.project(lifted)
        gradient = {name: value if sign == 1.0 else value * sign for name, value in lifted.items()}
        if self.terms:
            weights = {name: p.detach() for name, p in parameters.items()}
            for term in self.terms:
                for name, value in term(weights).items():
                    gradient[name] = gradient[name] + value
        _drop_gradients(optimizer)  # other code may have left some on the parameters
        for name, value in gradient.items():
            parameter = parameters[name]
            parameter.grad = value.to(parameter.dtype)  # coordinates have one dtype, parameters may differ
        optimizer.step()
        _drop_gradients(optimizer)


@dataclass(frozen=True)
class ConstrainedDescent(Step):
    """Move to `w+ = argmin over C of |Phi w - y|^2` with `y = Phi w_t - eta g`, the minimiser nearest to `w_t`.

    `Phi w+` is the projection of y onto `Phi C`, and `w+` is a point of C that maps to it. Without a sketch this is a
    projected gradient step. `eta` is the learning rate of a plain SGD optimizer. Training starts at the point of C
    nearest to the model's weights.

    Args:
        constraint: the convex set C.
        accuracy: the solver stops when the objective can fall by at most this fraction of its value at the start.
        max_iterations: the solver stops after this many iterations in any case.

    >>> from gnomon.constraints import L1Ball
    >>> ConstrainedDescent(L1Ball(5.0)).name
    'held to the l1 ball of radius 5'
    """

    constraint: Constraint
    accuracy: float = 1e-2
    max_iterations: int = 500

    def __post_init__(self) -> None:
        validate.positive("accuracy", self.accuracy)
        validate.whole("max_iterations", self.max_iterations)

    @property
    def name(self) -> str:
        return f"held to the {self.constraint.name}"

    def check(self, subspace: Subspace) -> None:
        if not subspace.supports_constraints:
            raise SettingError("subspace", subspace.name, "Ambient() or a GaussianSketch for a constrained step")

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        group = optimizer.param_groups[0]
        plain = isinstance(optimizer, SGD) and not (group["momentum"] or group["weight_decay"] or group["nesterov"])
        if not plain or len(optimizer.param_groups) != 1:
            expected = "SGD with one parameter group, no momentum and no weight decay for a constrained step"
            raise SettingError("optimizer", type(optimizer).__name__, expected)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.constraint.check(sum(p.numel() for p in parameters.values()))
        _write(parameters, self.constraint.project(_flat(parameters)))

    def move(
        self,
        parameters: Mapping[str, nn.Parameter],
        basis: Basis,
        released: Mapping[str, Tensor],
        optimizer: Optimizer,
        sign: float = 1.0,
    ) -> None:
        rate = sign * float(optimizer.param_groups[0]["lr"])
        displacement = {name: -(rate * value) for name, value in released.items()}
        point = basis.constrained_point(
            self.constraint, _flat(parameters), displacement, self.accuracy, self.max_iterations
        )
        _write(parameters, point)
        _drop_gradients(optimizer)
        optimizer.step()  # without gradients it moves nothing; learning rate schedulers expect the call


def _drop_gradients(optimizer: Optimizer) -> None:
    """Do what `optimizer.zero_grad` does, without the entry in torch's profiler, which costs more than the rest."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _flat(parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """Return all parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in parameters.values()])


@torch.no_grad()
def _write(parameters: Mapping[str, nn.Parameter], vector: Tensor) -> None:
    """Set the parameters to the entries of one vector."""
    parts = vector.split([p.numel() for p in parameters.values()])
    for p, part in zip(parameters.values(), parts, strict=True):
        p.copy_(part.view(p.shape))
