"""The server: selects clients, sends them messages, checks their uploads and updates the global model."""

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
from gnomon.errors import SettingError, StateError
from gnomon.federated.message import Arrays, Message
from gnomon.federated.refusal import Refused
from gnomon.federated.round_basis import BasisCache
from gnomon.federated.state import ServerState
from gnomon.federated.strategies import RoundOutcome
from gnomon.federated.strategies.published import Strategy
from gnomon.federated.validation import UpdateBounds, check_upload
from gnomon.release import SeededNoise
from gnomon.sampling.draws import shuffle
from gnomon.subspaces import Basis
from gnomon.training import BudgetExhausted
from gnomon.updates import Loss
from gnomon.updates.snapshot import untouched


@dataclass
class ClientProfile:
    """The public facts that the server knows about a client.

    Args:
        weight: the client's fixed weight in the aggregate.
        account: the privacy account of the client's steps.
        bounds: bounds on the norm of an honest upload.
        max_steps: the number of steps that the client's target epsilon pays for.

    >>> from gnomon.accounting import Poisson
    >>> ClientProfile(1.0, Account(Poisson(0.1), 2.0), UpdateBounds(1.0, 2.0, 10, steps=5, lr=0.1)).bounds.steps
    5
    """

    weight: float
    account: Account
    bounds: UpdateBounds
    max_steps: float = math.inf

    def __post_init__(self) -> None:
        validate.positive("weight", self.weight)

    @property
    def exhausted(self) -> bool:
        """Whether the target epsilon cannot pay for another round."""
        return self.account.steps + self.bounds.steps > self.max_steps

    @property
    def round_cost(self) -> str:
        """A description of what a round costs, by which a resumed run recognises the same cost."""
        return f"{self.bounds.steps} steps, {self.account.sampler!r}, noise {self.account.noise_multiplier!r}"


@dataclass
class RoundResult:
    """The result of a round."""

    round: int
    accepted: list[str]
    refused: dict[str, str]
    """The reason of each refusal, by client."""
    bytes_down: int
    bytes_up: int
    asked: int = 0
    """The number of clients that got a message. A client whose budget is exhausted gets none."""


def public_seed(seed: int, number: int) -> int:
    """Return the public seed of a round, which a float64 represents exactly.

    >>> float(public_seed(10**12, 7)) == public_seed(10**12, 7)
    True
    """
    return (seed * 1_000_003 + number) % 2**53


def select_clients(names: Sequence[str], participation: float, seed: int, number: int) -> list[str]:
    """Return the clients that take part in a round. The selection is public and known in advance.

    >>> select_clients(["a", "b", "c"], 0.67, seed=0, number=1)
    ['a', 'c']
    """
    count = max(1, round(participation * len(names)))
    order = shuffle(len(names), SeededNoise(public_seed(seed, number)))
    return sorted(names[int(i)] for i in order[:count])


