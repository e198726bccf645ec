"""What a part of a strategy may do: add to the server's parcel, to local training and to the upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from gnomon.federated.memory import Memory
from gnomon.federated.parcel import Arrays, Parcel
from gnomon.methods import Method


@dataclass
class Turn:
    """A client's view of one round. Everything here is public or its own."""

    parcel: Parcel
    model: nn.Module
    start: Arrays
    memory: Memory
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
class Tally:
    """The server's view of a round's end."""

    accepted: Mapping[str, Parcel]
    weights: Mapping[str, float]
    clients: int
    """How many clients there are, whether they took part or not."""


class Piece:
    """A part of a strategy. Every hook may stay as it is.

    >>> Piece().bound(1.0)
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

    def sends(self, memory: Memory, weights: Mapping[str, Tensor]) -> Parcel:
        """Server: what it adds to the parcel."""
        return Parcel(0)

    def before(self, method: Method, turn: Turn) -> Method:
        """Client: the local method of this round."""
        return method

    def after(self, turn: Turn) -> Parcel:
        """Client: what it adds to the upload."""
        return Parcel(0)

    def uploads(self, weights: Mapping[str, Tensor]) -> dict[str, Arrays]:
        """Server: the shapes of the arrays that it adds to the upload."""
        return {}

    def limits(self, step: float) -> dict[str, float]:
        """Server: how long those arrays can honestly be, if the client's local step is at most `step` long."""
        return {}

    def room(self, parcel: Parcel) -> float:
        """Server: how much longer what was sent can make each local step."""
        return 0.0

    def absorb(self, memory: Memory, tally: Tally) -> None:
        """Server: learn from the accepted uploads."""
