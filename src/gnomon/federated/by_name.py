"""The strategy that settings stand for, by the name of its method."""

from __future__ import annotations

import functools
import math
from typing import Any

from gnomon import accounting
from gnomon.accounting import Account, FullBatch, Sampling
from gnomon.building import build_method
from gnomon.data import Records
from gnomon.federated.aggregates import Aggregate, Mean, QFair
from gnomon.federated.pieces import Blur, Controls, FairClip, FairPace, Losses, Moon, Piece, Prox
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.settings import local_config, refuse_unused
from gnomon.federated.strategies import Strategy
from gnomon.federated.uploads import Coordinates, Largest, Upload, Whole
from gnomon.federated_config import FederateConfig
from gnomon.release import SecureNoise, SeededNoise
from gnomon.subspaces import PublicEigenspace
from gnomon.validate import SettingError, positive

LOCAL = {"fedpdp": "pdp", "fedpcdp": "pcdp"}
"""The local method, where it is not DP-SGD."""

PUBLIC = ("pfa", "fedpdp", "fedpcdp")
"""Methods that need public records."""


def build_strategy(config: FederateConfig, public: Records) -> Strategy:
    """The strategy that a config stands for.

    >>> from gnomon.data import load
    >>> build_strategy(FederateConfig(method="fedprox", mu=0.5), load("digits").train[:0]).pieces
    (Prox(mu=0.5),)
    """
    refuse_unused(config)
    name = config.method
    method = build_method(local_config(config, LOCAL.get(name, "dp-sgd")), public)
    losses = Losses(config.loss_noise)
    pieces: dict[str, tuple[Piece, ...]] = {
        "fedprox": (Prox(config.mu),),
        "scaffold": (Controls(),),
        "moon": (Moon(config.contrast, config.temperature),),
        "fedlrs": (Blur(config.mu, config.update_limit),),
        "fedfair": (FairPace(config.fair, config.fair_most), losses),
        "fedfdp": (FairClip(config.fair, config.fair_most), losses),
        "q-ffl": (losses,),
    }
    upload: Upload = Whole()
    if name in PUBLIC:
        upload = Coordinates()
    elif name == "fedlrs":
        upload = Largest(config.keep)
    aggregate: Aggregate = Mean(config.server_lr)
    if config.unit == "client":
        aggregate = private_mean(config)
    elif name == "q-ffl":
        aggregate = QFair(config.q, 1 / positive("lr", config.lr), config.server_lr)
    space = None
    if name == "pfa":
        rank = 100 if config.rank is None else config.rank
        space = PublicEigenspace(public, rank, config.scope == "per-tensor", batch=config.public_batch)
    for piece in pieces.get(name, ()):
        piece.suits(positive("lr", config.lr), config.momentum)
    return Strategy(name, method, upload, aggregate, pieces.get(name, ()), space)


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
