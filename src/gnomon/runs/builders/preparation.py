"""The records of a run as its model takes them: selected, resolved by a recipe, and mapped to features."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.data import Records, Source, Split, load
from gnomon.errors import SettingError
from gnomon.features import Facts, FeatureMap, Pipeline, pipeline
from gnomon.recipes import Budget, Choice, Plan, check_public, choose, resolve
from gnomon.runs.builders.map_files import restore_map
from gnomon.runs.builders.records import declared_size, has_public, is_own, records
from gnomon.runs.config import FEATURES, Config, TrainConfig, default_settings
from gnomon.runs.setting_names import dashed

OWN_SETTINGS = ("model", "method", "clip", "sampler", "optimizer", "momentum", "weight_decay", "lr_schedule", "lr",
                "epochs", "batch_size", "max_grad_norm", "noise_multiplier", "warm_start", "loss", "local_steps",
                "ema_decay", "ema_schedule", "views", "augmentation", "whitening_directions", "whitening_lam",
                "public_copies", "known_space", "public_weight_decay")  # fmt: skip
"""Settings that a recipe chooses."""

SHARED = ("data_dir", "private_records", "dataset_size", "target_delta", "seed", "split_seed", "device", "threads",
          "insecure_noise_seed", "evaluate_every")  # fmt: skip
"""Settings that a recipe's run shares with the run of plain DP-SGD beside it."""

HANDWRITING = {"mnist": "strokes", "digits": "strokes"}
"""Benchmarks of handwriting, with the distortion of their images."""

PHYSICAL = 8192
"""Records of a full batch that a recipe computes at once."""


@dataclass(frozen=True)
class Prepared:
    """The settings, the data set and the records of a run.

    Attributes:
        config: the settings, with those that a recipe chose in the place of the recipe.
        source: the data set, with test records and the shape of a record as the model takes them.
        split: the private and the public records as the model takes them. With copies of public images, the public
            records are those of all copies.
        feature_map: the map from the inputs of the data set to those of the model, or None.
        plan: the resolved recipe, or None.
    """

    config: TrainConfig
    source: Source
    split: Split
    feature_map: FeatureMap | None = None
    plan: Plan | None = None


def prepare(config: TrainConfig, *, progress: bool = True, stored: Path | None = None) -> Prepared:
    """Return the records of a run as its model takes them.

    No private record is read to resolve a recipe: settings follow from declared sizes and the public records alone.

    Args:
        config: the settings.
        progress: whether to show progress bars while features are computed.
        stored: the folder of an earlier run with these settings, whose feature map is used: eigenvectors that another
            library computes may have other signs.

    Raises:
        SettingError: a setting has a value that cannot be used, or a setting is given that the recipe chooses.
        DataError: the public records do not fit, or a feature is not finite.

    >>> prepared = prepare(TrainConfig(recipe="best", target_epsilon=2.0, features="scaled"), progress=False)
    >>> prepared.config.features, prepared.config.model, prepared.source.input_shape
    ('scaled', 'linear', (65,))
    """
    source = load(config.data, config.data_dir)
    if config.recipe is None and config.features is None:
        refuse_without_features(config)
        return Prepared(config, source, records(config, source))
    choice = None if config.recipe is None else _choice(config, source)
    if choice is not None:
        config = _with_choice(config, choice)
    split = records(config, source)
    if choice is not None and not choice.whiten:
        split = dataclasses.replace(split, public=split.public[:0])
    warnings = check_public(split.public, source.input_shape, source.classes) if choice and len(split.public) else []
    parts = pipeline(
        config.features or "",
        facts_of(config, source, split.public),
        copies=config.public_copies,
        distortion=config.distortion,
        cache=config.feature_cache,
        progress=progress,
    )
    if choice is None:
        if config.whitening_directions is not None:
            parts = parts.whitened(config.whitening_directions, config.whitening_lam)
        if stored is not None:
            restore_map(parts.feature_map, stored)
        return _mapped(config, source, split, parts)
    plan = resolve(config.recipe or "", choice, parts, budget_of(config, source), source.classes, warnings)
    return dataclasses.replace(_mapped(with_plan(config, plan), source, split, plan.features), plan=plan)


def target_of(target_epsilon: float | None) -> float:
    """Return the epsilon that a recipe spends: the setting, or 1 without one.

    >>> target_of(None), target_of(0.5), target_of(0.0)  # zero is refused later, not replaced
    (1.0, 0.5, 0.0)
    """
    return 1.0 if target_epsilon is None else target_epsilon


def budget_of(config: TrainConfig, source: Source) -> Budget:
    """Return the public facts from which a recipe starts.

    >>> from gnomon.data import load
    >>> budget_of(TrainConfig(recipe="best"), load("digits"))
    Budget(records=1437, epsilon=1.0, delta=1e-05, clients=1)
    """
    return Budget(declared_size(config, source), target_of(config.target_epsilon), config.target_delta)


def with_plan(config: TrainConfig, plan: Plan) -> TrainConfig:
    """Return the config with the settings that a plan chose, which repeats the run without the recipe."""
    whitening = plan.features.whitening
    return dataclasses.replace(
        config,
        recipe=None,
        whitening_directions=None if whitening is None else whitening.k,
        whitening_lam=TrainConfig().whitening_lam if whitening is None else whitening.lam,
        target_epsilon=plan.budget.epsilon,
        dataset_size=plan.budget.records,
        batch_size=plan.budget.records,
        max_grad_norm=plan.schedule.max_grad_norm,
        epochs=float(plan.schedule.steps),
        lr=plan.schedule.lr,
    )


