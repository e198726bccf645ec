"""The methods of a comparison: names, each with settings of its own, as data and as text such as `pcdp:rank=50`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.errors import SettingError
from gnomon.methods import METHODS
from gnomon.runs.builders import without_foreign_settings
from gnomon.runs.builders.method import LOCAL_SETTINGS, METHOD_SETTINGS, methods_with, unknown_method
from gnomon.runs.config import TrainConfig, as_text
from gnomon.runs.setting_names import current_name, dashed

PUBLIC_ONLY = "public-only"
"""The baseline that trains on the public records alone, at epsilon 0."""

SEED_SETTINGS = ("seed", "insecure_noise_seed")
"""Settings that a comparison chooses for each of its runs."""


@dataclass(frozen=True)
class MethodSpec:
    """A method of a comparison, with the settings that apply to this method alone.

    Args:
        name: the name of a method, or `public-only`.
        settings: settings of the method, by their names with dashes or underscores; former names are translated.
        label: the name in tables and figures; by default the method with its settings, under the names given.

    >>> MethodSpec("pcdp", {"rank": 50.0, "subspace-scope": "per-tensor"}).label
    'pcdp:rank=50,subspace-scope=per-tensor'
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def __post_init__(self) -> None:
        if self.name not in METHODS and self.name != PUBLIC_ONLY:
            raise unknown_method(self.name, PUBLIC_ONLY)
        settings = {current_name(key): value for key, value in self.settings.items()}
        for key in SEED_SETTINGS:
            if key in settings:
                raise SettingError.with_message(
                    f"{key} = {settings[key]} cannot be set for one method: a comparison chooses the seeds of its "
                    "runs; set their number with --seeds",
                    name=key,
                    value=settings[key],
                )
        if not self.label:
            text = ",".join(f"{dashed(key)}={as_text(value)}" for key, value in self.settings.items())
            object.__setattr__(self, "label", f"{self.name}:{text}" if text else self.name)
        object.__setattr__(self, "settings", settings)

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Return the method that a text describes. The text becomes the label.

        >>> MethodSpec.parse("pcdp:rank=50").settings
        {'rank': 50}
        """
        name, _, rest = text.partition(":")
        settings: dict[str, Any] = {}
        for item in _items(rest.split(",")):
            key, equals, value = item.partition("=")
            if not equals:
                raise SettingError(
                    "method", text, "a method with settings such as pcdp:rank=50,subspace-scope=per-tensor"
                )
            settings[key] = int(value) if value.isdigit() else value
        return cls(name, settings, text)

    @property
    def is_public_only(self) -> bool:
        """Whether this is the baseline that trains on the public records alone."""
        return self.name == PUBLIC_ONLY


def method_specs(methods: Sequence[str | MethodSpec]) -> list[MethodSpec]:
    """Return methods as specifications, with texts parsed.

    >>> [spec.name for spec in method_specs(["dp-sgd", MethodSpec("pcdp", {"rank": 50})])]
    ['dp-sgd', 'pcdp']
    """
    return [MethodSpec.parse(method) if isinstance(method, str) else method for method in methods]


def split_methods(text: str) -> list[str]:
    """Split a list of methods at the commas that do not separate the settings of one method.

    >>> split_methods("dp-sgd,pcdp:rank=50,subspace-scope=per-tensor,public-only")
    ['dp-sgd', 'pcdp:rank=50,subspace-scope=per-tensor', 'public-only']
    >>> split_methods("dp-comp-gd:constraint=box:-1,1,sketch-dimension=50,dp-sgd")
    ['dp-comp-gd:constraint=box:-1,1,sketch-dimension=50', 'dp-sgd']
    """
    methods: list[str] = []
    for item in _items(re.split("[,;]", text)):
        if "=" in item and ":" not in item.partition("=")[0] and methods:
            methods[-1] += f",{item}"
        else:
            methods.append(item)
    return methods


def _items(parts: Sequence[str]) -> list[str]:
    """Join the parts of values that contain commas: a number after a setting belongs to it, as in box:-1,1."""
    items: list[str] = []
    for part in filter(None, parts):
        if items and "=" in items[-1] and _is_number(part):
            items[-1] += f",{part}"
        else:
            items.append(part)
    return items


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse_unused_settings(base: TrainConfig, specs: Sequence[MethodSpec]) -> None:
    """Raise an error if a common setting has no effect on any method of a comparison.

    A setting that only some methods have applies to these. Common local steps apply to dp-lsgd alone, so that dp-lsgd
    can be compared with methods without local steps.

    Raises:
        SettingError: no method uses the setting. The message says how to give it to a method.

    >>> refuse_unused_settings(TrainConfig(local_steps=3), method_specs(["dp-sgd", "dp-lsgd"]))
    >>> refuse_unused_settings(TrainConfig(local_steps=3), method_specs(["pcdp"]))
    Traceback (most recent call last):
    gnomon.errors.SettingError: local-steps = 3 applies to dp-lsgd only; write pcdp:local-steps=3 to use it with pcdp
    """
    defaults, private = TrainConfig(), [spec for spec in specs if not spec.is_public_only]
    for name in (*METHOD_SETTINGS, *LOCAL_SETTINGS):
        value = getattr(base, name)
        if value != getattr(defaults, name) and not any(_uses(base, spec, name) for spec in private):
            raise _unused_setting(name, value, private)


def _uses(base: TrainConfig, spec: MethodSpec, name: str) -> bool:
    """Return whether a method takes a setting from the common ones."""
    if name in spec.settings:
        return False
    config = without_foreign_settings(dataclasses.replace(base, method=spec.name))
    return bool(getattr(config, name) == getattr(base, name))


def _unused_setting(name: str, value: object, specs: Sequence[MethodSpec]) -> SettingError:
    """Return the error for a common setting that has no effect, with the way to give it to a method."""
    setting, able = dashed(name), methods_with(name)
    suited = [spec for spec in specs if spec.name in able]
    without_own_value = [spec.name for spec in suited if name not in spec.settings]
    if without_own_value:  # only local steps: any other setting applies to all methods that have it
        method = without_own_value[0]
        reason = f"applies to dp-lsgd only; write {method}:{setting}={as_text(value)} to use it with {method}"
    elif suited:
        reason = "has no effect, because every method that has this setting sets a value of its own; remove one of them"
    else:
        reason = f"has no effect on the compared methods; add a method that has this setting: {', '.join(able)}"
    return SettingError.with_message(f"{setting} = {as_text(value)} {reason}", name=setting, value=value)
