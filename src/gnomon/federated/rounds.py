"""Run rounds: with clients in this process, or with any other exchange that delivers messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gnomon.data import Records
from gnomon.errors import StateError
from gnomon.federated.client import Client
from gnomon.federated.message import Message
from gnomon.federated.refusal import Refused
from gnomon.federated.server import RoundResult, Server
from gnomon.ledger import OverBudget
from gnomon.training import BudgetExhausted, evaluate
from gnomon.training.metrics import Metrics, averaged


class RoundFailed(StateError):
    """No upload was accepted in a round.

    Args:
        message: why the round failed.
        exhausted: whether it failed because no later round can be paid for.

    >>> raise RoundFailed("round 3: no upload was accepted")
    Traceback (most recent call last):
    gnomon.federated.rounds.RoundFailed: round 3: no upload was accepted
    """

    def __init__(self, message: str, exhausted: bool = False) -> None:
        super().__init__(message)
        self.exhausted = exhausted


Reply = tuple[str, Message | Refused]
"""A client's name, and its upload or the reason why there is none."""
Exchange = Callable[[Mapping[str, Message]], Iterable[Reply]]
"""Delivers a round's messages, by client, and yields the replies."""


class InProcess:
    """An exchange with clients in this process, one after the other.

    A client that raises an error is refused with a constant reason; the error itself is kept in `error`.

    >>> list(InProcess({})({}))
    []
    """

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self.clients = clients
        self.error: Exception | None = None
        """The last error of the last round, for the person who runs the simulation."""

    def __call__(self, messages: Mapping[str, Message]) -> Iterator[Reply]:
        self.error = None
        for name, message in messages.items():
            yield name, self._reply(name, message)

    def _reply(self, name: str, message: Message) -> Message | Refused:
        try:
            return self.clients[name].train(message)
        except Exception as error:
            self.error = error
            return refusal_for(error)

    def unprotected(self, names: Sequence[str]) -> Metrics:
        """Return the mean of the clients' diagnostics of the last round, for the data holder only."""
        return averaged([averaged(self.clients[name].unprotected) for name in names])


def refusal_for(error: Exception) -> Refused:
    """Return the refusal that a client sends for an error. The error's own text never leaves the client.

    >>> str(refusal_for(KeyError("record of Mr Smith")))
    'the client failed during the round'
    """
    if isinstance(error, Refused):
        return Refused(error.reason)
    return Refused("budget" if isinstance(error, BudgetExhausted | OverBudget) else "error")


def run_round(
    server: Server,
    exchange: Exchange,
    on_begin: Callable[[int, list[str]], None],
    on_end: Callable[[RoundResult], None] = lambda result: None,
) -> RoundResult:
    """Run one round.

    A round in which all selected clients have exhausted their budgets is no failure as long as other clients can pay
    for later rounds; it leaves the model unchanged.

    Args:
        server: the server.
        exchange: delivers the messages.
        on_begin: called with the round and the clients that get a message, before any message is delivered.
        on_end: called with the result.

    Raises:
        RoundFailed: no upload was accepted, or the round cannot be paid for. The model is unchanged, unless the
            aggregator protects whole clients: then it was moved by noise, and the previous weights should be kept.
    """
    if server.round < server.rounds and server.exhausted:
        raise RoundFailed(f"round {server.round + 1} cannot be paid for: the budgets are exhausted", exhausted=True)
    messages = server.begin()
    if messages:
        on_begin(server.round, sorted(messages))
    for name, reply in exchange(messages) if messages else ():
        if isinstance(reply, Message):
            server.accept(name, reply)
        else:
            server.refuse(name, reply.reason)
    result = server.end()
    on_end(result)
    budget_only = all(why == str(Refused("budget")) for why in result.refused.values())
    if result.accepted or (budget_only and not server.exhausted):
        return result
    reasons = "; ".join(f"{name}: {why}" for name, why in result.refused.items())
    error = getattr(exchange, "error", None)
    cause = f". The last error was: {error}" if error is not None else ""
    raise RoundFailed(f"round {result.round}: no upload was accepted ({reasons}){cause}", budget_only) from error


def run_rounds(
    server: Server,
    exchange: Exchange,
    *,
    validation: Any = None,
    heldout: Mapping[str, Records] | None = None,
    delta: float = 1e-5,
    every: int = 1,
    on_begin: Callable[[int, list[str]], None] = lambda number, names: None,
    on_end: Callable[[RoundResult], None] = lambda result: None,
) -> Iterator[Metrics]:
    """Run the remaining rounds and yield the metrics of each.

    Args:
        server: the server.
        exchange: delivers the messages.
        validation: public test records.
        heldout: each client's held-out records, to measure fairness.
        delta: delta of the reported epsilon.
        every: evaluate epsilon and accuracy every so many rounds, and after the last one.
        on_begin: called before the messages of a round are delivered.
        on_end: called after a round.
    """
    started = time.monotonic()
    while server.round < server.rounds:
        result = run_round(server, exchange, on_begin, on_end)
        metrics: Metrics = {
            "round": result.round,
            "asked": result.asked,
            "accepted": len(result.accepted),
            "refused": len(result.refused),
            "bytes/down": result.bytes_down,
            "bytes/up": result.bytes_up,
            "seconds": time.monotonic() - started,
        }
        if isinstance(exchange, InProcess):
            metrics |= exchange.unprotected(result.accepted)
        if result.round % every == 0 or result.round == server.rounds:
            metrics["epsilon"] = largest_epsilon_estimate(server, delta)
            if validation is not None:
                scores = evaluate(server.model, server.loss, validation)
                metrics |= {f"validation/{key}": value for key, value in scores.items()}
            if heldout:
                metrics |= fairness_metrics(server, heldout)
        yield metrics


def fairness_metrics(server: Server, heldout: Mapping[str, Records]) -> Metrics:
    """Return how much the clients' losses of the global model differ, on held-out records.

    `validation/unfairness` is the variance of the losses, with each client weighted by its number of held-out records;
    lower is fairer.
    """
    scores = {name: evaluate(server.model, server.loss, data) for name, data in heldout.items()}
    total = sum(map(len, heldout.values()))
    share = {name: len(data) / total for name, data in heldout.items()}
    mean = sum(share[name] * scores[name]["loss"] for name in scores)
    metrics: Metrics = {
        "validation/unfairness": sum(share[name] * (scores[name]["loss"] - mean) ** 2 for name in scores),
        "validation/worst loss": max(score["loss"] for score in scores.values()),
    }
    if all("accuracy" in score for score in scores.values()):
        metrics["validation/worst accuracy"] = min(score["accuracy"] for score in scores.values())
    return metrics


def largest_epsilon_estimate(server: Server, delta: float) -> float:
    """Return an upper bound on the largest epsilon of any client that is quick to compute."""
    if server.strategy.private_mean is not None:
        return server.strategy.private_mean.account.estimate(delta)
    estimates: dict[tuple[str, float, int], float] = {}
    for profile in server.profiles.values():
        account = profile.account
        key = account.sampler.name, account.noise_multiplier, account.steps
        if key not in estimates:
            estimates[key] = account.estimate(delta)
    return max(estimates.values())
