"""From a config to a server and its clients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import SGD

from gnomon.accounting import Account, FullBatch, Poisson, Sampling
from gnomon.data import Loader, Records, Source, load
from gnomon.errors import SettingError
from gnomon.federated.client import Client
from gnomon.federated.server import Member, Server, chosen
from gnomon.federated.simulation.settings import declared, local_config, partition
from gnomon.federated.simulation.strategy import PUBLIC, build_strategy, noise_for, private_mean
from gnomon.federated.state import PersistentState
from gnomon.federated.strategies.contrastive import refuse_shallow
from gnomon.federated.strategies.published import Strategy
from gnomon.federated.validation import Reach
from gnomon.ledger import Ledger
from gnomon.ledger.session import LedgerSession
from gnomon.losses import LOSSES
from gnomon.release import SecureNoise, SeededNoise
from gnomon.runs.builders import build_model, records
from gnomon.runs.federate_config import FederateConfig
from gnomon.sampling.draws import shuffle
from gnomon.training import Trainer
from gnomon.validate import positive, sample_rate, whole


@dataclass
class Federation:
    """A server, its clients in this process, and what measures them."""

    server: Server
    clients: dict[str, Client]
    source: Source
    heldout: dict[str, Records]
    """Each client's records that nobody trains on."""
    public: int = 0
    """How many records are public."""


def names(config: FederateConfig) -> list[str]:
    """The clients' names, which never change.

    >>> names(FederateConfig(clients=3))
    ['client-0', 'client-1', 'client-2']
    """
    width = len(str(whole("clients", config.clients) - 1))
    return [f"client-{number:0{width}}" for number in range(config.clients)]


def participations(config: FederateConfig, clients: Iterable[str], after: int = 0) -> dict[str, int]:
    """In how many rounds after one each client is asked; a public coin decides, so it is known beforehand.

    >>> participations(FederateConfig(rounds=10, participation=0.5), ["a", "b"])
    {'a': 7, 'b': 3}
    """
    counts = dict.fromkeys(clients, 0)
    for number in range(after + 1, whole("rounds", config.rounds) + 1):
        for name in chosen(list(counts), sample_rate("participation", config.participation), config.split_seed, number):
            counts[name] += 1
    return counts


@functools.cache
def _affordable(
    target: float, delta: float, sampler: Sampling, sigma: float, accountant: Any, adjacency: str | None
) -> int:
    return Account(sampler, sigma, adjacency, accountant).affordable(target, delta)


def member(config: FederateConfig, strategy: Strategy, size: int, rounds: int) -> Member:
    """What the server knows of a client with `size` declared records that is asked in so many rounds.

    >>> config = FederateConfig(noise_multiplier=2.0, method="fedavg")
    >>> member(config, build_strategy(config, load("digits").train[:0]), 640, 10).account.sampler
    Poisson(sample_rate=0.1)
    """
    batch = min(whole("batch-size", config.batch_size), size)
    rate = batch / size if config.sample_rate is None else sample_rate("sample-rate", config.sample_rate)
    steps = whole("steps-per-round", config.steps_per_round)
    sigma = 0.0 if config.unit == "client" else config.noise_multiplier
    target: float | None = config.target_epsilon
    affordable: float = math.inf
    how = config.accountant, config.adjacency
    if sigma is None:
        goal, affordable = 1.0 if target is None else target, max(1, rounds) * steps  # lost rounds are among them
        sigma = noise_for(goal, config.target_delta, Poisson(rate), affordable, *how)
    elif target is not None and config.unit == "record":
        affordable = _affordable(positive("target-epsilon", target), config.target_delta, Poisson(rate), sigma, *how)
        if affordable < steps:
            allowed = f"more, or a noise-multiplier above {sigma:g}: one round already costs more"
            raise SettingError("target-epsilon", target, allowed)
    reach = Reach(
        strategy.bound(config.max_grad_norm),
        sigma,
        rate * size,
        steps,
        config.lr,
        config.momentum,
        strategy.stretch,
    )
    account = Account(Poisson(rate), sigma, config.adjacency, config.accountant)  # type: ignore[arg-type]
    return Member(float(size) if config.client_weights == "size" else 1.0, account, reach, affordable)


def build_server(config: FederateConfig, source: Source, public: Records, sizes: Mapping[str, int]) -> Server:
    """The server of a config, for clients with these declared sizes.

    >>> config = FederateConfig(method="fedavg", noise_multiplier=1.0)
    >>> source = load("digits")
    >>> build_server(config, source, source.train[:0], {"a": 100, "b": 200}).chosen(1)
    ['a', 'b']
    """
    strategy = build_strategy(config, public)
    model = build_model(local_config(config, "dp-sgd"), source, public)
    if config.method == "moon":
        refuse_shallow(model)
    counts = participations(config, sizes)
    return Server(
        model,
        LOSSES[config.loss],
        strategy,
        {name: member(config, strategy, size, counts[name]) for name, size in sizes.items()},
        rounds=config.rounds,
        share=config.participation,
        seed=config.split_seed,
    )


