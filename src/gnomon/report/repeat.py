"""The command that repeats a run, from its settings alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gnomon.config import recipe

GRID = frozenset({"method", "noise_multiplier", "target_epsilon", "seed", "insecure_noise_seed"})
"""Settings that a comparison varies itself."""


def train_command(config: Mapping[str, Any]) -> str:
    """`gnomon train` with every setting that is not the default for its data set.

    >>> train_command({"data": "digits", "epochs": 5.0, "lr": 1.0, "target-epsilon": 1.0})
    'gnomon train --data digits --epochs 5 --target-epsilon 1'
    """
    return _command(["gnomon", "train"], config)


def compare_command(
    config: Mapping[str, Any], methods: Sequence[str], noise_multipliers: Sequence[float], seeds: int
) -> str:
    """`gnomon compare` with its grid and every setting that is not the default.

    >>> compare_command({"data": "digits", "epochs": 5.0}, ["dp-sgd", "pcdp:rank=5"], [2.0], 3)
    'gnomon compare --methods dp-sgd,pcdp:rank=5 --noise-multipliers 2 --seeds 3 --data digits --epochs 5'
    """
    levels = ",".join(f"{level:g}" for level in noise_multipliers)
    start = ["gnomon", "compare", "--methods", ",".join(methods), "--noise-multipliers", levels, "--seeds", str(seeds)]
    return _command(start, {key: value for key, value in config.items() if key.replace("-", "_") not in GRID})


def _command(words: list[str], config: Mapping[str, Any]) -> str:
    data = str(config.get("data", "digits"))
    default = vars(recipe(data))
    words += ["--data", data]
    for key, value in config.items():
        name = key.replace("-", "_")
        if name != "data" and value is not None and value != default.get(name):
            text = f"{value:.12g}" if isinstance(value, float) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)
