"""The parts that strategies are made of: what each adds to the server's parcel, local training and the upload."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from gnomon import validate
from gnomon.clipping import Fair, UpdateAndLoss
from gnomon.federated.aggregates import combined
from gnomon.federated.contrastive import Contrastive
from gnomon.federated.memory import Memory
from gnomon.federated.parcel import Arrays, Parcel, total_norm
from gnomon.federated.terms import Beyond, Proximal, Shift
from gnomon.methods import Method
from gnomon.steps import Descent, Term
from gnomon.subspaces import BesideLoss
from gnomon.validate import SettingError


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
    step: float
    """How long an honest released step can be."""


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
        """Server: how long those arrays can honestly be, if a local step is at most `step` long."""
        return {}

    def absorb(self, memory: Memory, tally: Tally) -> None:
        """Server: learn from the accepted uploads."""


def _with_term(method: Method, term: Term) -> Method:
    if not isinstance(method.step, Descent):
        raise SettingError("method", method.name, "one with a plain step: a constrained one has no place for terms")
    return dataclasses.replace(method, step=Descent((*method.step.terms, term)))


@dataclass(frozen=True)
class Prox(Piece):
    """FedProx: stay near the global weights (Li et al. 2020).

    >>> Prox(0.1).mu
    0.1
    """

    mu: float = 0.01
    name = "proximal"

    def before(self, method: Method, turn: Turn) -> Method:
        _refuse_overshoot(self.mu, turn)
        return _with_term(method, Proximal(self.mu, turn.start))


@dataclass(frozen=True)
class Blur(Piece):
    """FedLRS's BLUR: a pull back that begins at a distance of `limit` (Cheng et al. 2022).

    >>> Blur(0.1, 1.0).limit
    1.0
    """

    mu: float = 0.1
    limit: float = 1.0
    name = "bounded update"

    def before(self, method: Method, turn: Turn) -> Method:
        _refuse_overshoot(self.mu, turn)
        return _with_term(method, Beyond(self.mu, turn.start, self.limit))


def _refuse_overshoot(mu: float, turn: Turn) -> None:
    if mu * turn.lr > 1:
        allowed = f"at most 1 / lr = {1 / turn.lr:g}: a stronger pull throws the weights past the server's"
        raise validate.SettingError("mu", mu, allowed)


@dataclass(frozen=True)
class Controls(Piece):
    """SCAFFOLD with option II: control variates from noisy updates (Karimireddy et al. 2020).

    `c_i+ = c_i - c + (w_global - w_i) / (K lr)` is the mean of the client's released gradients: it costs nothing.
    Option I would need a release of its own and is not offered.

    >>> Controls().stretch
    3.0
    """

    name = "control variates"
    stretch = 3.0  # g - c_i + c, each at most one honest step long

    def sends(self, memory: Memory, weights: Mapping[str, Tensor]) -> Parcel:
        return Parcel(0, {"control": memory.arrays.setdefault("control", _zeros(weights))})

    def before(self, method: Method, turn: Turn) -> Method:
        if not isinstance(turn.optimizer, SGD) or turn.optimizer.param_groups[0]["momentum"]:
            raise validate.SettingError("optimizer", type(turn.optimizer).__name__, "SGD without momentum to SCAFFOLD")
        own = turn.memory.arrays.setdefault("control", _zeros(turn.start))
        shift = {name: value - own[name] for name, value in turn.parcel.arrays["control"].items()}
        return _with_term(method, Shift(shift, "control variates"))

    def after(self, turn: Turn) -> Parcel:
        scale = turn.steps * turn.lr
        gain = {
            name: (value - turn.end[name]) / scale - turn.parcel.arrays["control"][name]
            for name, value in turn.start.items()
        }
        own = turn.memory.arrays["control"]
        turn.memory.arrays["control"] = {name: own[name] + gain[name] for name in own}
        return Parcel(0, {"control": gain})

    def uploads(self, weights: Mapping[str, Tensor]) -> dict[str, Arrays]:
        return {"control": dict(weights)}

    def limits(self, step: float) -> dict[str, float]:
        return {"control": 2 * step}

    def absorb(self, memory: Memory, tally: Tally) -> None:
        moved = combined(
            {name: parcel.arrays["control"] for name, parcel in tally.accepted.items()},
            dict.fromkeys(tally.accepted, 1 / tally.clients),
        )
        control = {name: value + moved[name] for name, value in memory.arrays["control"].items()}
        # a mean of honest steps is no longer than one: whoever adds up round after round gets no further
        shorter = min(1.0, tally.step / max(total_norm(control), 1e-300))
        memory.arrays["control"] = {name: shorter * value for name, value in control.items()}


@dataclass(frozen=True)
class Moon(Piece):
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

    def before(self, method: Method, turn: Turn) -> Method:
        near, far = (_frozen(turn.model) for _ in range(2))
        far.load_state_dict(turn.memory.arrays.get("previous", turn.start), strict=False)
        update = Contrastive(self.weight, self.temperature, near, far, method.update)
        return dataclasses.replace(method, update=update)

    def after(self, turn: Turn) -> Parcel:
        turn.memory.arrays["previous"] = dict(turn.end)
        return Parcel(0)


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
        space = BesideLoss(method.subspace, turn.bound, most, self.ratio, turn.losses)
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

    @property
    def stretch(self) -> float:  # type: ignore[override]
        return self.most

    def before(self, method: Method, turn: Turn) -> Method:
        own, mean = turn.memory.numbers.get("own loss"), turn.parcel.numbers.get("loss")
        if own is not None and mean is not None:
            turn.pace = min(self.most, max(0.0, 1 + self.strength * (own - mean)))
        return method


def _zeros(weights: Mapping[str, Tensor]) -> Arrays:
    return {name: torch.zeros_like(value) for name, value in weights.items()}


def _frozen(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model).requires_grad_(False)
    return twin.eval()
