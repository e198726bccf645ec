"""The client: runs a Trainer on its own records for a few private steps in each round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch

from gnomon import validate
from gnomon.data import Loader
from gnomon.errors import SettingError
from gnomon.federated.message import Arrays, Message
from gnomon.federated.refusal import Refused
from gnomon.federated.round_basis import BasisCache
from gnomon.federated.state import ClientState
from gnomon.federated.strategies import LocalRound
from gnomon.federated.strategies.published import Strategy
from gnomon.ledger.session import LedgerSession
from gnomon.statement.statement import ledger_caveats, ledger_note
from gnomon.subspaces import Basis
from gnomon.training import Statement, Trainer
from gnomon.training.checks.model import refuse_overlap
from gnomon.training.metrics import Metrics
from gnomon.updates.snapshot import untouched


class Client:
    """Takes part in rounds with the Trainer that it is given, which has the model, method, door, account and ledger.

    Guarantees: what is uploaded is computed from what the Trainer's door released, and from nothing else. The ledger
    is charged before a step's noise is drawn. A server message that is refused costs nothing.

    Args:
        name: the client's name.
        trainer: the Trainer. Its `max_grad_norm` must be `strategy.joint_bound(max_grad_norm)`, and it must be planned
            for the steps of all rounds.
        data: the client's records.
        strategy: the federated method.
        steps: the private steps in a round.
        max_grad_norm: the clip bound of a record's update (default: that of the Trainer).
        max_weight: the largest absolute value that the client accepts in the server's weights.
        state: the state of earlier rounds.
        round_ledger_session: charged once in each round, before its first step, instead of the Trainer's session.
        bases: a cache of round bases that is shared within the process.

    >>> from torch import nn
    >>> from gnomon.federated import fedavg
    >>> model = nn.Linear(2, 2)
    >>> trainer = Trainer(model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5),
    ...     sample_rate=0.5, expected_batch_size=10, noise_multiplier=1.0, target_delta=1e-3, steps=10)
    >>> client = Client("north", trainer, (torch.randn(20, 2), torch.randint(0, 2, (20,))), fedavg(), steps=2)
    >>> weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    >>> reply = client.train(Message(1, {"weights": weights}))
    >>> sorted(reply.arrays["change"]), trainer.account.steps
    (['bias', 'weight'], 2)
    """

    def __init__(
        self,
        name: str,
        trainer: Trainer,
        data: Any,
        strategy: Strategy,
        *,
        steps: int,
        max_grad_norm: float | None = None,
        max_weight: float = math.inf,
        state: ClientState | None = None,
        round_ledger_session: LedgerSession | None = None,
        bases: BasisCache | None = None,
    ) -> None:
        self.name, self.trainer, self.data, self.strategy = name, trainer, data, strategy
        self.steps = validate.whole("steps", steps)
        self.bound = trainer.mechanism.max_grad_norm if max_grad_norm is None else max_grad_norm
        joint_bound = strategy.joint_bound(self.bound)
        if abs(joint_bound / trainer.mechanism.max_grad_norm - 1) > 1e-9:
            raise SettingError(
                "trainer.mechanism.max_grad_norm",
                trainer.mechanism.max_grad_norm,
                f"{joint_bound:g}, the value of strategy.joint_bound({self.bound:g})",
            )
        if not trainer.mechanism.sampler.interruptible:
            raise SettingError(
                "sampler", trainer.mechanism.sampler.name, "Poisson sampling, because a round may end within an epoch"
            )
        self.max_weight = max_weight
        self.state = state or ClientState()
        self.round_ledger_session = round_ledger_session
        self.bases = bases or BasisCache()
        self._batches: Iterator[tuple[Any, Any]] | None = None
        self.unprotected: list[Metrics] = []
        """Diagnostics of the last round's steps, for the data holder only."""

    def train(self, message: Message) -> Message:
        """Run one round and return the upload.

        Raises:
            Refused: the server's message is not acceptable, or the budget is exhausted. Nothing was spent.
        """
        self._check_round(message)
        device = next(self.trainer.model.parameters()).device
        message = message.to(device)
        self.state.move(device)
        start = self._load_weights(message)
        basis = self._round_basis(message)
        local_round = LocalRound(
            message, self.trainer.model, start, self.state, self.trainer.optimizer, self.steps, self.bound
        )
        self.trainer.method = self.strategy.client_method(basis, local_round)
        self._run_steps(local_round)
        local_round.end = self._weights()
        change = {name: value - local_round.end[name] for name, value in start.items()}
        reply = Message(message.round, {"change": self.strategy.upload.pack(change, basis)})
        if "ticket" in message.numbers:
            reply.numbers["ticket"] = message.numbers["ticket"]
        for component in self.strategy.components:
            addition = component.client_upload(local_round)
            reply.arrays |= addition.arrays
            reply.numbers |= addition.numbers
        return reply

    def _check_round(self, message: Message) -> None:
        """Refuse a round that has passed. A restarted server may repeat the last round, with a new ticket."""
        last = self.state.round
        repeated = message.round == last and message.numbers.get("ticket", 0.0) == self.state.ticket
        if message.round < max(1, last) or repeated:
            raise Refused("round", f"round {message.round} after round {last}")

    def _run_steps(self, local_round: LocalRound) -> None:
        """Take the private steps of a round through the Trainer."""
        trainer = self.trainer
        if trainer.account.steps + self.steps > trainer.mechanism.last_step:
            raise Refused("budget")
        if self._batches is None:
            self._refuse_overlap()
            self._batches = trainer.batches(self.data)
        if self.round_ledger_session is not None:
            self.round_ledger_session.admit(self.data)
            self.round_ledger_session.start()
            self.round_ledger_session.charge()
        self.state.round = local_round.message.round
        self.state.ticket = local_round.message.numbers.get("ticket", 0.0)
        learning_rates = [group["lr"] for group in trainer.optimizer.param_groups]
        trainer.optimizer.state.clear()  # momentum does not outlive a round
        if not trainer.model.training:
            trainer.model.train()
        try:
            for group in trainer.optimizer.param_groups:
                group["lr"] *= local_round.lr_factor
            self.unprotected = []
            for _ in range(self.steps):
                self.unprotected.append(trainer.step(*next(self._batches)))
                if trainer.released is not None and "loss" in trainer.released.extra:
                    local_round.losses.append(trainer.released.extra["loss"])
        except BaseException as error:
            self._batches = None  # a generator is exhausted after an error, so the next round starts another
            if isinstance(error, StopIteration):
                raise Refused("budget") from None
            raise
        finally:
            for group, lr in zip(trainer.optimizer.param_groups, learning_rates, strict=True):
                group["lr"] = lr

    def _refuse_overlap(self) -> None:
        """Refuse public records that are among the client's own, if they serve uploads alone.

        The Trainer itself checks public records that its method uses.
        """
        public = self.strategy.public
        used_by_trainer = self.strategy.method.public is not None
        if public is not None and not used_by_trainer and self.trainer.admission.leave_out is None:
            refuse_overlap(Loader(self.data, "train"), Loader(public, "public"))

    @property
    def ledger_session(self) -> LedgerSession:
        """The ledger session that pays for this client's rounds."""
        return self.trainer.ledger_session if self.round_ledger_session is None else self.round_ledger_session

    def statement(self) -> Statement:
        """Return the privacy statement of this client's steps, with the ledger's total for its records."""
        statement = self.trainer.statement()
        note = ledger_note(self.ledger_session, self.trainer.mechanism.delta)
        caveats = [] if self.round_ledger_session is None else ledger_caveats(self.round_ledger_session)
        return dataclasses.replace(statement, ledger=note, caveats=(*statement.caveats, *caveats))

    def _weights(self) -> Arrays:
        named = self.trainer.model.named_parameters()
        return {name: p.detach().clone() for name, p in named if p.requires_grad}

    @torch.no_grad()
    def _load_weights(self, message: Message) -> Arrays:
        """Check the server's weights, copy them into the model and return them."""
        weights = message.arrays.get("weights", {})
        parameters = {name: p for name, p in self.trainer.model.named_parameters() if p.requires_grad}
        if set(weights) != set(parameters):
            raise Refused("contents", "the weights are those of another model")
        for name, p in parameters.items():
            if weights[name].shape != p.shape or weights[name].dtype != p.dtype:
                raise Refused("shape", f"weights of {name}")
            if not bool(torch.isfinite(weights[name]).all()):
                raise Refused("finite", f"weights of {name}")
        self._check_size(message)
        for name, p in parameters.items():
            p.copy_(weights[name])
        return self._weights()

    def _check_size(self, message: Message) -> None:
        """Refuse arrays of the server with an entry above `max_weight`.

        A round on such weights would be paid for and teach nothing, and some arrays, such as control variates, stay in
        the client's state. The decision depends on the message and a declared number, never on a record.
        """
        for group, arrays in message.arrays.items():
            for name, value in arrays.items() if group not in ("public", "basis") else ():
                if not bool((value.abs() <= self.max_weight).all()):  # also if it is not a number
                    raise Refused("size", f"{group} of {name}, above {self.max_weight:g}")

    def _round_basis(self, message: Message) -> Basis | None:
        """Build the round's basis, if the strategy has a subspace, and compare it with the server's."""
        subspace = self.strategy.round_subspace
        if subspace is None:
            return None
        model, loss = self.trainer.model, self.trainer.loss
        rounds, seed = int(message.numbers["rounds"]), int(message.numbers["seed"])
        with untouched(model):
            basis = self.bases.round_basis(subspace, model, loss, message.round, rounds, seed)
        self.bases.check_fingerprint(basis, message.arrays["basis"]["fingerprint"])
        return basis
