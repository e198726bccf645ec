"""The server: who takes part, what they get, what is accepted, and how the model moves."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnomon import validate
from gnomon.accounting import Account
from gnomon.data import Loader
from gnomon.errors import SettingError
from gnomon.federated.bases import round_basis, shared_fingerprint
from gnomon.federated.message import Arrays, Message
from gnomon.federated.refusal import Refused
from gnomon.federated.state import PersistentState
from gnomon.federated.strategies import RoundOutcome
from gnomon.federated.strategies.published import Strategy
from gnomon.federated.validation import Reach, check_upload
from gnomon.release import SeededNoise
from gnomon.sampling.draws import shuffle
from gnomon.subspaces import Basis
from gnomon.training import BudgetExhausted
from gnomon.updates import Loss
from gnomon.updates.snapshot import untouched


@dataclass
class Member:
    """What the server knows of a client, all of it public: its weight, its account, how far it can move.

    >>> from gnomon.accounting import Poisson
    >>> Member(1.0, Account(Poisson(0.1), 2.0), Reach(1.0, 2.0, 10, steps=5, lr=0.1)).reach.steps
    5
    """

    weight: float
    account: Account
    reach: Reach
    affordable: float = math.inf
    """How many steps its target epsilon pays for."""

    def __post_init__(self) -> None:
        validate.positive("weight", self.weight)

    @property
    def spent(self) -> bool:
        """Whether one more round would cost more than the target."""
        return self.account.steps + self.reach.steps > self.affordable

    @property
    def terms(self) -> str:
        """What a round costs: the same words for the same cost."""
        return f"{self.reach.steps} steps, {self.account.sampler!r}, noise {self.account.noise_multiplier!r}"


@dataclass
class RoundResult:
    """How a round went."""

    round: int
    accepted: list[str]
    refused: dict[str, str]
    """Why, by client."""
    bytes_down: int
    bytes_up: int
    asked: int = 0
    """How many clients got a message; one whose budget is spent does not."""


def public_seed(seed: int, number: int) -> int:
    """The public coin of a round, which travels as a float.

    >>> float(public_seed(10**12, 7)) == public_seed(10**12, 7)
    True
    """
    return (seed * 1_000_003 + number) % 2**53


def chosen(names: Sequence[str], share: float, seed: int, number: int) -> list[str]:
    """Who takes part in a round. Anybody can work it out beforehand.

    >>> chosen(["a", "b", "c"], 0.67, seed=0, number=1)
    ['a', 'c']
    """
    count = max(1, round(share * len(names)))
    order = shuffle(len(names), SeededNoise(public_seed(seed, number)))
    return sorted(names[int(i)] for i in order[:count])


class Server:
    """Holds the global model. `begin` a round, let it `accept` or `refuse` each client's answer, `end` the round.

    Who takes part and the subspace of a round come from a public seed, so that a round can be repeated after a crash.
    Each client's account is charged when it is asked, whether its answer comes or not; one whose target epsilon cannot
    pay for the round is not asked. Being picked is no secret, so no amplification is claimed for it.

    >>> from gnomon.accounting import Poisson
    >>> from gnomon.federated import fedavg
    >>> model = nn.Linear(1, 1, bias=False)
    >>> reach = Reach(1.0, 1.0, 10, steps=1, lr=1.0)
    >>> member = Member(1.0, Account(Poisson(0.1), 1.0), reach)
    >>> server = Server(model, nn.MSELoss(reduction="none"), fedavg(), {"a": member}, rounds=1)
    >>> ticket = server.begin()["a"].numbers["ticket"]
    >>> server.accept("a", Message(1, {"change": {"weight": torch.full((1, 1), float("nan"))}}, {"ticket": ticket}))
    >>> server.end().refused
    {'a': 'values that are not finite: change'}
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        strategy: Strategy,
        members: Mapping[str, Member],
        *,
        rounds: int,
        share: float = 1.0,
        seed: int = 0,
        persistent: PersistentState | None = None,
    ) -> None:
        self.model, self.loss, self.strategy = model, loss, strategy
        self.members = dict(members)
        self.rounds = validate.whole("rounds", rounds)
        self.share = validate.sample_rate("share", share)
        self.seed = validate.whole("seed", seed, least=0)
        self.persistent = persistent or PersistentState()
        if not self.members:
            raise SettingError("clients", 0, "at least one client")
        self.round = int(self.persistent.numbers.get("round", 0))
        self._open: dict[str, Message] = {}
        self._accepted: dict[str, tuple[Message, Arrays]] = {}
        self._refused: dict[str, str] = {}
        self._basis: Basis | None = None
        self._up = 0
        self._unable: set[str] = set()
        """Who said in its last round that its own budget is spent."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trainable parameters of the global model."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    # -- a round ---------------------------------------------------------------------------------

    def chosen(self, number: int) -> list[str]:
        """Who takes part in a round."""
        return chosen(list(self.members), self.share, self.seed, number)

    @property
    def spent(self) -> bool:
        """Whether no later round can be paid for: by nobody who takes part in one, or not by the target for clients."""
        if getattr(self.strategy.aggregate, "spent", False):
            return True
        coming = (name for number in range(self.round + 1, self.rounds + 1) for name in self.chosen(number))
        return all(self.members[name].spent or name in self._unable for name in coming)

    def begin(self) -> dict[str, Message]:
        """The next round's message for each client that takes part. Their accounts are charged here.

        Nobody gets one if all who would take part have spent their budgets: then `end` moves nothing.
        """
        if self._open:
            raise RuntimeError(f"round {self.round} has not ended: call end() first")
        if self.round >= self.rounds:
            raise RuntimeError(f"all {self.rounds} rounds have been run")
        if getattr(self.strategy.aggregate, "spent", False):
            raise BudgetExhausted(f"round {self.round + 1} would cost more than the target epsilon for whole clients")
        self.round += 1
        self.persistent.move(next(self.model.parameters()).device)
        common = self._common()
        self._accepted, self._refused, self._up = {}, {}, 0
        for name in self.chosen(self.round):
            member = self.members[name]
            if member.spent:
                self.refuse(name, "budget")
                continue
            member.account.charge(member.reach.steps)
            answered = {"answered": self.persistent.numbers.get(f"answered|{name}", 0.0)}
            self._open[name] = Message(self.round, common.arrays | self._public_for(name), common.numbers | answered)
        return dict(self._open)

    def accept(self, name: str, reply: Message) -> None:
        """Take a client's answer into the round, or refuse it by name. Never raises for what a client sent."""
        if name not in self._open:
            self._refused.setdefault(name, str(Refused("unasked")))
            return
        if name in self._accepted or name in self._refused:
            self._refused[f"{name}, again"] = str(Refused("twice"))
            return
        self._up += reply.bytes
        answered = f"answered|{name}"  # whether it counts or not: the client has released it
        self.persistent.numbers[answered] = self.persistent.numbers.get(answered, 0.0) + 1
        try:
            self._accepted[name] = (
                reply,
                check_upload(
                    reply,
                    self._open[name],
                    self.strategy,
                    self.weights,
                    self.basis,
                    self.members[name].reach,
                    self.dims,
                ),
            )
        except Refused as why:
            self._refused[name] = str(why)

    def refuse(self, name: str, reason: str) -> None:
        """Count a client out, for one of the known reasons."""
        self._accepted.pop(name, None)
        self._refused[name] = str(Refused(reason))

    def end(self) -> RoundResult:
        """Close the round: whoever has not answered is absent, and the model moves by what was accepted."""
        for name in self._open:
            if name not in self._accepted and name not in self._refused:
                self.refuse(name, "absent")
        if self._accepted or (self._open and getattr(self.strategy.aggregate, "always", False)):
            self._move()
        ended = RoundResult(
            self.round,
            sorted(self._accepted),
            dict(sorted(self._refused.items())),
            sum(message.bytes for message in self._open.values()),
            self._up,
            len(self._open),
        )
        self.persistent.numbers["round"] = self.round
        self._unable -= set(self._accepted)
        self._unable |= {name for name, why in self._refused.items() if why == str(Refused("budget"))}
        for name in self._refused:  # it may have lost them
            self.persistent.numbers.pop(f"knows public|{name}", None)
        for name in self._accepted:
            self.persistent.numbers[f"knows public|{name}"] = 1.0
        self._open, self._basis = {}, None
        return ended

    @torch.no_grad()
    def _move(self) -> None:
        weights = {name: self.members[name].weight for name in self._accepted}
        messages = {name: message for name, (message, _) in self._accepted.items()}
        outcome = RoundOutcome(messages, weights, len(self.members))
        for component in self.strategy.components if messages else ():
            component.absorb(self.persistent, outcome)
        losses = {name: message.numbers.get("loss", 1.0) for name, message in messages.items()}
        changes = {name: change for name, (_, change) in self._accepted.items()}
        moved = self.strategy.aggregate.move(changes, weights, losses, self.weights)
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                p.sub_(moved[name])

    # -- what is sent ----------------------------------------------------------------------------

    def _common(self) -> Message:
        message = Message(self.round, {"weights": {name: value.clone() for name, value in self.weights.items()}})
        federation = self.persistent.numbers.setdefault("federation", float(secrets.randbits(48)))
        message.numbers = {
            "ticket": float(secrets.randbits(48)),
            "rounds": float(self.rounds),
            "federation": federation,
        }
        space = self.strategy.space
        if space is not None:
            seed = public_seed(self.seed, self.round)
            with untouched(self.model):
                self._basis = round_basis(space, self.model, self.loss, self.round, self.rounds, seed)
            message.arrays["basis"] = {"fingerprint": shared_fingerprint(self._basis)}
            message.numbers["seed"] = float(seed)
        for component in self.strategy.components:
            more = component.sends(self.persistent, self.weights)
            message.arrays |= more.arrays
            message.numbers |= more.numbers
        return message

    def _public_for(self, name: str) -> dict[str, Arrays]:
        """The public records, unless the client's last answer shows that it has them."""
        if self.strategy.public is None or f"knows public|{name}" in self.persistent.numbers:
            return {}
        loader = Loader(self.strategy.public, "public")
        inputs, targets = loader.take(torch.arange(len(loader)))
        return {"public": {"inputs": inputs, "targets": targets}}

    # -- what is accepted ------------------------------------------------------------------------

    @property
    def basis(self) -> Basis | None:
        """The subspace of the open round."""
        return self._basis

    @property
    def dims(self) -> int:
        """In how many dimensions clients draw noise in the open round."""
        shape = self.weights
        if self._basis is not None and self.strategy.subspace is None:
            shape = dict(self.strategy.method.route.release_shape(self._basis, self.weights))
        return sum(value.numel() for value in shape.values()) + 1
