"""Builds the method that the settings of a run describe."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnomon import clipping, validate
from gnomon.data import Records
from gnomon.errors import SettingError
from gnomon.methods import FORMS, METHODS, Augmentation, CropAndFlip, LocalSteps, Method, Views
from gnomon.runs.config import FAIR, TrainConfig, default_settings
from gnomon.runs.setting_names import dashed


def _unchanged(value: Any) -> Any:
    return value


def _int_if_whole(value: float) -> float:
    """Return a rank such as 50.0 as an int; a share of energy such as 0.9 stays a float."""
    return int(value) if math.isfinite(value) and value == int(value) else value


@dataclass(frozen=True)
class MethodParameter:
    """The parameter of a method's function that a setting provides."""

    name: str
    convert: Callable[[Any], Any] = _unchanged
    """Turns the value of the setting into the value of the parameter."""


METHOD_SETTINGS: dict[str, MethodParameter] = {
    "rank": MethodParameter("rank", _int_if_whole),
    "subspace_scope": MethodParameter("per_tensor", "per-tensor".__eq__),
    "refresh_basis_every": MethodParameter("every"),
    "project_from_epoch": MethodParameter("start"),
    "public_batch": MethodParameter("batch"),
    "public_blocks": MethodParameter("blocks"),
    "mask_rate": MethodParameter("rate"),
    "residual_bound": MethodParameter("residual"),
    "pre_noise": MethodParameter("pre_noise"),
    "constraint": MethodParameter("constraint"),
    "sketch_dimension": MethodParameter("sketch"),
    "sketch_form": MethodParameter("form", FORMS.__getitem__),
    "returned_iterate": MethodParameter("last", "last".__eq__),
}
"""Settings that only some methods have. A method has a setting if its function has the parameter."""

LOCAL_SETTINGS = {"local_steps": "steps", "local_lr": "lr", "local_momentum": "momentum"}
"""Settings of local steps, which every method accepts, and the parameters of methods that always take local steps."""


AUGMENTATIONS: dict[str, Augmentation | None] = {"none": None, "crop-and-flip": CropAndFlip()}
"""Augmentations by the name of the setting."""


def build_method(config: TrainConfig, public: Records) -> Method:
    """Return the method that a config describes.

    Args:
        config: the settings of the run.
        public: the public records, for methods that read them.

    Raises:
        SettingError: the method is unknown, or the config changes a setting that the method does not have.

    >>> from gnomon.data import load
    >>> build_method(TrainConfig(mask_rate=0.5, method="rsdp"), load("digits").train[:0]).subspace.name
    'random mask, rate 0.5'
    """
    parameters = _parameters(config.method)
    arguments: dict[str, Any] = {}
    if "clip" in parameters:
        arguments["clip"] = clipping.RULES[config.clip]()
    else:
        _refuse_clipping(config)
    if "constraint" in parameters:
        arguments["constraint"] = config.constraint
    if "public" in parameters:
        arguments["public"] = public
    for setting in _changed(config):
        parameter = METHOD_SETTINGS[setting]
        if parameter.name not in parameters:
            raise SettingError.with_message(
                f"{dashed(setting)} applies to {', '.join(methods_with(setting))} only, not to {config.method}: "
                "remove it, or choose another method",
                name=dashed(setting),
                value=getattr(config, setting),
            )
        arguments[parameter.name] = parameter.convert(getattr(config, setting))
    return _with_views(config, _with_local_steps(config, METHODS[config.method](**arguments)))


def _refuse_clipping(config: TrainConfig) -> None:
    """Raise SettingError if the settings of clipping were changed for a method that does not clip."""
    if config.clip != TrainConfig().clip:
        raise SettingError("clip", config.clip, f"no clip rule: the method {config.method} does not clip")
    if config.max_grad_norm != default_settings(config.data).max_grad_norm:
        raise SettingError(
            "max-grad-norm", config.max_grad_norm, f"no clip bound: the method {config.method} does not clip"
        )


def _with_local_steps(config: TrainConfig, method: Method) -> Method:
    """Return the method with the local steps of the config; their other settings without local steps are refused."""
    defaults = TrainConfig()
    if config.local_steps is None and not method.displaces:
        for name in LOCAL_SETTINGS:
            if getattr(config, name) != getattr(defaults, name):
                raise SettingError.with_message(
                    f"{dashed(name)} applies to local steps only: set local-steps as well, or use the method dp-lsgd",
                    name=dashed(name),
                    value=getattr(config, name),
                )
        return method
    steps = LocalSteps().steps if config.local_steps is None else config.local_steps
    return dataclasses.replace(method, update=LocalSteps(steps, config.local_lr, config.local_momentum))


def _with_views(config: TrainConfig, method: Method) -> Method:
    """Return the method with the views of the config as its update."""
    if config.augmentation not in AUGMENTATIONS:
        raise SettingError("augmentation", config.augmentation, f"one of {', '.join(AUGMENTATIONS)}")
    augmentation = AUGMENTATIONS[config.augmentation]
    if config.views is None and augmentation is None:
        return method
    views = Views(1 if config.views is None else validate.whole("views", config.views), augmentation)
    if method.displaces:
        name, value = ("augmentation", config.augmentation) if config.views is None else ("views", config.views)
        problem = "views cannot be combined with local steps: remove one of the two"
        raise SettingError.with_message(f"{name} = {value}: {problem}", name=name, value=value)
    if augmentation is None and views.views > 1:
        raise SettingError.with_message(
            f"views = {views.views} has no effect without an augmentation, because all views are equal: set "
            "augmentation to crop-and-flip, or remove views",
            name="views",
            value=views.views,
        )
    return dataclasses.replace(method, update=views)


def methods_with(setting: str) -> list[str]:
    """Return the names of the methods that have a setting.

    >>> methods_with("mask_rate"), len(methods_with("local_steps")) == len(METHODS)
    (['rsdp'], True)
    """
    if setting in LOCAL_SETTINGS:
        return list(METHODS)
    return [name for name in METHODS if METHOD_SETTINGS[setting].name in _parameters(name)]


def without_foreign_settings(config: TrainConfig) -> TrainConfig:
    """Return the config with the defaults of all settings that its method does not have.

    Comparisons use it: a common setting reaches only the methods that have it, and common settings of local steps only
    the methods that always take local steps.

    >>> without_foreign_settings(TrainConfig(rank=20)).rank is None
    True
    """
    parameters = _parameters(config.method)
    foreign = [name for name in _changed(config) if METHOD_SETTINGS[name].name not in parameters]
    foreign += [name for name, parameter in LOCAL_SETTINGS.items() if parameter not in parameters]
    return dataclasses.replace(config, **{name: getattr(TrainConfig(), name) for name in foreign})


def unknown_method(name: str, *other_names: str) -> SettingError:
    """Return the error for an unknown method, where `other_names` are allowed beside the methods.

    >>> str(unknown_method("fair"))[-56:]
    'released with noise: use gnomon federate --method fedfdp'
    """
    remark = f"; {FAIR}" if name == "fair" else ""
    return SettingError("method", name, f"one of {', '.join([*METHODS, *other_names])}{remark}")


def _parameters(method: str) -> set[str]:
    """Return the names of the parameters of a method's function."""
    if method not in METHODS:
        raise unknown_method(method)
    return set(inspect.signature(METHODS[method]).parameters)


def _changed(config: TrainConfig) -> list[str]:
    """Return the names of the method settings that differ from their defaults."""
    defaults = TrainConfig()
    return [name for name in METHOD_SETTINGS if getattr(config, name) != getattr(defaults, name)]
