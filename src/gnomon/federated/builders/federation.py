"""Build the server and the clients of a federation from its settings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import SGD

from gnomon.accounting import Account, FullBatch, Poisson, Sampling
from gnomon.data import Loader, Records, Source
from gnomon.errors import SettingError
from gnomon.features import FeatureMap, Pipeline
from gnomon.federated.builders.preparation import PreparedFederation, client_names, prepare_federation
from gnomon.federated.builders.settings import local_config
from gnomon.federated.builders.strategy import build_private_mean, build_strategy, noise_for_target
from gnomon.federated.client import Client
from gnomon.federated.round_basis import BasisCache
from gnomon.federated.server import ClientProfile, Server, select_clients
from gnomon.federated.state import ClientState
from gnomon.federated.strategies.contrastive import check_hidden_layer
from gnomon.federated.strategies.published import Strategy
from gnomon.federated.validation import UpdateBounds
from gnomon.ledger import Ledger
from gnomon.ledger.session import LedgerSession
from gnomon.losses import LOSSES
from gnomon.methods import softmax_head
from gnomon.release import SecureNoise, SeededNoise
from gnomon.runs.builders import WARM_START, build_model
from gnomon.runs.federate_config import FederateConfig
from gnomon.training import Trainer
from gnomon.validate import positive, sample_rate, whole


@dataclass
class Federation:
    """A server, its clients in this process, and the records that measure the global model."""

    server: Server
    clients: dict[str, Client]
    source: Source
    heldout: dict[str, Records]
    """Each client's held-out records."""
    public: int = 0
    """The number of public records."""
    feature_map: FeatureMap | None = None
    """The map with which every client computes the features of its records."""


def rounds_per_client(config: FederateConfig, clients: Iterable[str], after: int = 0) -> dict[str, int]:
    """Return the number of rounds after round `after` for which each client is selected.

    The selection follows from a public seed, so it is known in advance.

    >>> rounds_per_client(FederateConfig(rounds=10, participation=0.5), ["a", "b"])
    {'a': 7, 'b': 3}
    """
    counts = dict.fromkeys(clients, 0)
    participation = sample_rate("participation", config.participation)
    for number in range(after + 1, whole("rounds", config.rounds) + 1):
        for name in select_clients(list(counts), participation, config.split_seed, number):
            counts[name] += 1
    return counts


@functools.cache
def _affordable_steps(
    target: float, delta: float, sampler: Sampling, noise_multiplier: float, accountant: Any, adjacency: str | None
) -> int:
    """Return the number of steps that a target epsilon pays for. Results are cached."""
    return Account(sampler, noise_multiplier, adjacency, accountant).affordable(target, delta)


def client_profile(config: FederateConfig, strategy: Strategy, size: int, rounds: int) -> ClientProfile:
    """Return the profile of a client with `size` declared records that is selected for `rounds` rounds.

    >>> from gnomon.data import load
    >>> config = FederateConfig(noise_multiplier=2.0, method="fedavg")
    >>> client_profile(config, build_strategy(config, load("digits").train[:0]), 640, 10).account.sampler
    Poisson(sample_rate=0.1)
    """
    sampler = _sampler(config, size)
    steps = whole("steps-per-round", config.steps_per_round)
    noise_multiplier = 0.0 if config.unit == "client" else config.noise_multiplier
    target: float | None = config.target_epsilon
    max_steps: float = math.inf
    accounting = config.accountant, config.adjacency
    if noise_multiplier is None:
        max_steps = planned = max(1, rounds) * steps  # rounds that were lost in a crash are among them
        epsilon = 1.0 if target is None else target
        noise_multiplier = noise_for_target(epsilon, config.target_delta, sampler, planned, *accounting)
    elif target is not None and config.unit == "record":
        epsilon = positive("target-epsilon", target)
        max_steps = _affordable_steps(epsilon, config.target_delta, sampler, noise_multiplier, *accounting)
        if max_steps < steps:
            raise SettingError(
                "target-epsilon",
                target,
                f"a larger target, or a noise-multiplier above {noise_multiplier:g}: one round already costs more",
            )
    bounds = UpdateBounds(
        strategy.joint_bound(config.max_grad_norm),
        noise_multiplier,
        sampler.rate * size,
        steps,
        config.lr,
        config.momentum,
        strategy.step_factor,
    )
    account = Account(sampler, noise_multiplier, config.adjacency, config.accountant)  # type: ignore[arg-type]
    weight = float(size) if config.client_weights == "size" else 1.0
    return ClientProfile(weight, account, bounds, max_steps)


