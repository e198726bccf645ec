"""The commands that repeat a run or a comparison, built from its settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gnomon.runs.config import TrainConfig, as_text, default_settings
from gnomon.runs.federate_config import TRAINING_ONLY, FederateConfig, federated_defaults
from gnomon.runs.setting_names import current_name, dashed

GRID = frozenset({"method", "noise_multiplier", "target_epsilon", "seed", "insecure_noise_seed"})
"""Settings that a comparison chooses for each of its runs."""


def run_command(config: Mapping[str, Any], *, deployed: bool = False) -> str:
    """Return the command that repeats a training run or a simulated federation.

    The result is empty for a deployed federation, which needs a command on every site.

    >>> run_command({"data": "digits", "method": "fedavg", "clients": 3, "rounds": 10})
    'gnomon federate --simulate --data digits --method fedavg --clients 3'
    """
    if not ("clients" in config and "rounds" in config):
        return train_command(config)
    return "" if deployed else federate_command(config)


def train_command(config: Mapping[str, Any]) -> str:
    """Return `gnomon train` with every setting that differs from the default for its data set and method.

    >>> train_command({"data": "digits", "epochs": 5.0, "lr": 1.0, "target-epsilon": 1.0})
    'gnomon train --data digits --epochs 5 --target-epsilon 1'
    """
    return _command(["gnomon", "train"], config, _defaults(config))


def federate_command(config: Mapping[str, Any]) -> str:
    """Return `gnomon federate --simulate` with every setting that applies to federations and differs from its default.

    >>> federate_command({"data": "mnist", "lr": 5.0, "rounds": 3, "epochs": 30.0})
    'gnomon federate --simulate --data mnist --rounds 3'
    """
    settings = {key: value for key, value in config.items() if current_name(key) not in TRAINING_ONLY}
    return _command(["gnomon", "federate", "--simulate"], settings, federated_defaults(_data(config)))


def compare_command(
    config: Mapping[str, Any],
    methods: Sequence[str],
    noise_multipliers: Sequence[float],
    seeds: int,
    target_epsilons: Sequence[float] = (),
) -> str:
    """Return `gnomon compare` with its methods, noise levels, seeds, and every setting that differs from its default.

    >>> compare_command({"data": "digits", "epochs": 5.0}, ["dp-sgd", "pcdp:rank=5"], [2.0], 3)
    'gnomon compare --methods dp-sgd,pcdp:rank=5 --noise-multipliers 2 --seeds 3 --data digits --epochs 5'
    """
    flag, values = (
        ("--target-epsilons", target_epsilons) if target_epsilons else ("--noise-multipliers", noise_multipliers)
    )
    levels = ",".join(map(as_text, values))
    start = ["gnomon", "compare", "--methods", ",".join(methods), flag, levels, "--seeds", str(seeds)]
    settings = {key: value for key, value in config.items() if current_name(key) not in GRID}
    return _command(start, settings, default_settings(_data(config)))


def _data(config: Mapping[str, Any]) -> str:
    return str(config.get("data", TrainConfig().data))


def _defaults(config: Mapping[str, Any]) -> TrainConfig:
    return default_settings(_data(config), str(config.get("method", TrainConfig().method)))


def _command(words: list[str], config: Mapping[str, Any], defaults: TrainConfig | FederateConfig) -> str:
    """Return a command with a flag for every setting that differs from its default."""
    words += ["--data", defaults.data]
    for key, value in config.items():
        name = current_name(key)
        if name != "data" and value is not None and value != getattr(defaults, name, None):
            flag, text = f"--{dashed(name)}", as_text(value)
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return shlex.join(words)
