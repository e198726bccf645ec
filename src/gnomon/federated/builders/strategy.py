"""Build the strategy that the settings of a run name."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from typing import Any

from gnomon import accounting
from gnomon.accounting import Account, FullBatch, Sampling
from gnomon.data import Records
from gnomon.errors import SettingError
from gnomon.federated.builders.settings import local_config
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.strategies.published import STRATEGIES, Strategy
from gnomon.release import SecureNoise, SeededNoise
from gnomon.runs.builders import build_method
from gnomon.runs.federate_config import FederateConfig
from gnomon.validate import positive

LOCAL_METHODS = {"fedpdp": "pdp", "fedpcdp": "pcdp"}
"""The local method of strategies whose clients do not run DP-SGD."""

NEEDS_PUBLIC = ("pfa", "fedpdp", "fedpcdp")
"""Strategies that need public records."""


def build_strategy(config: FederateConfig, public: Records) -> Strategy:
    """Return the strategy of a config: the published function of that name, with the settings that it takes.

    >>> from gnomon.data import load
    >>> build_strategy(FederateConfig(method="fedprox", proximal_mu=0.5), load("digits").train[:0]).components
    (Proximal(mu=0.5),)
    """
    lr = positive("lr", config.lr)
    arguments: dict[str, Any] = {
        "lr": lr,
        "mu": config.proximal_mu,
        "weight": config.contrast,
        "temperature": config.temperature,
        "limit": config.update_limit,
        "fraction": config.upload_fraction,
        "strength": config.fairness_lambda,
        "max_factor": config.fairness_limit,
        "ratio": config.loss_noise,
        "q": config.fairness_exponent,
        "public": public,
        "rank": 100 if config.rank is None else config.rank,
        "per_tensor": config.subspace_scope == "per-tensor",
        "public_batch": config.public_batch,
        "local": build_method(local_config(config, LOCAL_METHODS.get(config.method, "dp-sgd")), public),
    }
    build = STRATEGIES[config.method]
    strategy = build(**{name: arguments[name] for name in inspect.signature(build).parameters})
    for component in strategy.components:
        component.check_optimizer(lr, config.momentum)
    if config.unit == "client":
        return dataclasses.replace(strategy, aggregator=build_private_mean(config))
    return dataclasses.replace(strategy, aggregator=strategy.aggregator.with_lr(config.server_lr))


def build_private_mean(config: FederateConfig) -> PrivateMean:
    """Return the aggregator that protects whole clients.

    Every client may be selected in every round, so the account claims no amplification.

    >>> build_private_mean(FederateConfig(unit="client", noise_multiplier=5.0)).account.sampler.name
    'full batch'
    """
    noise_multiplier, accountant = config.noise_multiplier, config.accountant
    if config.adjacency not in (None, "zero-out"):
        raise SettingError(
            "adjacency", config.adjacency, "zero-out or no value with unit client: a client left out counts as zero"
        )
    if config.client_weights != "uniform":
        raise SettingError(
            "client-weights", config.client_weights, "uniform with unit client, whose bound holds for equal weights"
        )
    if noise_multiplier is not None and config.target_epsilon is not None:
        raise SettingError.with_message(
            "set either target-epsilon or noise-multiplier with unit client, not both",
            name="target-epsilon",
            value=config.target_epsilon,
        )
    max_rounds = math.inf
    if noise_multiplier is None:
        target = 1.0 if config.target_epsilon is None else config.target_epsilon
        noise_multiplier = noise_for_target(
            target, config.target_delta, FullBatch(), config.rounds, accountant, "zero-out"
        )
        max_rounds = config.rounds  # a round that was lost in a crash is one of them
    selected = max(1, round(config.participation * config.clients))
    seed = config.insecure_noise_seed
    noise = SecureNoise() if seed is None else SeededNoise(1009 * seed)
    account = Account(FullBatch(), noise_multiplier, "zero-out", accountant)  # type: ignore[arg-type]
    return PrivateMean(config.client_clip, account, selected, config.server_lr, noise, max_rounds)


@functools.cache
def noise_for_target(
    target: float, delta: float, sampler: Sampling, steps: int, accountant: Any, adjacency: str | None
) -> float:
    """Return the noise multiplier for a target epsilon. Results are cached: many clients have the same settings.

    >>> round(noise_for_target(1.0, 1e-5, FullBatch(), 1, "pld", None), 2)
    3.73
    """
    return accounting.noise_multiplier(
        target_epsilon=target, delta=delta, sampler=sampler, steps=steps, accountant=accountant, adjacency=adjacency
    )