def _sampler(config: FederateConfig, size: int) -> Sampling:
    """Return the sampling scheme of a client with `size` declared records."""
    if config.sampler == "full":
        if config.sample_rate is not None:
            raise SettingError("sample-rate", config.sample_rate, "no value with sampler full: all records, always")
        return FullBatch()
    batch = min(whole("batch-size", config.batch_size), size)
    return Poisson(batch / size if config.sample_rate is None else sample_rate("sample-rate", config.sample_rate))


def build_server(
    config: FederateConfig,
    source: Source,
    public: Records,
    sizes: Mapping[str, int],
    bases: BasisCache | None = None,
) -> Server:
    """Return the server of a config.

    Args:
        config: the settings.
        source: the data set, for the shapes of the model.
        public: the public records.
        sizes: the declared number of records of each client.
        bases: a cache of round bases that is shared with clients in this process.

    >>> from gnomon.data import load
    >>> config = FederateConfig(method="fedavg", noise_multiplier=1.0)
    >>> source = load("digits")
    >>> build_server(config, source, source.train[:0], {"a": 100, "b": 200}).selected(1)
    ['a', 'b']
    """
    strategy = build_strategy(config, public)
    model = build_model(local_config(config, "dp-sgd"), source, public)
    if config.method == "moon":
        check_hidden_layer(model)
    if config.known_space == "softmax-head":
        if config.method != "fedavg":
            raise SettingError("known-space", config.known_space, f"none with {config.method}, or the method fedavg")
        strategy = replace(strategy, method=strategy.method.within(softmax_head(model, LOSSES[config.loss])))
    counts = rounds_per_client(config, sizes)
    return Server(
        model,
        LOSSES[config.loss],
        strategy,
        {name: client_profile(config, strategy, size, counts[name]) for name, size in sizes.items()},
        rounds=config.rounds,
        participation=config.participation,
        seed=config.split_seed,
        bases=bases,
    )


def build_client(
    config: FederateConfig,
    name: str,
    data: Any,
    profile: ClientProfile,
    strategy: Strategy,
    source: Source,
    *,
    rounds: int | None = None,
    state: ClientState | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    label: str = "",
    untrusted_server: bool = False,
    bases: BasisCache | None = None,
    features: Pipeline | None = None,
) -> Client:
    """Return a client with its own Trainer.

    Args:
        config: the settings.
        name: the client's name.
        data: the client's records.
        profile: the client's profile.
        strategy: the federated method.
        source: the data set, for the shapes of the model.
        rounds: the number of rounds that the Trainer is planned for (default: all rounds).
        state: the client's state of earlier rounds.
        ledger: the ledger that counts the client's steps.
        dataset: the declared name of the records in the ledger.
        label: the label of the client's run in the ledger.
        untrusted_server: weights and public records come from somebody who sees whether the client replies. No error
            may then depend on the client's records: own records that occur among the public ones are left out instead
            of refused, and the check for interacting samples uses synthetic records.
        bases: a cache of round bases that is shared within the process.
        features: the features that the model takes, which the client computes from its own records. The map reads
            public records alone; it never comes from a server.

    >>> from gnomon.data import load
    >>> config = FederateConfig(method="fedavg", noise_multiplier=1.0)
    >>> source = load("digits")
    >>> server = build_server(config, source, source.train[:0], {"a": 1437})
    >>> client = build_client(config, "a", source.train, server.profiles["a"], server.strategy, source)
    >>> client.trainer.mechanism.steps
    50
    """
    if features is not None:
        if untrusted_server:  # whether a record is among the public ones would decide whether the client replies
            raise SettingError("features", features.feature_map.name, "no feature map with an untrusted server")
        data = features.records(data)
    model = build_model(replace(local_config(config, "dp-sgd"), warm_start="none"), source, source.train[:0])
    planned = max(1, config.rounds if rounds is None else rounds)
    seed = config.insecure_noise_seed
    names = client_names(config)
    number = names.index(name) if name in names else 0
    protects_client = config.unit == "client"
    trainer = Trainer(
        model,
        LOSSES[config.loss],
        SGD(model.parameters(), positive("lr", config.lr), momentum=config.momentum),
        method=strategy.method,
        max_grad_norm=profile.bounds.max_grad_norm,
        sampler=profile.account.sampler,
        expected_batch_size=profile.bounds.expected_batch_size,
        noise_multiplier=profile.account.noise_multiplier,
        target_epsilon=None if config.noise_multiplier is None else config.target_epsilon,
        target_delta=config.target_delta,
        steps=planned * profile.bounds.steps,
        accountant=config.accountant,  # type: ignore[arg-type]
        adjacency=config.adjacency,
        max_physical_batch_size=config.max_physical_batch_size,
        noise=SecureNoise() if seed is None else SeededNoise(1009 * seed + number + 1),
        notes=[*feature_notes(config, features), *_public_record_notes(strategy)],
        ledger=None if protects_client else ledger,
        dataset=dataset,
        label=label,
        leave_out=strategy.public if untrusted_server else None,
        untrusted_weights=untrusted_server,
        example=_synthetic_records(source, next(model.parameters()).device) if untrusted_server else None,
        progress=False,
    )
    if rounds is not None and rounds < 1:
        trainer.account.charge(trainer.mechanism.steps)  # no round is left, so the client refuses every one
    round_ledger_session = None
    if protects_client and ledger is not None and seed is None:
        round_ledger_session = LedgerSession(ledger, record_account(config), planned, dataset=dataset, label=label)
    return Client(
        name,
        trainer,
        data,
        strategy,
        steps=profile.bounds.steps,
        max_grad_norm=config.max_grad_norm,
        max_weight=positive("max-weight", config.max_weight),
        state=state,
        round_ledger_session=round_ledger_session,
        bases=bases,
    )


