"""Control variates, made of what was released before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD

from gnomon.errors import SettingError
from gnomon.federated.message import Arrays, Message, total_norm
from gnomon.federated.state import PersistentState
from gnomon.federated.strategies.component import Component, LocalRound, RoundOutcome
from gnomon.federated.strategies.proximal import with_term
from gnomon.federated.strategies.terms import Shift
from gnomon.methods import Method


@dataclass(frozen=True)
class Controls(Component):
    """SCAFFOLD with option II: control variates from noisy updates (Karimireddy et al. 2020).

    `c_i+ = c_i - c + (w_global - w_i) / (K lr)` is the mean of the client's released gradients: it costs nothing.
    Option I would need a release of its own and is not offered.

    A client uploads its variate itself, not what it gained: after an answer that was lost, the next one sets it right.

    Guarantee: the server accepts a variate that is at most as long as a step that this client can honestly release,
    and sends the mean over all clients. So one client shifts the others' local steps by at most one of its own honest
    steps over the number of clients, whatever it sends and however often.

    >>> Controls().stretch
    2.0
    """

    name = "control variates"
    stretch = 2.0  # g - c_i, each at most one honest step of this client; c comes on top

    def room(self, message: Message) -> float:
        return total_norm(message.arrays["control"])

    def sends(self, persistent: PersistentState, weights: Mapping[str, Tensor]) -> Message:
        return Message(0, {"control": persistent.arrays.setdefault("control", _zeros(weights))})

    def suits(self, lr: float, momentum: float) -> None:
        if momentum:
            raise SettingError("momentum", momentum, "0: SCAFFOLD needs SGD without momentum")

    def before(self, method: Method, local_round: LocalRound) -> Method:
        if not isinstance(local_round.optimizer, SGD):
            raise SettingError("optimizer", type(local_round.optimizer).__name__, "SGD without momentum to SCAFFOLD")
        self.suits(local_round.lr, local_round.optimizer.param_groups[0]["momentum"])
        own = local_round.persistent.arrays.setdefault("control", _zeros(local_round.start))
        shift = {name: value - own[name] for name, value in local_round.message.arrays["control"].items()}
        return with_term(method, Shift(shift, "control variates"))

    def after(self, local_round: LocalRound) -> Message:
        scale = local_round.steps * local_round.lr
        gain = {
            name: (value - local_round.end[name]) / scale - local_round.message.arrays["control"][name]
            for name, value in local_round.start.items()
        }
        own = local_round.persistent.arrays["control"]
        local_round.persistent.arrays["control"] = {name: own[name] + gain[name] for name in own}
        return Message(0, {"control": local_round.persistent.arrays["control"]})

    def uploads(self, weights: Mapping[str, Tensor]) -> dict[str, Arrays]:
        return {"control": dict(weights)}

    def limits(self, step: float) -> dict[str, float]:
        return {"control": step}

    def absorb(self, persistent: PersistentState, outcome: RoundOutcome) -> None:
        kept, own = persistent.arrays["control"], persistent.arrays.setdefault("controls", {})
        for client, message in outcome.accepted.items():
            own |= {_key(client, name): value for name, value in message.arrays["control"].items()}
        whole = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in kept.items()}
        for key, value in own.items():
            whole[_name(key)] += value.double()
        persistent.arrays["control"] = {name: (whole[name] / outcome.clients).to(value) for name, value in kept.items()}


def _key(client: str, name: str) -> str:
    """Where the server keeps a client's variate of a parameter."""
    return f"{client}/{name}"


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _zeros(weights: Mapping[str, Tensor]) -> Arrays:
    return {name: torch.zeros_like(value) for name, value in weights.items()}
