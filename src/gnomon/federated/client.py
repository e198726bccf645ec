"""A client: a Trainer on its own records, for some steps of each round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch

from gnomon import validate
from gnomon.data import Loader
from gnomon.errors import SettingError
from gnomon.federated.bases import check_fingerprint, round_basis
from gnomon.federated.message import Arrays, Message
from gnomon.federated.refusal import Refused
from gnomon.federated.state import PersistentState
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
    """Takes part in rounds with the Trainer that it is given: its model, method, door, account and ledger.

    The Trainer's `max_grad_norm` is `strategy.bound(C)`, and its plan has the steps of all rounds. Its ledger is paid
    before a step's noise is drawn; `each_round` is paid once before the first step of a round. What is uploaded is
    made of what the Trainer's door released, and of nothing else. Weights of the server with an entry above
    `max_weight` are refused before anything is paid.

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
        persistent: PersistentState | None = None,
        each_round: LedgerSession | None = None,
    ) -> None:
        self.name, self.trainer, self.data, self.strategy = name, trainer, data, strategy
        self.steps = validate.whole("steps", steps)
        self.bound = trainer.mechanism.max_grad_norm if max_grad_norm is None else max_grad_norm
        if abs(strategy.bound(self.bound) / trainer.mechanism.max_grad_norm - 1) > 1e-9:
            allowed = f"{strategy.bound(self.bound):g}, that is strategy.bound({self.bound:g})"
            raise SettingError("trainer.mechanism.max_grad_norm", trainer.mechanism.max_grad_norm, allowed)
        if not trainer.mechanism.sampler.interruptible:
            raise SettingError("sampler", trainer.mechanism.sampler.name, "Poisson: a round may end amid an epoch")
        self.max_weight = max_weight
        self.persistent = persistent or PersistentState()
        self.each_round = each_round
        self._batches: Iterator[tuple[Any, Any]] | None = None
        self.unprotected: list[Metrics] = []
        """Diagnostics of the last round's steps, for the data holder only."""

    def train(self, message: Message) -> Message:
        """One round: from the server's message to the upload. Nothing is spent if the message is refused."""
        last, ticket = self.persistent.numbers.get("round", 0), message.numbers.get("ticket", 0.0)
        if message.round < last or (message.round == last and ticket == self.persistent.numbers["ticket"]):
            raise Refused("round", f"{message.round}, after {last:.0f}")  # a restarted server may ask for a round again
        device = next(self.trainer.model.parameters()).device
        message = message.to(device)
        self.persistent.move(device)
        start = self._load(message)
        basis = self._basis(message)
        local_round = LocalRound(
            message, self.trainer.model, start, self.persistent, self.trainer.optimizer, self.steps, self.bound
        )
        self.trainer.method = self.strategy.local(basis, local_round)
        self._run(local_round)
        local_round.end = self._weights()
        change = {name: value - local_round.end[name] for name, value in start.items()}
        reply = Message(message.round, {"change": self.strategy.upload.pack(change, basis)}, self._echo(message))
        for component in self.strategy.components:
            more = component.after(local_round)
            reply.arrays |= more.arrays
            reply.numbers |= more.numbers
        return reply

    def _run(self, local_round: LocalRound) -> None:
        """The round's private steps, through the Trainer."""
        trainer = self.trainer
        if trainer.account.steps + self.steps > trainer.mechanism.last_step:
            raise Refused("budget")
        if self._batches is None:
            self._refuse_overlap()
            self._batches = trainer.batches(self.data)
        if self.each_round is not None:
            self.each_round.admit(self.data)
            self.each_round.start()
            self.each_round.charge()
        self.persistent.numbers |= {
            "round": local_round.message.round,
            "ticket": local_round.message.numbers.get("ticket", 0.0),
        }
        usual = [group["lr"] for group in trainer.optimizer.param_groups]
        trainer.optimizer.state.clear()  # momentum does not outlive a round
        if not trainer.model.training:
            trainer.model.train()
        try:
            for group in trainer.optimizer.param_groups:
                group["lr"] *= local_round.pace
            self.unprotected = []
            for _ in range(self.steps):
                self.unprotected.append(trainer.step(*next(self._batches)))
                if trainer.released is not None and "loss" in trainer.released.extra:
                    local_round.losses.append(trainer.released.extra["loss"])
        except BaseException as error:
            self._batches = None  # an error ends an iterator for good: the next round begins another
            if isinstance(error, StopIteration):
                raise Refused("budget") from None
            raise
        finally:
            for group, lr in zip(trainer.optimizer.param_groups, usual, strict=True):
                group["lr"] = lr

    def _refuse_overlap(self) -> None:
        """Public records among its own, where they are for uploads alone; others are the Trainer's affair."""
        public, trainers = self.strategy.public, self.strategy.method.public
        if public is not None and trainers is None and self.trainer.admission.leave_out is None:
            refuse_overlap(Loader(self.data, "train"), Loader(public, "public"))

    @property
    def ledger_session(self) -> LedgerSession:
        """The hand on the ledger that pays for this client's part."""
        return self.trainer.ledger_session if self.each_round is None else self.each_round

    def statement(self) -> Statement:
        """The privacy statement of this client's steps, with what all runs on its records have cost together."""
        note, found = ledger_note(self.ledger_session, self.trainer.mechanism.delta), self.trainer.statement()
        more = [] if self.each_round is None else ledger_caveats(self.each_round)
        return dataclasses.replace(found, ledger=note, caveats=(*found.caveats, *more))

    def _weights(self) -> Arrays:
        named = self.trainer.model.named_parameters()
        return {name: p.detach().clone() for name, p in named if p.requires_grad}

    @torch.no_grad()
    def _load(self, message: Message) -> Arrays:
        """Put the server's weights into the model, if they fit."""
        sent = message.arrays.get("weights", {})
        own = {name: p for name, p in self.trainer.model.named_parameters() if p.requires_grad}
        if set(sent) != set(own):
            raise Refused("contents", "weights of another model")
        for name, p in own.items():
            if sent[name].shape != p.shape or sent[name].dtype != p.dtype:
                raise Refused("shape", f"weights of {name}")
            if not bool(torch.isfinite(sent[name]).all()):
                raise Refused("finite", f"weights of {name}")
        self._refuse_large(message)
        for name, p in own.items():
            p.copy_(sent[name])
        return self._weights()

    def _refuse_large(self, message: Message) -> None:
        """Refuses arrays of the server beyond the agreed size: a round on them would be paid for and teach nothing.

        What becomes of them, such as a control variate, would also stay in the client's persistent for good. The answer
        depends on the message and on a declared number, on no record.
        """
        for group, arrays in message.arrays.items():
            for name, value in arrays.items() if group not in ("public", "basis") else ():
                if not bool((value.abs() <= self.max_weight).all()):  # also if it is not a number
                    raise Refused("size", f"{group} of {name}, above {self.max_weight:g}")

    def _basis(self, message: Message) -> Basis | None:
        space = self.strategy.space
        if space is None:
            return None
        model, loss = self.trainer.model, self.trainer.loss
        number, rounds, seed = message.round, int(message.numbers["rounds"]), int(message.numbers["seed"])
        with untouched(model):
            basis = round_basis(space, model, loss, number, rounds, seed)
        check_fingerprint(basis, message.arrays["basis"]["fingerprint"])
        return basis

    @staticmethod
    def _echo(message: Message) -> dict[str, float]:
        return {"ticket": message.numbers["ticket"]} if "ticket" in message.numbers else {}
