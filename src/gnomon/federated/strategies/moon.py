"""A contrastive term in each record's loss."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass

from torch import nn

from gnomon import validate
from gnomon.federated.message import Message
from gnomon.federated.strategies.component import Component, LocalRound
from gnomon.federated.strategies.contrastive import Contrastive
from gnomon.methods import Method


@dataclass(frozen=True)
class Moon(Component):
    """MOON: model-contrastive learning, inside each record's loss and therefore inside the clip (Li et al. 2021).

    >>> Moon(1.0).temperature
    0.5
    """

    weight: float = 1.0
    temperature: float = 0.5
    name = "contrastive"

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.positive("temperature", self.temperature)

    def before(self, method: Method, local_round: LocalRound) -> Method:
        near, far = (_frozen(local_round.model) for _ in range(2))
        far.load_state_dict(local_round.persistent.arrays.get("previous", local_round.start), strict=False)
        update = Contrastive(self.weight, self.temperature, near, far, method.update)
        return dataclasses.replace(method, update=update)

    def after(self, local_round: LocalRound) -> Message:
        local_round.persistent.arrays["previous"] = dict(local_round.end)
        return Message(0)


def _frozen(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model).requires_grad_(False)
    return twin.eval()
