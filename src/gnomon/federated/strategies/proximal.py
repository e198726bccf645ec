"""Pulls towards the server's weights, after the noise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.federated.strategies.component import Component, LocalRound
from gnomon.federated.strategies.terms import Beyond, Proximal
from gnomon.methods import Method
from gnomon.methods.steps import Descent, Term


@dataclass(frozen=True)
class _Pull(Component):
    mu: float = 0.01

    def __post_init__(self) -> None:
        validate.non_negative("mu", self.mu)

    def suits(self, lr: float, momentum: float) -> None:
        if self.mu * lr > 1:
            allowed = f"at most 1 / lr = {1 / lr:g}: a stronger pull throws the weights past the server's"
            raise SettingError("mu", self.mu, allowed)

    def before(self, method: Method, local_round: LocalRound) -> Method:
        self.suits(local_round.lr, 0.0)
        return with_term(method, self._term(local_round))

    def _term(self, local_round: LocalRound) -> Term:
        raise NotImplementedError


@dataclass(frozen=True)
class Prox(_Pull):
    """FedProx: stay near the global weights (Li et al. 2020).

    >>> Prox(0.1).mu
    0.1
    """

    name = "proximal"

    def _term(self, local_round: LocalRound) -> Term:
        return Proximal(self.mu, local_round.start)


@dataclass(frozen=True)
class Blur(_Pull):
    """FedLRS's BLUR: a pull back that begins at a distance of `limit` (Cheng et al. 2022).

    >>> Blur(0.1, 1.0).limit
    1.0
    """

    mu: float = 0.1
    limit: float = 1.0
    name = "bounded update"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive("update-limit", self.limit)

    def _term(self, local_round: LocalRound) -> Term:
        return Beyond(self.mu, local_round.start, self.limit)


def with_term(method: Method, term: Term) -> Method:
    """A method whose step has one more term."""
    if not isinstance(method.step, Descent):
        raise SettingError("method", method.name, "one with a plain step: a constrained one has no place for terms")
    return dataclasses.replace(method, step=Descent((*method.step.terms, term)))
