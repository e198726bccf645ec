"""Components that pull local training towards the server's weights, by terms that are added after the noise.

The terms read weights and no records, so they are post-processing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.federated.message import total_norm
from gnomon.federated.strategies.component import Component, LocalRound
from gnomon.methods import Method
from gnomon.methods.steps import Descent, Term


@dataclass(frozen=True, eq=False)
class ProximalTerm:
    """The gradient of FedProx's proximal term, `mu (w - w_global)`.

    >>> import torch
    >>> ProximalTerm(0.5, {"w": torch.tensor([1.0])})({"w": torch.tensor([3.0])})
    {'w': tensor([1.])}
    """

    mu: float
    anchor: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        validate.non_negative("mu", self.mu)

    @property
    def name(self) -> str:
        return f"proximal term {self.mu:g}"

    def __call__(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.mu * (value - self.anchor[name]) for name, value in parameters.items()}


@dataclass(frozen=True, eq=False)
class BoundedUpdateTerm:
    """The gradient of FedLRS's regulariser of long updates, `mu / 2 max(0, |w - w_global|^2 - limit^2)`.

    >>> import torch
    >>> term = BoundedUpdateTerm(0.5, {"w": torch.tensor([0.0])}, limit=2.0)
    >>> term({"w": torch.tensor([1.0])}), term({"w": torch.tensor([4.0])})
    ({'w': tensor([0.])}, {'w': tensor([2.])})
    """

    mu: float
    anchor: Mapping[str, Tensor]
    limit: float

    def __post_init__(self) -> None:
        validate.non_negative("mu", self.mu)
        validate.positive("limit", self.limit)

    @property
    def name(self) -> str:
        return f"term {self.mu:g} beyond {self.limit:g}"

    def __call__(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        update = {name: value - self.anchor[name] for name, value in parameters.items()}
        factor = self.mu if total_norm(update) > self.limit else 0.0
        return {name: factor * value for name, value in update.items()}


def add_term(method: Method, term: Term) -> Method:
    """Return the method with one more term in its step.

    Raises:
        SettingError: the method's step is constrained and takes no terms.
    """
    if not isinstance(method.step, Descent):
        raise SettingError("method", method.name, "a method with an unconstrained step")
    return dataclasses.replace(method, step=dataclasses.replace(method.step, terms=(*method.step.terms, term)))


@dataclass(frozen=True)
class _Pull(Component):
    """Base class of components that add a term of strength `mu`."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        validate.non_negative("mu", self.mu)

    def check_optimizer(self, lr: float, momentum: float) -> None:
        if self.mu * lr > 1:
            raise SettingError(
                "mu", self.mu, f"at most 1 / lr = {1 / lr:g}; a stronger pull overshoots the server's weights"
            )

    def configure_client(self, method: Method, local_round: LocalRound) -> Method:
        self.check_optimizer(local_round.lr, 0.0)
        return add_term(method, self._term(local_round))

    def _term(self, local_round: LocalRound) -> Term:
        raise NotImplementedError


@dataclass(frozen=True)
class Proximal(_Pull):
    """FedProx (Li et al. 2020): pull every step towards the global weights, with strength `mu`.

    >>> Proximal(0.1).mu
    0.1
    """

    name = "proximal"

    def _term(self, local_round: LocalRound) -> Term:
        return ProximalTerm(self.mu, local_round.start)


@dataclass(frozen=True)
class BoundedUpdate(_Pull):
    """FedLRS's BLUR (Cheng et al. 2022): pull back, with strength `mu`, once the update's norm exceeds `limit`.

    >>> BoundedUpdate(0.1, 1.0).limit
    1.0
    """

    mu: float = 0.1
    limit: float = 1.0
    name = "bounded update"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive("update-limit", self.limit)

    def _term(self, local_round: LocalRound) -> Term:
        return BoundedUpdateTerm(self.mu, local_round.start, self.limit)
