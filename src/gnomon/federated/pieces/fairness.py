"""Released losses, and what fairness makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gnomon import validate
from gnomon.clipping import Fair, UpdateAndLoss
from gnomon.federated.memory import Memory
from gnomon.federated.parcel import Parcel
from gnomon.federated.pieces.piece import Piece, Tally, Turn
from gnomon.methods import Method
from gnomon.subspaces import BesideLoss


@dataclass(frozen=True)
class Losses(Piece):
    """Each step also releases the mean loss, cut to a bound that follows what was released, in the same vector.

    The bound starts at `first` and is then `growth` times the client's last released loss, within [least, most]. The
    paper's is 1 times it, which can only sink.

    >>> round(Losses(ratio=2.5).bound(1.0), 4)
    1.077
    """

    ratio: float = 2.5
    first: float = 2.5
    least: float = 0.1
    most: float = 10.0
    growth: float = 2.0
    name = "noisy losses"
    numbers = ("loss",)

    def bound(self, bound: float) -> float:
        return UpdateAndLoss(self.ratio).joint(bound)

    def sends(self, memory: Memory, weights: Mapping[str, Tensor]) -> Parcel:
        return Parcel(0, {}, {"loss": memory.numbers["loss"]} if "loss" in memory.numbers else {})

    def before(self, method: Method, turn: Turn) -> Method:
        most = turn.memory.numbers.get("most loss", self.first)
        space = BesideLoss(method.subspace, turn.bound, most, self.ratio)
        return dataclasses.replace(method, subspace=space, clip=UpdateAndLoss(self.ratio, method.clip))

    def after(self, turn: Turn) -> Parcel:
        loss = sum(turn.losses) / len(turn.losses)
        turn.memory.numbers["most loss"] = min(self.most, max(self.least, self.growth * loss))
        turn.memory.numbers["own loss"] = loss
        return Parcel(0, {}, {"loss": loss})

    def absorb(self, memory: Memory, tally: Tally) -> None:
        whole = sum(tally.weights[name] for name in tally.accepted)
        total = 0.0
        for name, parcel in tally.accepted.items():
            parcel.numbers["loss"] = min(self.most, max(0.0, parcel.numbers["loss"]))
            total += tally.weights[name] * parcel.numbers["loss"]
        memory.numbers["loss"] = total / whole


@dataclass(frozen=True)
class FairClip(Piece):
    """FedFDP: records with a loss above the clients' noisy mean count more (clip rule `Fair`).

    >>> FairClip(0.1).most
    2.0
    """

    strength: float = 0.1
    most: float = 2.0
    name = "fair clipping"

    def __post_init__(self) -> None:
        _check_factor(self.strength, self.most)

    def before(self, method: Method, turn: Turn) -> Method:
        rule = Fair(self.strength, turn.parcel.numbers.get("loss"), self.most, method.clip)
        return dataclasses.replace(method, clip=rule)


@dataclass(frozen=True)
class FairPace(Piece):
    """FedFair: clients with a loss above the mean take longer steps, `1 + strength (F_i - F)` times.

    Both losses are those released in the round before, so the factor is public and costs nothing.

    >>> FairPace(0.1).stretch
    2.0
    """

    strength: float = 0.1
    most: float = 2.0
    name = "fair pace"

    def __post_init__(self) -> None:
        _check_factor(self.strength, self.most)

    @property
    def stretch(self) -> float:  # type: ignore[override]
        return self.most

    def before(self, method: Method, turn: Turn) -> Method:
        own, mean = turn.memory.numbers.get("own loss"), turn.parcel.numbers.get("loss")
        if own is not None and mean is not None:
            turn.pace = min(self.most, max(0.0, 1 + self.strength * (own - mean)))
        return method


def _check_factor(strength: float, most: float) -> None:
    validate.non_negative("fair", strength)
    if not most >= 1:
        raise validate.SettingError("fair-most", most, "1 or above: an average loss has the factor 1")