def build_client(
    config: FederateConfig,
    name: str,
    data: Any,
    about: Member,
    strategy: Strategy,
    source: Source,
    *,
    rounds: int | None = None,
    persistent: PersistentState | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    label: str = "",
    stranger: bool = False,
) -> Client:
    """A client with a Trainer of its own, planned for so many rounds.

    `ledger`, `dataset` and `label` say where its steps are counted. `stranger` says that weights and public records
    come from somebody else, who sees whether the client answers. Then no error may depend on its records: those that
    occur among the public ones count for nothing instead, and the check for samples that interact uses made-up ones.

    >>> config = FederateConfig(method="fedavg", noise_multiplier=1.0)
    >>> source = load("digits")
    >>> server = build_server(config, source, source.train[:0], {"a": 1437})
    >>> client = build_client(config, "a", source.train, server.members["a"], server.strategy, source)
    >>> client.trainer.mechanism.steps
    50
    """
    model = build_model(replace(local_config(config, "dp-sgd"), warm_start="none"), source, source.train[:0])
    planned = max(1, config.rounds if rounds is None else rounds)
    seed = config.insecure_noise_seed
    number = names(config).index(name) if name in names(config) else 0
    whole_client = config.unit == "client"
    trainer = Trainer(
        model,
        LOSSES[config.loss],
        SGD(model.parameters(), positive("lr", config.lr), momentum=config.momentum),
        method=strategy.method,
        max_grad_norm=about.reach.max_grad_norm,
        sampler=about.account.sampler,
        expected_batch_size=about.reach.expected_batch_size,
        noise_multiplier=about.account.noise_multiplier,
        target_epsilon=None if config.noise_multiplier is None else config.target_epsilon,
        target_delta=config.target_delta,
        steps=planned * about.reach.steps,
        accountant=config.accountant,  # type: ignore[arg-type]
        adjacency=config.adjacency,
        max_physical_batch_size=config.max_physical_batch_size,
        noise=SecureNoise() if seed is None else SeededNoise(1009 * seed + number + 1),
        notes=_notes(strategy),
        ledger=None if whole_client else ledger,
        dataset=dataset,
        label=label,
        leave_out=strategy.public if stranger else None,
        untrusted_weights=stranger,
        example=_made_up(source, next(model.parameters()).device) if stranger else None,
        progress=False,
    )
    if rounds is not None and rounds < 1:
        trainer.account.charge(trainer.mechanism.steps)  # nothing is left: refused when asked
    each_round = None
    if whole_client and ledger is not None and seed is None:
        each_round = LedgerSession(ledger, as_records(config), planned, dataset=dataset, label=label)
    steps, bound = about.reach.steps, config.max_grad_norm
    return Client(
        name,
        trainer,
        data,
        strategy,
        steps=steps,
        max_grad_norm=bound,
        max_weight=positive("max-weight", config.max_weight),
        persistent=persistent,
        each_round=each_round,
    )


def _made_up(source: Source, device: torch.device, count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """A few records of the right shape that nobody has."""
    inputs = SeededNoise(0).normal(count * math.prod(source.input_shape)).reshape(count, *source.input_shape)
    targets = torch.arange(count) % max(2, source.classes)
    return inputs.to(device, source.train.inputs.dtype), targets.to(device, source.train.targets.dtype)


def _notes(strategy: Strategy) -> list[str]:
    """What a client's own statement says of public records that its Trainer does not see."""
    if strategy.public is None or strategy.method.public is not None:
        return []
    count = len(Loader(strategy.public, "public"))
    return [f"{count} records were used as public for uploads and are NOT protected."]


def as_records(config: FederateConfig) -> Account:
    """What a round costs one record, where the server protects whole clients.

    A record more or less turns its client's change into another one: two lengths of the bound, half the noise.

    >>> as_records(FederateConfig(unit="client", noise_multiplier=8.0)).noise_multiplier
    4.0
    """
    return Account(FullBatch(), private_mean(config).account.noise_multiplier / 2)


def build(
    config: FederateConfig,
    *,
    left: Mapping[str, int] | None = None,
    ledger: Ledger | None = None,
    label: Callable[[str], str] = str,
    dataset: str | None = None,
) -> Federation:
    """A whole federation in one process, on parts of one data set.

    `left` says in how many more rounds each client of a resumed run may take part. With a ledger each client's part is
    counted there, under its `label`; with a `dataset`, all parts for the data set of that name.

    >>> federation = build(FederateConfig(method="fedavg", noise_multiplier=1.0, clients=3))
    >>> [len(client.data) for client in federation.clients.values()]
    [479, 479, 479]
    """
    source = declared(config, load(config.data, config.data_dir))
    name = "pcdp" if config.method in PUBLIC else "dp-sgd"
    split = records(local_config(config, name), source)
    parts = partition(config, split.private, source).split(split.private.targets, config.clients, config.split_seed)
    train, heldout = {}, {}
    for client, part in zip(names(config), parts, strict=True):
        kept = _kept_back(config, part)
        heldout[client], train[client] = split.private[part[kept]], split.private[part[~kept]]
    server = build_server(config, source, split.public, {name: len(data) for name, data in train.items()})
    planned = participations(config, train) if left is None else left
    clients = {
        name: build_client(
            config, name, data, server.members[name], server.strategy, source,
            rounds=planned[name], ledger=ledger, dataset=dataset, label=label(name),
        )
        for name, data in train.items()
    }  # fmt: skip
    return Federation(server, clients, source, heldout if config.holdout else {}, len(split.public))


def _kept_back(config: FederateConfig, part: torch.Tensor) -> torch.Tensor:
    if not 0 <= config.holdout < 1:
        raise SettingError("holdout", config.holdout, "a share, 0 or above and below 1")
    count = round(config.holdout * len(part))
    if count >= len(part) or (config.holdout and not count):
        raise SettingError("holdout", config.holdout, f"a share that leaves a client with {len(part)} records some")
    kept = torch.zeros(len(part), dtype=torch.bool)
    kept[shuffle(len(part), SeededNoise(config.split_seed))[:count]] = True
    return kept