def refuse_own_settings(recipe: str, given: Mapping[str, Any], names: Sequence[str] = OWN_SETTINGS) -> None:
    """Raise SettingError if one of the given settings is chosen by the recipe.

    Args:
        recipe: the name of the recipe.
        given: the values of the settings that were given.
        names: the settings that the recipe chooses.

    >>> refuse_own_settings("best", {"target_epsilon": 1.0})
    >>> refuse_own_settings("best", {"lr": 2.0})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gnomon.errors.SettingError: the recipe best chooses lr itself: remove lr = 2.0, or ...
    """
    for name in names:
        if name in given:
            setting, value = dashed(name), given[name]
            raise SettingError.with_message(
                f"the recipe {recipe} chooses {setting} itself: remove {setting} = {value}, or run the recipe and "
                f"change {setting} in the config.yaml of its run",
                name=setting,
                value=value,
            )


def plain_dp_sgd(config: TrainConfig, records: int) -> TrainConfig:
    """Return DP-SGD on the records of a recipe's run, at its budget, with the default settings of the data set.

    Args:
        config: the settings of the recipe's run.
        records: its declared number of private records.

    >>> plain = plain_dp_sgd(TrainConfig(data="mnist", recipe="best", target_epsilon=0.5), records=59_900)
    >>> plain.target_epsilon, plain.epochs, plain.private_records, plain.public_records
    (0.5, 80.0, 59900, 100)
    """
    plain = dataclasses.replace(
        default_settings(config.data),
        **{name: getattr(config, name) for name in SHARED},
        target_epsilon=target_of(config.target_epsilon),
    )
    plain = dataclasses.replace(plain, batch_size=min(plain.batch_size, records))
    if is_own(config.data):
        return plain
    aside = 100 if config.public_records is None else config.public_records  # the same records are private
    return dataclasses.replace(plain, private_records=records, public_records=aside)


def _choice(config: TrainConfig, source: Source) -> Choice:
    """Return the features that the recipe chooses, after refusing settings that it chooses too."""
    defaults = default_settings(config.data)
    changed = {name: value for name in OWN_SETTINGS if (value := getattr(config, name)) != getattr(defaults, name)}
    refuse_own_settings(config.recipe or "", changed)
    return choice_of(config, source)


def choice_of(config: TrainConfig, source: Source) -> Choice:
    """Return the features that a recipe chooses for the data of some settings; without a recipe, those of `best`.

    >>> from gnomon.data import load
    >>> choice_of(TrainConfig(), load("digits")).features
    'scattering'
    """
    public = None
    if config.recipe != "no-public" and has_public(config, source):  # how many there are; which ones is drawn later
        public = (source.train if source.public is None else source.public)[: config.public_records or 100]
    return choose(
        config.recipe or "best",
        facts_of(config, source, public),
        distortion=_distortion(config, source),
        features=config.features,
    )


def facts_of(config: TrainConfig, source: Source, public: Records | None) -> Facts:
    """Return the public facts about records from which features are made.

    >>> from gnomon.data import load
    >>> facts_of(TrainConfig(), load("digits"), None).shape
    (1, 8, 8)
    """
    return Facts(source.input_shape, public, source.columns, source.tokens, config.seed)


def _distortion(config: TrainConfig, source: Source) -> str:
    """Return the distortion of the settings, or that of a benchmark whose images are known to everybody."""
    if config.distortion == "none":
        return HANDWRITING.get(config.data, "none")
    if len(source.input_shape) != 3:
        shape = tuple(source.input_shape)
        raise SettingError("distortion", config.distortion, f"none, because records of shape {shape} are no images")
    return config.distortion


def _with_choice(config: TrainConfig, choice: Choice) -> TrainConfig:
    """Return the config with the features of a recipe, and with all settings that need no features."""
    return dataclasses.replace(
        config,
        method="dp-sgd",
        model="linear",
        features=choice.features,
        distortion=choice.distortion,
        public_copies=choice.copies,
        whitening_directions=1 if choice.whiten else None,  # the number follows from the features
        warm_start="public" if choice.start else "none",
        known_space="softmax-head",
        sampler="full",
        max_physical_batch_size=config.max_physical_batch_size or PHYSICAL,
    )


def _mapped(config: TrainConfig, source: Source, split: Split, parts: Pipeline) -> Prepared:
    """Return the records as features."""
    private = parts.records(split.private)
    test = parts.records(source.test, private=False)
    shape = tuple(private.inputs.shape[1:])
    public = parts.public_features if len(split.public) else private[:0]
    mapped = dataclasses.replace(source, test=test, input_shape=shape)
    return Prepared(config, mapped, Split(private, public or private[:0]), parts.feature_map)


def refuse_without_features(config: Config) -> None:
    """Refuse settings of features where there is no feature map."""
    defaults: Any = type(config)()
    for field in dataclasses.fields(config):
        if field.metadata["group"] != FEATURES or field.name in ("recipe", "features", "known_space", "feature_cache"):
            continue
        if (value := getattr(config, field.name)) != getattr(defaults, field.name):
            name = dashed(field.name)
            raise SettingError.with_message(
                f"{name} = {value} has no effect without a feature map: set features or recipe, or remove {name}",
                name=name,
                value=value,
            )
