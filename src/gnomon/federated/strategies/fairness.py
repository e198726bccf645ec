"""Components for fairness between clients, all of them based on losses that were released with noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gnomon import validate
from gnomon.clipping import Fair, UpdateAndLoss
from gnomon.errors import SettingError
from gnomon.federated.message import Message
from gnomon.federated.state import ServerState
from gnomon.federated.strategies.component import Component, LocalRound, RoundOutcome
from gnomon.methods import Method
from gnomon.subspaces import BesideLoss

LOSS = "loss"
"""The number of a message that holds a noisy mean loss: a client's in an upload, all clients' in a server message."""
OWN_LOSS = "own_loss"
LOSS_BOUND = "loss_bound"


@dataclass(frozen=True)
class LossRelease(Component):
    """Release the mean loss with every step, in the same vector as the update.

    Each record's loss is cut to a bound, which starts at `first_bound` and is then `growth` times the loss that the
    client released last, within [min_bound, max_bound]. The paper uses a factor of 1, with which the bound can only
    shrink.

    Args:
        ratio: the noise multiplier of the loss, in units of the update's.

    >>> round(LossRelease(ratio=2.5).joint_bound(1.0), 4)
    1.077
    """

    ratio: float = 2.5
    first_bound: float = 2.5
    min_bound: float = 0.1
    max_bound: float = 10.0
    growth: float = 2.0
    name = "noisy losses"
    upload_numbers = (LOSS,)

    def joint_bound(self, bound: float) -> float:
        return UpdateAndLoss(self.ratio).joint(bound)

    def server_message(self, state: ServerState, weights: Mapping[str, Tensor]) -> Message:
        return Message(0, {}, {LOSS: state.numbers[LOSS]} if LOSS in state.numbers else {})

    def server_update(self, state: ServerState, outcome: RoundOutcome) -> None:
        total_weight = sum(outcome.weights[name] for name in outcome.accepted)
        total = 0.0
        for name, message in outcome.accepted.items():
            outcome.losses[name] = min(self.max_bound, max(0.0, message.numbers[LOSS]))
            total += outcome.weights[name] * outcome.losses[name]
        state.numbers[LOSS] = total / total_weight

    def configure_client(self, method: Method, local_round: LocalRound) -> Method:
        loss_bound = local_round.state.numbers.get(LOSS_BOUND, self.first_bound)
        subspace = BesideLoss(method.subspace, local_round.bound, loss_bound, self.ratio)
        return dataclasses.replace(method, subspace=subspace)

    def client_upload(self, local_round: LocalRound) -> Message:
        loss = sum(local_round.losses) / len(local_round.losses)
        bound = min(self.max_bound, max(self.min_bound, self.growth * loss))
        local_round.state.numbers |= {LOSS_BOUND: bound, OWN_LOSS: loss}
        return Message(0, {}, {LOSS: loss})


@dataclass(frozen=True)
class FairClipping(Component):
    """FedFDP: records whose loss is above the clients' noisy mean loss count more (clip rule `Fair`).

    Args:
        strength: lambda of the paper.
        max_factor: the largest factor of a record.

    >>> FairClipping(0.1).max_factor
    2.0
    """

    strength: float = 0.1
    max_factor: float = 2.0
    name = "fair clipping"

    def __post_init__(self) -> None:
        _check_factor(self.strength, self.max_factor)

    def configure_client(self, method: Method, local_round: LocalRound) -> Method:
        rule = Fair(self.strength, local_round.message.numbers.get(LOSS), self.max_factor, method.clip)
        return dataclasses.replace(method, clip=rule)


@dataclass(frozen=True)
class FairLearningRate(Component):
    """FedFair: a client with loss F_i multiplies its learning rate by `1 + strength (F_i - F)`, F being the mean loss.

    Both losses were released in the previous round, so the factor is public and costs no privacy.

    Args:
        strength: lambda of the paper.
        max_factor: the largest factor of the learning rate.

    >>> FairLearningRate(0.1).step_factor
    2.0
    """

    strength: float = 0.1
    max_factor: float = 2.0
    name = "fair learning rate"

    def __post_init__(self) -> None:
        _check_factor(self.strength, self.max_factor)

    @property
    def step_factor(self) -> float:  # type: ignore[override]
        return self.max_factor

    def configure_client(self, method: Method, local_round: LocalRound) -> Method:
        own, mean = local_round.state.numbers.get(OWN_LOSS), local_round.message.numbers.get(LOSS)
        if own is not None and mean is not None:
            local_round.lr_factor = min(self.max_factor, max(0.0, 1 + self.strength * (own - mean)))
        return method


def _check_factor(strength: float, max_factor: float) -> None:
    validate.non_negative("fair", strength)
    if not max_factor >= 1:
        raise SettingError("fair-most", max_factor, "a number of at least 1, the factor of an average loss")
