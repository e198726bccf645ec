"""Control variates, made of what was released before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD

from gnomon import validate
from gnomon.federated.memory import Memory
from gnomon.federated.parcel import Arrays, Parcel, total_norm
from gnomon.federated.pieces.piece import Piece, Tally, Turn
from gnomon.federated.pieces.pulls import with_term
from gnomon.federated.terms import Shift
from gnomon.methods import Method


@dataclass(frozen=True)
class Controls(Piece):
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

    def room(self, parcel: Parcel) -> float:
        return total_norm(parcel.arrays["control"])

    def sends(self, memory: Memory, weights: Mapping[str, Tensor]) -> Parcel:
        return Parcel(0, {"control": memory.arrays.setdefault("control", _zeros(weights))})

    def suits(self, lr: float, momentum: float) -> None:
        if momentum:
            raise validate.SettingError("momentum", momentum, "0: SCAFFOLD needs SGD without momentum")

    def before(self, method: Method, turn: Turn) -> Method:
        if not isinstance(turn.optimizer, SGD):
            raise validate.SettingError("optimizer", type(turn.optimizer).__name__, "SGD without momentum to SCAFFOLD")
        self.suits(turn.lr, turn.optimizer.param_groups[0]["momentum"])
        own = turn.memory.arrays.setdefault("control", _zeros(turn.start))
        shift = {name: value - own[name] for name, value in turn.parcel.arrays["control"].items()}
        return with_term(method, Shift(shift, "control variates"))

    def after(self, turn: Turn) -> Parcel:
        scale = turn.steps * turn.lr
        gain = {
            name: (value - turn.end[name]) / scale - turn.parcel.arrays["control"][name]
            for name, value in turn.start.items()
        }
        own = turn.memory.arrays["control"]
        turn.memory.arrays["control"] = {name: own[name] + gain[name] for name in own}
        return Parcel(0, {"control": turn.memory.arrays["control"]})

    def uploads(self, weights: Mapping[str, Tensor]) -> dict[str, Arrays]:
        return {"control": dict(weights)}

    def limits(self, step: float) -> dict[str, float]:
        return {"control": step}

    def absorb(self, memory: Memory, tally: Tally) -> None:
        kept, own = memory.arrays["control"], memory.arrays.setdefault("controls", {})
        for client, parcel in tally.accepted.items():
            own |= {_key(client, name): value for name, value in parcel.arrays["control"].items()}
        whole = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in kept.items()}
        for key, value in own.items():
            whole[_name(key)] += value.double()
        memory.arrays["control"] = {name: (whole[name] / tally.clients).to(value) for name, value in kept.items()}


def _key(client: str, name: str) -> str:
    """Where the server keeps a client's variate of a parameter."""
    return f"{client}/{name}"


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _zeros(weights: Mapping[str, Tensor]) -> Arrays:
    return {name: torch.zeros_like(value) for name, value in weights.items()}
