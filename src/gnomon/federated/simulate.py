"""All rounds in one process: the same server and clients, without a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gnomon.data import Records
from gnomon.federated.client import Client
from gnomon.federated.refused import Refused
from gnomon.federated.server import Ended, Server
from gnomon.training import BudgetExhausted, evaluate
from gnomon.training.watch import Record, averaged


class RoundFailed(RuntimeError):
    """No client gave an answer that counts.

    >>> raise RoundFailed("round 3")
    Traceback (most recent call last):
    gnomon.federated.simulate.RoundFailed: round 3
    """


def run_round(server: Server, clients: Mapping[str, Client], on_begin: Callable[[int, list[str]], None]) -> Ended:
    """One round. A client that fails is counted out by name; if all fail, the last error is raised."""
    parcels = server.begin()
    on_begin(server.round, sorted(parcels))
    error: Exception | None = None
    for name, parcel in parcels.items():
        try:
            server.accept(name, clients[name].train(parcel))
        except Refused as why:
            server.refuse(name, why.reason)
            error = why
        except BudgetExhausted as why:
            server.refuse(name, "budget")
            error = why
        except Exception as why:
            server.refuse(name, "error")
            error = why
    ended = server.end()
    if not ended.accepted:
        reasons = "; ".join(f"{name}: {why}" for name, why in ended.refused.items())
        raise RoundFailed(f"round {ended.round}: nobody's answer counted ({reasons})") from error
    return ended


def rounds(
    server: Server,
    clients: Mapping[str, Client],
    *,
    validation: Any = None,
    heldout: Mapping[str, Records] | None = None,
    delta: float = 1e-5,
    on_begin: Callable[[int, list[str]], None] = lambda number, names: None,
) -> Iterator[Record]:
    """The remaining rounds, one line of metrics after each."""
    started = time.monotonic()
    while server.round < server.rounds:
        ended = run_round(server, clients, on_begin)
        seen = [averaged(clients[name].unprotected) for name in ended.accepted]
        record: Record = {
            "round": ended.round,
            "accepted": len(ended.accepted),
            "refused": len(ended.refused),
            "epsilon": largest_estimate(server, delta),
            "bytes/down": ended.bytes_down,
            "bytes/up": ended.bytes_up,
            "seconds": time.monotonic() - started,
            **averaged(seen),
        }
        if validation is not None:
            record |= {
                f"validation/{key}": value for key, value in evaluate(server.model, server.loss, validation).items()
            }
        if heldout:
            record |= fairness(server, heldout)
        yield record


def fairness(server: Server, heldout: Mapping[str, Records]) -> Record:
    """How unlike the clients' losses of the global model are, on records that nobody trained on.

    `validation/unfairness` is the weighted variance of the losses: lower is fairer. Each client weighs its number of
    held-out records.
    """
    scores = {name: evaluate(server.model, server.loss, data) for name, data in heldout.items()}
    whole = sum(map(len, heldout.values()))
    share = {name: len(data) / whole for name, data in heldout.items()}
    mean = sum(share[name] * scores[name]["loss"] for name in scores)
    found: Record = {
        "validation/unfairness": sum(share[name] * (scores[name]["loss"] - mean) ** 2 for name in scores),
        "validation/worst loss": max(score["loss"] for score in scores.values()),
    }
    if all("accuracy" in score for score in scores.values()):
        found["validation/worst accuracy"] = min(score["accuracy"] for score in scores.values())
    return found


def largest_estimate(server: Server, delta: float) -> float:
    """An upper bound on the largest epsilon of any client, quickly."""
    known: dict[tuple[str, float, int], float] = {}
    for member in server.members.values():
        account = member.account
        key = account.sampler.name, account.noise_multiplier, account.steps
        if key not in known:
            known[key] = account.estimate(delta)
    return max(known.values())
