"""SCAFFOLD's control variates, computed from steps that were released before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD

from gnomon.errors import SettingError
from gnomon.federated.message import Arrays, Message, total_norm
from gnomon.federated.state import ServerState
from gnomon.federated.strategies.component import Component, LocalRound, RoundOutcome
from gnomon.federated.strategies.proximal import add_term
from gnomon.methods import Method

CONTROL = "control"
"""The group of a control variate in messages and states."""


@dataclass(frozen=True, eq=False)
class ConstantTerm:
    """A fixed vector that is added to every step, such as SCAFFOLD's `c - c_i`.

    >>> ConstantTerm({"w": torch.tensor([1.0])}, "control variate")({"w": torch.tensor([9.0])})
    {'w': tensor([1.])}
    """

    vector: Mapping[str, Tensor]
    name: str

    def __call__(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self.vector


@dataclass(frozen=True)
class ControlVariates(Component):
    """SCAFFOLD, option II (Karimireddy et al. 2020): control variates from noisy updates.

    `c_i+ = c_i - c + (w_global - w_i) / (K lr)` is the mean of the gradients that the client released, so it costs no
    privacy. Option I would need a release of its own and is not offered.

    A client uploads the control variate itself rather than its difference, so that an upload that was lost leaves no
    error behind.

    Guarantee: the server accepts a control variate that is at most as long as a step that this client can honestly
    release, and sends the mean over all clients. One client thus shifts the local steps of the others by at most one
    of its own honest steps divided by the number of clients, whatever it sends and however often.

    >>> ControlVariates().step_factor
    2.0
    """

    name = "control variates"
    step_factor = 2.0  # for g - c_i, each at most one honest step of this client; c is in extra_step_norm

    def check_optimizer(self, lr: float, momentum: float) -> None:
        if momentum:
            raise SettingError("momentum", momentum, "0 for SCAFFOLD, which needs SGD without momentum")

    def server_message(self, state: ServerState, weights: Mapping[str, Tensor]) -> Message:
        return Message(0, {CONTROL: state.arrays.setdefault(CONTROL, _zeros(weights))})

    def upload_templates(self, weights: Mapping[str, Tensor]) -> dict[str, Arrays]:
        return {CONTROL: dict(weights)}

    def upload_norm_limits(self, step_norm: float) -> dict[str, float]:
        return {CONTROL: step_norm}

    def extra_step_norm(self, message: Message) -> float:
        return total_norm(message.arrays[CONTROL])

    def server_update(self, state: ServerState, outcome: RoundOutcome) -> None:
        previous, variates = state.arrays[CONTROL], state.client_arrays.setdefault(CONTROL, {})
        variates |= {client: dict(message.arrays[CONTROL]) for client, message in outcome.accepted.items()}
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in previous.items()}
        for variate in variates.values():
            for name, value in variate.items():
                total[name] += value.double()
        state.arrays[CONTROL] = {name: (total[name] / outcome.clients).to(value) for name, value in previous.items()}

    def configure_client(self, method: Method, local_round: LocalRound) -> Method:
        optimizer = local_round.optimizer
        if not isinstance(optimizer, SGD):
            raise SettingError("optimizer", type(optimizer).__name__, "SGD without momentum, for SCAFFOLD")
        self.check_optimizer(local_round.lr, optimizer.param_groups[0]["momentum"])
        own = local_round.state.arrays.setdefault(CONTROL, _zeros(local_round.start))
        shift = {name: value - own[name] for name, value in local_round.message.arrays[CONTROL].items()}
        return add_term(method, ConstantTerm(shift, "control variates"))

    def client_upload(self, local_round: LocalRound) -> Message:
        scale = local_round.steps * local_round.lr
        difference = {
            name: (value - local_round.end[name]) / scale - local_round.message.arrays[CONTROL][name]
            for name, value in local_round.start.items()
        }
        own = local_round.state.arrays[CONTROL]
        local_round.state.arrays[CONTROL] = {name: own[name] + difference[name] for name in own}
        return Message(0, {CONTROL: local_round.state.arrays[CONTROL]})


def _zeros(weights: Mapping[str, Tensor]) -> Arrays:
    return {name: torch.zeros_like(value) for name, value in weights.items()}
