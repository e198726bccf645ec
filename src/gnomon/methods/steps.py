"""The last stage: how a released vector of coordinates moves the model. All of it is post-processing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from gnomon import validate
from gnomon.constraints import Constraint
from gnomon.constraints.solve import nearest_fit
from gnomon.errors import SettingError
from gnomon.subspaces import Basis
from gnomon.subspaces.gaussian_sketch import SketchBasis


class Step(Protocol):
    """Moves the parameters by what was released."""

    @property
    def name(self) -> str:
        """For statements; empty for the usual step."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Checks the settings and, where the step needs it, puts the start in order. Called once, before all."""

    def move(
        self,
        parameters: Mapping[str, nn.Parameter],
        basis: Basis,
        released: Mapping[str, Tensor],
        optimizer: Optimizer,
        sign: float = 1.0,
    ) -> None:
        """Changes the parameters in place. `released` has the shape of `basis.like`; `sign` is -1 if it says where to
        go rather than how steep it is."""


class Term(Protocol):
    """An addition to the released gradient that reads no record: post-processing, at no cost in privacy."""

    @property
    def name(self) -> str:
        """For statements and logs."""

    def __call__(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What to add, by parameter, at released weights."""


@dataclass(frozen=True)
class Descent:
    """Lift the coordinates, add the terms, which see weights and never records, and let the optimizer move the model.

    >>> Descent().name
    ''
    """

    terms: tuple[Term, ...] = ()

    @property
    def name(self) -> str:
        return ", ".join(f"then {term.name}" for term in self.terms)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Any model and any optimizer will do."""

    def move(
        self,
        parameters: Mapping[str, nn.Parameter],
        basis: Basis,
        released: Mapping[str, Tensor],
        optimizer: Optimizer,
        sign: float = 1.0,
    ) -> None:
        step = {name: value if sign == 1.0 else value * sign for name, value in basis.lift(released).items()}
        weights = {name: p.detach() for name, p in parameters.items()}
        for term in self.terms:
            for name, value in term(weights).items():
                step[name] = step[name] + value
        optimizer.zero_grad(set_to_none=True)  # whatever a backward pass of somebody else left
        for name, value in step.items():
            parameters[name].grad = value.to(parameters[name].dtype)  # coordinates have one type, parameters may differ
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class ConstrainedDescent:
    """`w+ = argmin over C of |Phi w - y|^2` with `y = Phi w_t - eta g`, the minimiser nearest to `w_t`.

    Phi w+ is the projection of y onto Phi C, and w+ is a point of C that maps to it. Without a sketch it is a projected
    gradient step. `eta` is the learning rate of a plain SGD; training starts at the point of C nearest to
    the model's weights.

    >>> from gnomon.constraints import L1Ball
    >>> ConstrainedDescent(L1Ball(5.0)).name
    'held to the l1 ball of radius 5'
    """

    constraint: Constraint
    accuracy: float = 1e-2
    """The solver stops when what is left to gain is below this part of where it started."""
    most: int = 500
    """The solver stops after so many iterations in any case."""

    def __post_init__(self) -> None:
        validate.positive("accuracy", self.accuracy)
        validate.whole("most", self.most)

    @property
    def name(self) -> str:
        return f"held to the {self.constraint.name}"

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        group = optimizer.param_groups[0]
        plain = isinstance(optimizer, SGD) and not (group["momentum"] or group["weight_decay"] or group["nesterov"])
        if not plain or len(optimizer.param_groups) != 1:
            allowed = "one SGD with a learning rate and nothing else for a constrained step"
            raise SettingError("optimizer", type(optimizer).__name__, allowed)
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
        now = _flat(parameters)
        if isinstance(basis, SketchBasis):
            change = rate * next(iter(released.values()))
            found = nearest_fit(
                basis.apply,
                basis.transpose,
                basis.largest_stretch,
                self.constraint,
                now,
                -change,
                self.accuracy,
                self.most,
            ).point
        else:
            found = self.constraint.project(now - rate * torch.cat([released[name].flatten() for name in parameters]))
        _write(parameters, found)
        optimizer.zero_grad(set_to_none=True)
        optimizer.step()  # moves nothing, there are no gradients: schedulers want to see it


def _flat(parameters: Mapping[str, nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters.values()])


def _parts(parameters: Mapping[str, nn.Parameter], vector: Tensor) -> dict[str, Tensor]:
    parts = vector.split([p.numel() for p in parameters.values()])
    return {name: part.view(p.shape) for (name, p), part in zip(parameters.items(), parts, strict=True)}


@torch.no_grad()
def _write(parameters: Mapping[str, nn.Parameter], vector: Tensor) -> None:
    for name, part in _parts(parameters, vector).items():
        parameters[name].copy_(part)