def _synthetic_records(source: Source, device: torch.device, count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a few random records of the data set's shape."""
    inputs = SeededNoise(0).normal(count * math.prod(source.input_shape)).reshape(count, *source.input_shape)
    targets = torch.arange(count) % max(2, source.classes)
    return inputs.to(device, source.train.inputs.dtype), targets.to(device, source.train.targets.dtype)


def feature_notes(config: FederateConfig, features: Pipeline | None) -> list[str]:
    """Return what a statement says about the features of a model and about the public records behind them."""
    if features is None:
        return []
    notes = [features.feature_map.description]
    if features.public is not None:
        count = len(features.public) // config.public_copies
        notes.append(f"{count} records were used as public for the features and are NOT protected.")
    if config.warm_start == "public":
        notes.append(WARM_START)
    return notes


def _public_record_notes(strategy: Strategy) -> list[str]:
    """Return the statement's note on public records that serve uploads alone; the Trainer does not know of them."""
    if strategy.public is None or strategy.method.public is not None:
        return []
    count = len(Loader(strategy.public, "public"))
    return [f"{count} records were used as public for uploads and are NOT protected."]


def record_account(config: FederateConfig) -> Account:
    """Return the account of one record's cost of a round in which the server protects whole clients.

    Adding or removing a record replaces its client's change by another one. That moves the sum by up to twice the clip
    bound, so the noise multiplier for a record is half of that for a client.

    >>> record_account(FederateConfig(unit="client", noise_multiplier=8.0)).noise_multiplier
    4.0
    """
    return Account(FullBatch(), build_private_mean(config).account.noise_multiplier / 2)


def build_federation(
    config: FederateConfig,
    *,
    remaining_rounds: Mapping[str, int] | None = None,
    ledger: Ledger | None = None,
    label: Callable[[str], str] = str,
    dataset: str | None = None,
    prepared: PreparedFederation | None = None,
) -> Federation:
    """Return a whole federation in one process, on a partition of one data set.

    Args:
        config: the settings.
        remaining_rounds: the number of further rounds in which each client of a resumed run may take part.
        ledger: the ledger that counts each client's rounds.
        label: returns the label of a client's run in the ledger.
        dataset: the declared name of the data set in the ledger, for all clients together.
        prepared: the records, if they are prepared already; `config` is then `prepared.config`.

    >>> federation = build_federation(FederateConfig(method="fedavg", noise_multiplier=1.0, clients=3))
    >>> [len(client.data) for client in federation.clients.values()]
    [479, 479, 479]
    """
    if prepared is None:
        prepared = prepare_federation(config, progress=False)
    config, source, train, features = prepared.config, prepared.source, prepared.train, prepared.features
    bases = BasisCache()
    sizes = {name: len(data) for name, data in train.items()}
    server = build_server(config, source, prepared.public, sizes, bases)
    planned = rounds_per_client(config, train) if remaining_rounds is None else remaining_rounds
    clients = {
        name: build_client(
            config, name, data, server.profiles[name], server.strategy, source,
            rounds=planned[name], ledger=ledger, dataset=dataset, label=label(name), bases=bases, features=features,
        )
        for name, data in train.items()
    }  # fmt: skip
    heldout = prepared.heldout if config.holdout else {}
    feature_map = None if features is None else features.feature_map
    return Federation(server, clients, source, heldout, prepared.public_records, feature_map)