class Server:
    """Holds the global model and runs rounds: `begin`, then `accept` or `refuse` for each client, then `end`.

    The selection of clients and the subspace of a round follow from a public seed, so that a round can be repeated
    after a crash. A client's account is charged when its message is created, whether a reply arrives or not; a client
    whose target epsilon cannot pay for the round is not asked. No amplification by client sampling is claimed.

    Args:
        model: the global model.
        loss: the per-record loss.
        strategy: the federated method.
        profiles: what the server knows about each client, by name.
        rounds: the number of rounds.
        participation: the share of clients that take part in a round.
        seed: the public seed.
        state: the state of earlier rounds.
        bases: a cache of round bases that is shared within the process.

    >>> from gnomon.accounting import Poisson
    >>> from gnomon.federated import fedavg
    >>> model = nn.Linear(1, 1, bias=False)
    >>> profile = ClientProfile(1.0, Account(Poisson(0.1), 1.0), UpdateBounds(1.0, 1.0, 10, steps=1, lr=1.0))
    >>> server = Server(model, nn.MSELoss(reduction="none"), fedavg(), {"a": profile}, rounds=1)
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
        profiles: Mapping[str, ClientProfile],
        *,
        rounds: int,
        participation: float = 1.0,
        seed: int = 0,
        state: ServerState | None = None,
        bases: BasisCache | None = None,
    ) -> None:
        self.model, self.loss, self.strategy = model, loss, strategy
        self.profiles = dict(profiles)
        self.rounds = validate.whole("rounds", rounds)
        self.participation = validate.sample_rate("participation", participation)
        self.seed = validate.whole("seed", seed, least=0)
        self.state = state or ServerState()
        self.bases = bases or BasisCache()
        if not self.profiles:
            raise SettingError("clients", 0, "at least one client")
        self.round = self.state.round
        """The current round; between rounds, the last one that ended."""
        self._open: dict[str, Message] = {}
        self._accepted: dict[str, tuple[Message, Arrays]] = {}
        self._refused: dict[str, str] = {}
        self._basis: Basis | None = None
        self._bytes_up = 0
        self._budget_refusals: set[str] = set()
        """Clients that refused their last round because their own budget is exhausted."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trainable parameters of the global model."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    # -- a round ---------------------------------------------------------------------------------

    def selected(self, number: int) -> list[str]:
        """Return the clients that take part in round `number`."""
        return select_clients(list(self.profiles), self.participation, self.seed, number)

    @property
    def exhausted(self) -> bool:
        """Whether no later round can be paid for, by any client selected for one or by the aggregator's target."""
        if self.strategy.aggregator.exhausted:
            return True
        later = (name for number in range(self.round + 1, self.rounds + 1) for name in self.selected(number))
        return all(self.profiles[name].exhausted or name in self._budget_refusals for name in later)

    def begin(self) -> dict[str, Message]:
        """Begin the next round: charge the accounts of the selected clients and return a message for each.

        Clients whose budgets are exhausted get no message. If no client gets one, `end` leaves the model unchanged.

        Raises:
            StateError: the last round has not ended, or all rounds have been run.
            BudgetExhausted: the target epsilon for whole clients cannot pay for the round.
        """
        if self._open:
            raise StateError(f"round {self.round} has not ended: call end() first")
        if self.round >= self.rounds:
            raise StateError(f"all {self.rounds} rounds have been run: create a server with more rounds")
        if self.strategy.aggregator.exhausted:
            raise BudgetExhausted(f"round {self.round + 1} would exceed the target epsilon for whole clients")
        self.round += 1
        self.state.move(next(self.model.parameters()).device)
        common = self._common_message()
        self._accepted, self._refused, self._bytes_up = {}, {}, 0
        for name in self.selected(self.round):
            profile = self.profiles[name]
            if profile.exhausted:
                self.refuse(name, "budget")
                continue
            profile.account.charge(profile.bounds.steps)
            received = {"uploads_received": float(self.state.uploads_received.get(name, 0))}
            arrays = common.arrays | self._public_records_for(name)
            self._open[name] = Message(self.round, arrays, common.numbers | received)
        return dict(self._open)

    def accept(self, name: str, reply: Message) -> None:
        """Check a client's upload, and accept or refuse it. No content of an upload makes this method raise."""
        if name not in self._open:
            self._refused.setdefault(name, str(Refused("unasked")))
            return
        if name in self._accepted or name in self._refused:
            self._refused[f"{name}, again"] = str(Refused("twice"))
            return
        self._bytes_up += reply.bytes
        # also if the upload is refused: the client has released it
        self.state.uploads_received[name] = self.state.uploads_received.get(name, 0) + 1
        request, bounds = self._open[name], self.profiles[name].bounds
        try:
            change = check_upload(reply, request, self.strategy, self.weights, self.basis, bounds, self.dims)
            self._accepted[name] = (reply, change)
        except Refused as error:
            self._refused[name] = str(error)

    def refuse(self, name: str, reason: str) -> None:
        """Record that a client takes no part in the round, for one of the reasons in `refusal.REASONS`."""
        self._accepted.pop(name, None)
        self._refused[name] = str(Refused(reason))

    def end(self) -> RoundResult:
        """End the round: mark clients without a reply as absent, and update the model from the accepted uploads."""
        for name in self._open:
            if name not in self._accepted and name not in self._refused:
                self.refuse(name, "absent")
        if self._accepted or (self._open and self.strategy.aggregator.releases_without_uploads):
            self._update_model()
        result = RoundResult(
            self.round,
            sorted(self._accepted),
            dict(sorted(self._refused.items())),
            sum(message.bytes for message in self._open.values()),
            self._bytes_up,
            len(self._open),
        )
        self.state.round = self.round
        self._budget_refusals -= set(self._accepted)
        self._budget_refusals |= {name for name, why in self._refused.items() if why == str(Refused("budget"))}
        self.state.clients_with_public_records -= set(self._refused)  # such a client may have lost them
        self.state.clients_with_public_records |= set(self._accepted)
        self._open, self._basis = {}, None
        return result

    @torch.no_grad()
    def _update_model(self) -> None:
        uploads = {name: message for name, (message, _) in self._accepted.items()}
        changes = {name: change for name, (_, change) in self._accepted.items()}
        weights = {name: self.profiles[name].weight for name in self._accepted}
        outcome = RoundOutcome(uploads, weights, len(self.profiles), dict.fromkeys(uploads, 1.0))
        for component in self.strategy.components if uploads else ():
            component.server_update(self.state, outcome)
        step = self.strategy.aggregator.aggregate(changes, weights, outcome.losses, self.weights)
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                p.sub_(step[name])

    # -- messages to the clients -----------------------------------------------------------------

    def _common_message(self) -> Message:
        """Return the part of a round's message that is the same for all clients."""
        message = Message(self.round, {"weights": {name: value.clone() for name, value in self.weights.items()}})
        if self.state.federation is None:
            self.state.federation = secrets.randbits(48)
        message.numbers = {
            "ticket": float(secrets.randbits(48)),
            "rounds": float(self.rounds),
            "federation": float(self.state.federation),
        }
        subspace = self.strategy.round_subspace
        if subspace is not None:
            seed = public_seed(self.seed, self.round)
            with untouched(self.model):
                self._basis = self.bases.round_basis(subspace, self.model, self.loss, self.round, self.rounds, seed)
            message.arrays["basis"] = {"fingerprint": self.bases.fingerprint(self._basis)}
            message.numbers["seed"] = float(seed)
        for component in self.strategy.components:
            addition = component.server_message(self.state, self.weights)
            message.arrays |= addition.arrays
            message.numbers |= addition.numbers
        return message

    def _public_records_for(self, name: str) -> dict[str, Arrays]:
        """Return the public records, unless the client's last upload shows that it has them."""
        if self.strategy.public is None or name in self.state.clients_with_public_records:
            return {}
        loader = Loader(self.strategy.public, "public")
        inputs, targets = loader.take(torch.arange(len(loader)))
        return {"public": {"inputs": inputs, "targets": targets}}

    # -- checks of uploads -----------------------------------------------------------------------

    @property
    def basis(self) -> Basis | None:
        """The basis of the open round, if the strategy has a subspace."""
        return self._basis

    @property
    def dims(self) -> int:
        """The number of dimensions in which clients draw noise in the open round."""
        shape = self.weights
        if self._basis is not None and self.strategy.upload_subspace is None:
            shape = dict(self.strategy.method.route.release_shape(self._basis, self.weights))
        return sum(value.numel() for value in shape.values()) + 1
