"""Released losses, and what fairness makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gnomon import validate
from gnomon.clipping import Fair, UpdateAndLoss
from gnomon.errors import SettingError
from gnomon.federated.message import Message
from gnomon.federated.state import PersistentState
from gnomon.federated.strategies.component import Component, LocalRound, RoundOutcome
from gnomon.methods import Method
from gnomon.subspaces import BesideLoss


@dataclass(frozen=True)
class Losses(Component):
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

    def sends(self, persistent: PersistentState, weights: Mapping[str, Tensor]) -> Message:
        return Message(0, {}, {"loss": persistent.numbers["loss"]} if "loss" in persistent.numbers else {})

    def before(self, method: Method, local_round: LocalRound) -> Method:
        most = local_round.persistent.numbers.get("most loss", self.first)
        space = BesideLoss(method.subspace, local_round.bound, most, self.ratio)
        return dataclasses.replace(method, subspace=space)

    def after(self, local_round: LocalRound) -> Message:
        loss = sum(local_round.losses) / len(local_round.losses)
        local_round.persistent.numbers["most loss"] = min(self.most, max(self.least, self.growth * loss))
        local_round.persistent.numbers["own loss"] = loss
        return Message(0, {}, {"loss": loss})

    def absorb(self, persistent: PersistentState, outcome: RoundOutcome) -> None:
        whole = sum(outcome.weights[name] for name in outcome.accepted)
        total = 0.0
        for name, message in outcome.accepted.items():
            message.numbers["loss"] = min(self.most, max(0.0, message.numbers["loss"]))
            total += outcome.weights[name] * message.numbers["loss"]
        persistent.numbers["loss"] = total / whole


@dataclass(frozen=True)
class FairClip(Component):
    """FedFDP: records with a loss above the clients' noisy mean count more (clip rule `Fair`).

    >>> FairClip(0.1).most
    2.0
    """

    strength: float = 0.1
    most: float = 2.0
    name = "fair clipping"

    def __post_init__(self) -> None:
        _check_factor(self.strength, self.most)

    def before(self, method: Method, local_round: LocalRound) -> Method:
        rule = Fair(self.strength, local_round.message.numbers.get("loss"), self.most, method.clip)
        return dataclasses.replace(method, clip=rule)


@dataclass(frozen=True)
class FairPace(Component):
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

    def before(self, method: Method, local_round: LocalRound) -> Method:
        own, mean = local_round.persistent.numbers.get("own loss"), local_round.message.numbers.get("loss")
        if own is not None and mean is not None:
            local_round.pace = min(self.most, max(0.0, 1 + self.strength * (own - mean)))
        return method


def _check_factor(strength: float, most: float) -> None:
    validate.non_negative("fair", strength)
    if not most >= 1:
        raise SettingError("fair-most", most, "1 or above: an average loss has the factor 1")
