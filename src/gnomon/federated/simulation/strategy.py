"""The strategy that settings stand for, by the name of its method."""

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
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.simulation.settings import local_config, refuse_unused
from gnomon.federated.strategies.published import STRATEGIES, Strategy
from gnomon.release import SecureNoise, SeededNoise
from gnomon.runs.builders import build_method
from gnomon.runs.federate_config import FederateConfig
from gnomon.validate import positive

LOCAL = {"fedpdp": "pdp", "fedpcdp": "pcdp"}
"""The local method, where it is not DP-SGD."""

PUBLIC = ("pfa", "fedpdp", "fedpcdp")
"""Methods that need public records."""


def build_strategy(config: FederateConfig, public: Records) -> Strategy:
    """Return the strategy of a config: the function of its name, with the settings that its signature asks for.

    >>> from gnomon.data import load
    >>> build_strategy(FederateConfig(method="fedprox", proximal_mu=0.5), load("digits").train[:0]).components
    (Prox(mu=0.5),)
    """
    refuse_unused(config)
    lr = positive("lr", config.lr)
    settings: dict[str, Any] = {
        "lr": lr,
        "mu": config.proximal_mu,
        "weight": config.contrast,
        "temperature": config.temperature,
        "limit": config.update_limit,
        "fraction": config.upload_fraction,
        "strength": config.fairness_lambda,
        "most": config.fairness_limit,
        "ratio": config.loss_noise,
        "q": config.fairness_exponent,
        "public": public,
        "rank": 100 if config.rank is None else config.rank,
        "per_tensor": config.subspace_scope == "per-tensor",
        "public_batch": config.public_batch,
        "local": build_method(local_config(config, LOCAL.get(config.method, "dp-sgd")), public),
    }
    build = STRATEGIES[config.method]
    strategy = build(**{name: settings[name] for name in inspect.signature(build).parameters})
    for component in strategy.components:
        component.suits(lr, config.momentum)
    if config.unit == "client":
        return dataclasses.replace(strategy, aggregate=private_mean(config))
    return dataclasses.replace(strategy, aggregate=strategy.aggregate.with_lr(config.server_lr))


def private_mean(config: FederateConfig) -> PrivateMean:
    """The noisy mean that protects whole clients. Everybody may be asked in every round, so nothing is amplified.

    >>> private_mean(FederateConfig(unit="client", noise_multiplier=5.0)).account.sampler.name
    'full batch'
    """
    sigma, accountant = config.noise_multiplier, config.accountant
    if config.adjacency not in (None, "zero-out"):
        raise SettingError("adjacency", config.adjacency, "none for unit client: a client that is left out counts as 0")
    if config.client_weights != "uniform":
        allowed = "uniform for unit client: its bound is that of one client's change as it is"
        raise SettingError("client-weights", config.client_weights, allowed)
    if sigma is not None and config.target_epsilon is not None:
        raise SettingError("target-epsilon", config.target_epsilon, "none beside a noise-multiplier for unit client")
    affordable = math.inf
    if sigma is None:
        target = 1.0 if config.target_epsilon is None else config.target_epsilon
        sigma = noise_for(target, config.target_delta, FullBatch(), config.rounds, accountant, "zero-out")
        affordable = config.rounds  # a round that is lost is one of them
    asked = max(1, round(config.participation * config.clients))
    seed = config.insecure_noise_seed
    noise = SecureNoise() if seed is None else SeededNoise(1009 * seed)
    account = Account(FullBatch(), sigma, "zero-out", accountant)  # type: ignore[arg-type]
    return PrivateMean(config.client_clip, account, asked, config.server_lr, noise, affordable)


@functools.cache
def noise_for(
    target: float, delta: float, sampler: Sampling, steps: int, accountant: Any, adjacency: str | None
) -> float:
    """The noise multiplier that a target asks for; the same question is answered from memory.

    >>> round(noise_for(1.0, 1e-5, FullBatch(), 1, "pld", None), 2)
    3.73
    """
    return accounting.noise_multiplier(
        target_epsilon=target, delta=delta, sampler=sampler, steps=steps, accountant=accountant, adjacency=adjacency
    )
