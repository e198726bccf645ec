"""The method that settings stand for."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

from gnomon import clipping
from gnomon.data import Records
from gnomon.errors import SettingError
from gnomon.methods import FORMS, METHODS, LocalSteps, Method
from gnomon.runs.config import FAIR, TrainConfig, recipe

METHOD_SETTINGS = {
    "rank": "rank",
    "scope": "per_tensor",
    "every": "every",
    "start": "start",
    "public_batch": "batch",
    "public_blocks": "blocks",
    "mask_rate": "rate",
    "residual": "residual",
    "pre_noise": "pre_noise",
    "constraint": "constraint",
    "sketch": "sketch",
    "form": "form",
    "iterate": "last",
}
"""Settings that only some methods have, and what the methods call them."""

LOCAL_SETTINGS = ("local_steps", "local_lr", "local_momentum")
"""Settings of local steps, which go with every method."""


def build_method(config: TrainConfig, public: Records) -> Method:
    """The method that a config stands for; settings that it does not have are refused.

    >>> from gnomon.data import load
    >>> build_method(TrainConfig(mask_rate=0.5, method="rsdp"), load("digits").train[:0]).subspace.name
    'random mask, rate 0.5'
    """
    maker = METHODS[_method_name(config)]
    wanted = inspect.signature(maker).parameters
    given: dict[str, Any] = {}
    if "clip" in wanted:
        given["clip"] = clipping.RULES[config.clip]()
    elif config.clip != TrainConfig().clip or config.max_grad_norm != recipe(config.data).max_grad_norm:
        raise SettingError("clip", config.clip, f"another method: {config.method} does not clip")
    if "constraint" in wanted:
        given["constraint"] = config.constraint
    if "public" in wanted:
        given["public"] = public
    for name in _changed(config):
        if METHOD_SETTINGS[name] not in wanted:
            flag = name.replace("_", "-")
            raise SettingError(flag, getattr(config, name), f"another method: {config.method} has no {flag}")
        given[METHOD_SETTINGS[name]] = getattr(config, name)
    if "form" in given:
        given["form"] = FORMS[config.form]
    if "last" in given:
        given["last"] = config.iterate == "last"
    if "per_tensor" in given:
        given["per_tensor"] = config.scope == "per-tensor"
    if config.rank is not None and math.isfinite(config.rank) and config.rank == int(config.rank):
        given["rank"] = int(config.rank)
    return _with_local_steps(config, maker(**given))


def _with_local_steps(config: TrainConfig, method: Method) -> Method:
    """Local steps go with every method; their settings without them are refused."""
    default = TrainConfig()
    if config.local_steps is None and not method.displaces:
        for name in ("local_lr", "local_momentum"):
            if getattr(config, name) != getattr(default, name):
                flag = name.replace("_", "-")
                raise SettingError(flag, getattr(config, name), "local-steps as well, or --method dp-lsgd")
        return method
    steps = LocalSteps().steps if config.local_steps is None else config.local_steps
    return dataclasses.replace(method, update=LocalSteps(steps, config.local_lr, config.local_momentum))


def methods_with(setting: str) -> list[str]:
    """The methods that have a setting.

    >>> methods_with("mask_rate"), len(methods_with("local_steps")) == len(METHODS)
    (['rsdp'], True)
    """
    if setting in LOCAL_SETTINGS:
        return list(METHODS)
    wanted = METHOD_SETTINGS[setting]
    return [name for name, maker in METHODS.items() if wanted in inspect.signature(maker).parameters]


def without_foreign_settings(config: TrainConfig) -> TrainConfig:
    """The config without settings that its method does not have, for comparisons where only some methods have them.

    >>> without_foreign_settings(TrainConfig(rank=20)).rank is None
    True
    """
    wanted = inspect.signature(METHODS[_method_name(config)]).parameters
    foreign = [name for name in _changed(config) if METHOD_SETTINGS[name] not in wanted]
    foreign += [] if config.method == "dp-lsgd" else LOCAL_SETTINGS
    return dataclasses.replace(config, **{name: getattr(TrainConfig(), name) for name in foreign})


def unknown_method(name: str, *more: str) -> SettingError:
    """The error for a method that is none, nor one of some more names.

    >>> str(unknown_method("fair"))[-56:]
    'released with noise: use gnomon federate --method fedfdp'
    """
    hint = f"; {FAIR}" if name == "fair" else ""
    return SettingError("method", name, f"one of {', '.join([*METHODS, *more])}{hint}")


def _method_name(config: TrainConfig) -> str:
    if config.method not in METHODS:
        raise unknown_method(config.method)
    return config.method


def _changed(config: TrainConfig) -> list[str]:
    return [name for name in METHOD_SETTINGS if getattr(config, name) != getattr(TrainConfig(), name)]
