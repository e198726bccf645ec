"""Pulls towards the server's weights, after the noise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gnomon import validate
from gnomon.federated.pieces.piece import Piece, Turn
from gnomon.federated.terms import Beyond, Proximal
from gnomon.methods import Method
from gnomon.steps import Descent, Term
from gnomon.validate import SettingError


@dataclass(frozen=True)
class _Pull(Piece):
    mu: float = 0.01

    def __post_init__(self) -> None:
        validate.non_negative("mu", self.mu)

    def suits(self, lr: float, momentum: float) -> None:
        if self.mu * lr > 1:
            allowed = f"at most 1 / lr = {1 / lr:g}: a stronger pull throws the weights past the server's"
            raise SettingError("mu", self.mu, allowed)

    def before(self, method: Method, turn: Turn) -> Method:
        self.suits(turn.lr, 0.0)
        return with_term(method, self._term(turn))

    def _term(self, turn: Turn) -> Term:
        raise NotImplementedError


@dataclass(frozen=True)
class Prox(_Pull):
    """FedProx: stay near the global weights (Li et al. 2020).

    >>> Prox(0.1).mu
    0.1
    """

    name = "proximal"

    def _term(self, turn: Turn) -> Term:
        return Proximal(self.mu, turn.start)


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

    def _term(self, turn: Turn) -> Term:
        return Beyond(self.mu, turn.start, self.limit)


def with_term(method: Method, term: Term) -> Method:
    """A method whose step has one more term."""
    if not isinstance(method.step, Descent):
        raise SettingError("method", method.name, "one with a plain step: a constrained one has no place for terms")
    return dataclasses.replace(method, step=Descent((*method.step.terms, term)))
