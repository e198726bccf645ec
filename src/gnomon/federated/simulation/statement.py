"""The privacy statement of a federated run: that of the client with the largest epsilon, and who learns what."""

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

RECORD_SCOPE = (
    "The server sees each client's upload of each round, not only their sum; the guarantee holds against the server.",
    "The same guarantee holds against the other clients and everybody else who gets the global model.",
    "The clients that take part in a round are public: client sampling is not counted as protection.",
    "It is not hidden that a client has data, nor its declared size. One record is protected, not a whole client.",
    "If several clients hold records of one person, their costs add up: the guarantee is for one record of one client.",
)
"""What a guarantee for records covers and does not cover in a federation."""

CLIENT_SCOPE = (
    "The server sees every client's change without noise: it must be trusted, and so must its link to the clients.",
    "The guarantee holds against the other clients and everybody else who gets the global model.",
    "The clients selected in a round are public, and every client is counted as if it had been selected in all rounds.",
)
"""What a guarantee for whole clients covers and does not cover."""


def federated_statement(
    config: FederateConfig,
    server: Server,
    private_noise: bool,
    public: int,
    ledger: dict[str, Any] | None = None,
    caveats: Sequence[str] = (),
) -> Statement:
    """Return the statement for the rounds so far, with the largest epsilon of any client.

    Args:
        config: the settings.
        server: the server.
        private_noise: whether the noise came from a secure source.
        public: the number of public records.
        ledger: the ledger's note, if the run is counted in one.
        caveats: further caveats.
    """
    if server.strategy.private_mean is not None:
        return _client_statement(config, server, server.strategy.private_mean, private_noise, public, ledger, caveats)
    computed: dict[tuple[str, float, int], Epsilon] = {}
    epsilons: dict[str, Epsilon] = {}
    for name, profile in server.profiles.items():
        account = profile.account
        key = account.sampler.name, account.noise_multiplier, account.steps
        if key not in computed:
            computed[key] = account.epsilon(config.target_delta)
        epsilons[name] = computed[key]
    worst = max(epsilons, key=lambda name: float(epsilons[name]))
    smallest = min(map(float, epsilons.values()))
    bounds = server.profiles[worst].bounds
    rounds = counted(server.round, "round")
    notes = [
        f"This is the largest epsilon of {len(epsilons)} clients, that of {worst}; the smallest is {digits(smallest)}.",
        f"A client is charged when the server asks it, whether its upload arrives or not: {rounds} so far.",
        *caveats,
    ]
    if public:
        notes.append(f"{public} records were used as public and are NOT protected; they are sent to every client.")
    statement = Statement.of(
        epsilons[worst],
        method=server.strategy.describe(),
        max_grad_norm=bounds.max_grad_norm,
        expected_batch_size=bounds.expected_batch_size,
        private_noise=private_noise,
        notes=notes,
        ledger=ledger,
        account=server.profiles[worst].account,
    )
    return dataclasses.replace(statement, unit="one record of one client", not_covered=(*RECORD_SCOPE, *NOT_COVERED))


def _client_statement(
    config: FederateConfig,
    server: Server,
    mean: PrivateMean,
    private_noise: bool,
    public: int,
    ledger: dict[str, Any] | None,
    caveats: Sequence[str],
) -> Statement:
    """Return the statement of a run that protects whole clients by noise that the server adds."""
    notes = [*([f"{public} records were used as public and are NOT protected."] if public else []), *caveats]
    statement = Statement.of(
        mean.account.epsilon(config.target_delta),
        method=server.strategy.describe(),
        max_grad_norm=mean.max_norm,
        expected_batch_size=mean.clients,
        private_noise=private_noise,
        notes=notes,
        ledger=ledger,
        account=mean.account,
    )
    unit = "one client with all its records"
    return dataclasses.replace(statement, unit=unit, not_covered=(*CLIENT_SCOPE, *NOT_COVERED))
