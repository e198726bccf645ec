"""The privacy statement of a federated run: the worst client's, and who learns what."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gnomon.accounting import Epsilon, digits
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.server import Server
from gnomon.runs.federate_config import FederateConfig
from gnomon.statement.statement import NOT_COVERED, Statement
from gnomon.text import counted

LEARNS = (
    "The server sees each client's upload of each round, not only their sum; the guarantee holds towards it.",
    "Everybody who gets the global model, and every other client, is covered by the same guarantee.",
    "Who takes part in a round is public: client sampling is not counted as protection.",
    "That a client has data at all, and its declared size, are not hidden. One record is protected, not a client.",
    "Records of one person that are held by several clients add up: the guarantee is for one record of one client.",
)


def federated_statement(
    config: FederateConfig,
    server: Server,
    private_noise: bool,
    public: int,
    ledger: dict[str, Any] | None = None,
    more: Sequence[str] = (),
) -> Statement:
    """The statement for the rounds so far: that of the client whose records pay the most.

    `ledger` is what all runs on a client's records have cost together, also that of the client that paid the most.
    `more` are further caveats.
    """
    if isinstance(server.strategy.aggregate, PrivateMean):
        return _for_clients(config, server, server.strategy.aggregate, private_noise, public, ledger, more)
    known: dict[tuple[str, float, int], Epsilon] = {}
    spent: dict[str, Epsilon] = {}
    for name, member in server.members.items():
        account = member.account
        key = account.sampler.name, account.noise_multiplier, account.steps
        if key not in known:
            known[key] = account.epsilon(config.target_delta)
        spent[name] = known[key]
    worst = max(spent, key=lambda name: float(spent[name]))
    least = min(map(float, spent.values()))
    reach = server.members[worst].reach
    rounds = counted(server.round, "round")
    notes = [
        f"This is the largest of {len(spent)} clients' epsilons, that of {worst}; the smallest is {digits(least)}.",
        f"A client is charged when it is asked, whether its answer comes or not: {rounds} so far.",
        *more,
    ]
    if public:
        notes.append(f"{public} records were used as public and are NOT protected; they are sent to every client.")
    found = Statement.of(
        spent[worst],
        method=server.strategy.describe(),
        max_grad_norm=reach.max_grad_norm,
        expected_batch_size=reach.expected_batch_size,
        private_noise=private_noise,
        notes=notes,
        ledger=ledger,
        account=server.members[worst].account,
    )
    return dataclasses.replace(found, unit="one record of one client", not_covered=(*LEARNS, *NOT_COVERED))


TRUSTS = (
    "The server sees every client's change without noise: it must be trusted, and so must its link to the clients.",
    "Everybody who gets the global model, other clients included, is covered.",
    "Who is asked in a round is public, and every client is counted as if it had been asked in all of them.",
)


def _for_clients(
    config: FederateConfig,
    server: Server,
    mean: PrivateMean,
    private_noise: bool,
    public: int,
    ledger: dict[str, Any] | None,
    more: Sequence[str],
) -> Statement:
    """The statement where a whole client is protected, by noise that the server adds."""
    notes = [*([f"{public} records were used as public and are NOT protected."] if public else []), *more]
    found = Statement.of(
        mean.account.epsilon(config.target_delta),
        method=server.strategy.describe(),
        max_grad_norm=mean.max_norm,
        expected_batch_size=mean.clients,
        private_noise=private_noise,
        notes=notes,
        ledger=ledger,
        account=mean.account,
    )
    return dataclasses.replace(found, unit="one client with all its records", not_covered=(*TRUSTS, *NOT_COVERED))
