"""The methods of a comparison as people write them: names, each with settings of its own."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from gnomon.errors import SettingError
from gnomon.methods import METHODS
from gnomon.runs.builders import without_foreign_settings
from gnomon.runs.builders.method import LOCAL_SETTINGS, METHOD_SETTINGS, methods_with, unknown_method
from gnomon.runs.config import TrainConfig, as_text
from gnomon.runs.setting_names import current_name, dashed

PUBLIC_ONLY = "public-only"
SEEDS = ("seed", "insecure-noise-seed")
"""Settings that a comparison gives each of its runs."""


def split_methods(text: str) -> list[str]:
    """Methods in a list, where commas also separate a method's own settings.

    >>> split_methods("dp-sgd,pcdp:rank=50,subspace-scope=per-tensor,public-only")
    ['dp-sgd', 'pcdp:rank=50,subspace-scope=per-tensor', 'public-only']
    >>> split_methods("dp-comp-gd:constraint=box:-1,1,sketch-dimension=50,dp-sgd")
    ['dp-comp-gd:constraint=box:-1,1,sketch-dimension=50', 'dp-sgd']
    """
    parts: list[str] = []
    for item in _items(re.split("[,;]", text)):
        if "=" in item and ":" not in item.partition("=")[0] and parts:
            parts[-1] += f",{item}"
        else:
            parts.append(item)
    return parts


def settings_of_label(label: str) -> tuple[str, dict[str, Any]]:
    """The method of a label, and its own settings.

    >>> settings_of_label("pcdp:rank=50")
    ('pcdp', {'rank': 50})
    """
    name, _, rest = label.partition(":")
    if name not in METHODS and name != PUBLIC_ONLY:
        raise unknown_method(name, PUBLIC_ONLY)
    own: dict[str, Any] = {}
    for item in _items(rest.split(",")):
        key, found, value = item.partition("=")
        if not found:
            raise SettingError("method", label, "settings as name:key=value,key=value")
        if key.replace("_", "-") in SEEDS:
            raise SettingError(key, value, "--seeds instead: a comparison seeds its runs itself")
        own[key] = int(value) if value.isdigit() else value
    return name, own


def _items(parts: Sequence[str]) -> list[str]:
    """Parts of a list, where a number behind a setting is more of its value, as in constraint=box:-1,1."""
    found: list[str] = []
    for part in filter(None, parts):
        if found and "=" in found[-1] and _is_number(part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse_unheard(base: TrainConfig, methods: Sequence[str]) -> None:
    """An error if a common setting reaches no method of a comparison.

    Settings that only some methods have go to those. Local steps given in common are for dp-lsgd alone, so that it can
    stand beside methods without them.

    >>> refuse_unheard(TrainConfig(local_steps=3), ["dp-sgd", "dp-lsgd"])
    >>> refuse_unheard(TrainConfig(local_steps=3), ["pcdp"])
    Traceback (most recent call last):
    gnomon.errors.SettingError: local-steps applies to dp-lsgd only: write pcdp:local-steps=3 for another method
    """
    default, private = TrainConfig(), [label for label in methods if settings_of_label(label)[0] != PUBLIC_ONLY]
    for name in (*METHOD_SETTINGS, *LOCAL_SETTINGS):
        value = getattr(base, name)
        if value != getattr(default, name) and not any(_hears(base, label, name) for label in private):
            raise SettingError.with_message(_unused(base, private, name), name=dashed(name), value=value)


def _hears(base: TrainConfig, label: str, name: str) -> bool:
    """Whether a method takes a setting from the common ones."""
    method, own = settings_of_label(label)
    if name in map(current_name, own):
        return False
    kept = without_foreign_settings(dataclasses.replace(base, method=method))
    return bool(getattr(kept, name) == getattr(base, name))


def _unused(base: TrainConfig, methods: Sequence[str], name: str) -> str:
    """Return the message for a common setting that no method of a comparison takes."""
    usable = methods_with(name)
    able = [method for method in (settings_of_label(label)[0] for label in methods) if method in usable]
    if name in LOCAL_SETTINGS:
        example = f"{able[0] if able else 'pcdp'}:{dashed(name)}={as_text(getattr(base, name))}"
        return f"{dashed(name)} applies to dp-lsgd only: write {example} for another method"
    if able:
        return f"{dashed(name)} is set by every method of the comparison that has it: remove the common value"
    return f"{dashed(name)} applies to {', '.join(usable)} only: add one of these methods, or remove it"
