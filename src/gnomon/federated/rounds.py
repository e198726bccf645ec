"""Rounds, one after the other: with clients in this process, or with whatever else delivers messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gnomon.data import Records
from gnomon.federated.client import Client
from gnomon.federated.message import Message
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.refusal import Refused
from gnomon.federated.server import RoundResult, Server
from gnomon.ledger import OverBudget
from gnomon.training import BudgetExhausted, evaluate
from gnomon.training.metrics import Metrics, averaged


class RoundFailed(RuntimeError):
    """No client gave an answer that counts. `spent` says that it was because no later round can be paid for.

    >>> raise RoundFailed("round 3")
    Traceback (most recent call last):
    gnomon.federated.rounds.RoundFailed: round 3
    """

    def __init__(self, text: str, spent: bool = False) -> None:
        super().__init__(text)
        self.spent = spent


Answer = tuple[str, Message | Refused]
Exchange = Callable[[Mapping[str, Message]], Iterable[Answer]]
"""Delivers a round's messages and gives back what came: an upload, or why there is none."""


class InProcess:
    """Clients in this process, one after the other. A client that fails is counted out; its error stays here.

    >>> list(InProcess({})({}))
    []
    """

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self.clients = clients
        self.error: Exception | None = None
        """The last round's last error, for whoever runs the study."""

    def __call__(self, messages: Mapping[str, Message]) -> Iterator[Answer]:
        self.error = None
        for name, message in messages.items():
            yield name, self._answer(name, message)

    def _answer(self, name: str, message: Message) -> Message | Refused:
        try:
            return self.clients[name].train(message)
        except Exception as error:
            self.error = error
            return reason_of(error)

    def unprotected(self, names: Sequence[str]) -> Metrics:
        """The clients' own diagnostics of the last round, averaged."""
        return averaged([averaged(self.clients[name].unprotected) for name in names])


def reason_of(error: Exception) -> Refused:
    """A constant reason for an error: what its text says never leaves the client.

    >>> str(reason_of(KeyError("record of Mr Smith")))
    'the client could not do the round'
    """
    if isinstance(error, Refused):
        return Refused(error.reason)
    return Refused("budget" if isinstance(error, BudgetExhausted | OverBudget) else "error")


def run_round(
    server: Server,
    exchange: Exchange,
    on_begin: Callable[[int, list[str]], None],
    on_end: Callable[[RoundResult], None] = lambda ended: None,
) -> RoundResult:
    """One round. A round that nobody can pay for is not begun, and if nobody's answer counts an error says why.

    The model stays then; but with noise for whole clients the failed round has moved it by noise alone, since silence
    would tell, so keep the one before. While others can still pay in later rounds, a round whose clients have all
    spent their budgets is no failure: it passes.
    """
    if server.round < server.rounds and server.spent:
        raise RoundFailed(f"round {server.round + 1} cannot be paid for: the budgets are spent", spent=True)
    messages = server.begin()
    if messages:
        on_begin(server.round, sorted(messages))
    for name, answer in exchange(messages) if messages else ():
        if isinstance(answer, Message):
            server.accept(name, answer)
        else:
            server.refuse(name, answer.reason)
    ended = server.end()
    on_end(ended)
    spent = all(why == str(Refused("budget")) for why in ended.refused.values())
    if ended.accepted or (spent and not server.spent):
        return ended
    reasons = "; ".join(f"{name}: {why}" for name, why in ended.refused.items())
    error = getattr(exchange, "error", None)
    last = f". The last error was: {error}" if error is not None else ""
    raise RoundFailed(f"round {ended.round}: nobody's answer counted ({reasons}){last}", spent) from error


def rounds(
    server: Server,
    exchange: Exchange,
    *,
    validation: Any = None,
    heldout: Mapping[str, Records] | None = None,
    delta: float = 1e-5,
    every: int = 1,
    on_begin: Callable[[int, list[str]], None] = lambda number, names: None,
    on_end: Callable[[RoundResult], None] = lambda ended: None,
) -> Iterator[Metrics]:
    """The remaining rounds, one line of metrics after each.

    With `every`, epsilon and accuracy are worked out after each so many rounds and after the last one: on small
    models they take a quarter of the time.
    """
    started = time.monotonic()
    while server.round < server.rounds:
        ended = run_round(server, exchange, on_begin, on_end)
        record: Metrics = {
            "round": ended.round,
            "asked": ended.asked,
            "accepted": len(ended.accepted),
            "refused": len(ended.refused),
            "bytes/down": ended.bytes_down,
            "bytes/up": ended.bytes_up,
            "seconds": time.monotonic() - started,
        }
        if isinstance(exchange, InProcess):
            record |= exchange.unprotected(ended.accepted)
        if ended.round % every == 0 or ended.round == server.rounds:
            record["epsilon"] = largest_estimate(server, delta)
            if validation is not None:
                scores = evaluate(server.model, server.loss, validation)
                record |= {f"validation/{key}": value for key, value in scores.items()}
            if heldout:
                record |= fairness(server, heldout)
        yield record


def fairness(server: Server, heldout: Mapping[str, Records]) -> Metrics:
    """How unlike the clients' losses of the global model are, on records that nobody trained on.

    `validation/unfairness` is the weighted variance of the losses: lower is fairer. Each client weighs its number of
    held-out records.
    """
    scores = {name: evaluate(server.model, server.loss, data) for name, data in heldout.items()}
    whole = sum(map(len, heldout.values()))
    share = {name: len(data) / whole for name, data in heldout.items()}
    mean = sum(share[name] * scores[name]["loss"] for name in scores)
    found: Metrics = {
        "validation/unfairness": sum(share[name] * (scores[name]["loss"] - mean) ** 2 for name in scores),
        "validation/worst loss": max(score["loss"] for score in scores.values()),
    }
    if all("accuracy" in score for score in scores.values()):
        found["validation/worst accuracy"] = min(score["accuracy"] for score in scores.values())
    return found


def largest_estimate(server: Server, delta: float) -> float:
    """An upper bound on the largest epsilon of any client, quickly."""
    if isinstance(server.strategy.aggregate, PrivateMean):
        return server.strategy.aggregate.account.estimate(delta)
    known: dict[tuple[str, float, int], float] = {}
    for member in server.members.values():
        account = member.account
        key = account.sampler.name, account.noise_multiplier, account.steps
        if key not in known:
            known[key] = account.estimate(delta)
    return max(known.values())
