"""What a part of a strategy may do: add to the server's message, to local training and to the upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from gnomon.federated.message import Arrays, Message
from gnomon.federated.state import PersistentState
from gnomon.methods import Method


@dataclass
class LocalRound:
    """A client's view of one round. Everything here is public or its own."""

    message: Message
    model: nn.Module
    start: Arrays
    persistent: PersistentState
    optimizer: Optimizer
    steps: int
    bound: float
    """The clip bound C of the update."""
    pace: float = 1.0
    """A factor of the learning rate for this round."""
    losses: list[float] = field(default_factory=list)
    end: Arrays = field(default_factory=dict)

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"]) * self.pace


@dataclass(frozen=True)
class RoundOutcome:
    """The server's view of a round's end."""

    accepted: Mapping[str, Message]
    weights: Mapping[str, float]
    clients: int
    """How many clients there are, whether they took part or not."""


class Component:
    """A part of a strategy. Every hook may stay as it is.

    >>> Component().bound(1.0)
    1.0
    """

    name = ""
    numbers: tuple[str, ...] = ()
    """The numbers it adds to the upload."""
    stretch = 1.0
    """By how much it can lengthen an honest local step."""

    def suits(self, lr: float, momentum: float) -> None:
        """Refuses local steps that it cannot go along with."""

    def bound(self, bound: float) -> float:
        """The bound of everything that one record moves, if the update's own is `bound`."""
        return bound

    def sends(self, persistent: PersistentState, weights: Mapping[str, Tensor]) -> Message:
        """Server: what it adds to the message."""
        return Message(0)

    def before(self, method: Method, local_round: LocalRound) -> Method:
        """Client: the local method of this round."""
        return method

    def after(self, local_round: LocalRound) -> Message:
        """Client: what it adds to the upload."""
        return Message(0)

    def uploads(self, weights: Mapping[str, Tensor]) -> dict[str, Arrays]:
        """Server: the shapes of the arrays that it adds to the upload."""
        return {}

    def limits(self, step: float) -> dict[str, float]:
        """Server: how long those arrays can honestly be, if the client's local step is at most `step` long."""
        return {}

    def room(self, message: Message) -> float:
        """Server: how much longer what was sent can make each local step."""
        return 0.0

    def absorb(self, persistent: PersistentState, outcome: RoundOutcome) -> None:
        """Server: learn from the accepted uploads."""
