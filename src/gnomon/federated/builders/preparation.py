"""The records of a simulated federation: partitioned, resolved by a recipe, with the feature map of all clients."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from gnomon.data import Records, Source, load
from gnomon.errors import SettingError
from gnomon.features import Pipeline, pipeline
from gnomon.federated.builders.settings import build_partition, local_config, with_declared_classes
from gnomon.federated.builders.strategy import NEEDS_PUBLIC
from gnomon.recipes import Budget, Choice, FederatedPlan, check_public, resolve_federated
from gnomon.release import SeededNoise
from gnomon.runs.builders import records
from gnomon.runs.builders.preparation import (
    PHYSICAL,
    choice_of,
    facts_of,
    refuse_own_settings,
    refuse_without_features,
    target_of,
)
from gnomon.runs.federate_config import FederateConfig, federated_defaults
from gnomon.sampling.draws import shuffle
from gnomon.validate import whole

CHOSEN_BY_RECIPE = ("model", "method", "clip", "sampler", "sample_rate", "batch_size", "max_grad_norm", "pre_noise",
                    "noise_multiplier", "lr", "momentum", "local_steps", "warm_start", "loss", "rounds",
                    "steps_per_round", "participation", "client_weights", "server_lr", "unit", "public_copies",
                    "whitening_directions", "whitening_lam", "known_space")  # fmt: skip
"""Settings that a recipe of federations chooses."""


@dataclass(frozen=True)
class PreparedFederation:
    """The settings and the records of a simulated federation.

    Attributes:
        config: the settings, with those that a recipe chose in the place of the recipe.
        source: the data set, with test records and the shape of a record as the model takes them.
        public: the public records as the model takes them, with their copies.
        train: the records of each client, before any feature map.
        heldout: the held-out records of each client, as the model takes them.
        public_records: the number of public records, without copies.
        features: the features, which each client computes from its own records; None if the model takes raw records.
        plan: the resolved recipe, or None.
    """

    config: FederateConfig
    source: Source
    public: Records
    train: dict[str, Records]
    heldout: dict[str, Records]
    public_records: int
    features: Pipeline | None = None
    plan: FederatedPlan | None = None


def prepare_federation(config: FederateConfig, *, progress: bool = True) -> PreparedFederation:
    """Return the records of a federation, with the settings of a recipe resolved.

    The feature map and all settings follow from the public records and the clients' numbers of records, which are
    public, and from the budget. No private record is read for them.

    Args:
        config: the settings.
        progress: whether to show progress bars while features are computed.

    Raises:
        SettingError: a setting has a value that cannot be used, or a setting is given that the recipe chooses.
        DataError: the public records do not fit.

    >>> prepared = prepare_federation(FederateConfig(recipe="fed-best", target_epsilon=2.0, clients=3), progress=False)
    >>> prepared.config.method, prepared.config.features, prepared.config.rounds, prepared.config.recipe
    ('fedavg', 'scattering', 10, None)
    """
    source = with_declared_classes(config, load(config.data, config.data_dir))
    choice = None
    if config.recipe is not None:
        choice = _choice(config, source)
        config = _with_choice(config, choice)
    elif config.features is None:
        refuse_without_features(config)
    local_method = "pcdp" if config.method in NEEDS_PUBLIC else "dp-sgd"
    split = records(local_config(config, local_method), source)
    train, heldout = _partition(config, split.private, source)
    if config.features is None:
        return PreparedFederation(config, source, split.public, train, heldout, len(split.public))
    public = split.public if choice is None or choice.whiten else split.public[:0]
    warnings = check_public(public, source.input_shape, source.classes) if choice and len(public) else []
    features = pipeline(
        config.features,
        facts_of(local_config(config, local_method), source, public),
        copies=config.public_copies,
        distortion=config.distortion,
        cache=config.feature_cache,
        progress=progress,
    )
    plan = None
    if choice is not None:
        size = sum(map(len, train.values()))
        budget = Budget(size, target_of(config.target_epsilon), config.target_delta, len(train))
        plan = resolve_federated(choice, features, budget, source.classes, warnings)
        config, features = _with_plan(config, plan), plan.features
    elif config.whitening_directions is not None:
        features = features.whitened(config.whitening_directions, config.whitening_lam)
    test = features.records(source.test, private=False)
    mapped = dataclasses.replace(source, test=test, input_shape=tuple(test.inputs.shape[1:]))
    measured = {name: features.records(data) for name, data in heldout.items()} if config.holdout else heldout
    return PreparedFederation(
        config, mapped, features.public_features or public, train, measured, len(public), features, plan
    )


def client_names(config: FederateConfig) -> list[str]:
    """Return the names of the clients of a simulation.

    >>> client_names(FederateConfig(clients=3))
    ['client-0', 'client-1', 'client-2']
    """
    width = len(str(whole("clients", config.clients) - 1))
    return [f"client-{number:0{width}}" for number in range(config.clients)]


def _partition(
    config: FederateConfig, private: Records, source: Source
) -> tuple[dict[str, Records], dict[str, Records]]:
    """Return the records with which each client trains, and those that it holds out."""
    parts = build_partition(config, private, source).split(private.targets, config.clients, config.split_seed)
    train, heldout = {}, {}
    for client, part in zip(client_names(config), parts, strict=True):
        held = _heldout_mask(config, part)
        heldout[client], train[client] = private[part[held]], private[part[~held]]
    return train, heldout


def _heldout_mask(config: FederateConfig, part: torch.Tensor) -> torch.Tensor:
    """Return which of a client's records are held out."""
    if not 0 <= config.holdout < 1:
        raise SettingError("holdout", config.holdout, "a share from 0 up to, but not including, 1")
    count = round(config.holdout * len(part))
    if count >= len(part) or (config.holdout and not count):
        raise SettingError(
            "holdout",
            config.holdout,
            f"a share that holds out at least one record, and not all, of a client with {len(part)} records",
        )
    mask = torch.zeros(len(part), dtype=torch.bool)
    mask[shuffle(len(part), SeededNoise(config.split_seed))[:count]] = True
    return mask


def _choice(config: FederateConfig, source: Source) -> Choice:
    """Return the features that the recipe chooses, after refusing settings that it chooses too."""
    defaults = federated_defaults(config.data), FederateConfig()
    changed = {
        name: value
        for name in CHOSEN_BY_RECIPE
        if (value := getattr(config, name)) not in [getattr(settings, name) for settings in defaults]
    }
    refuse_own_settings(config.recipe or "", changed, CHOSEN_BY_RECIPE)
    return choice_of(local_config(config, "dp-sgd"), source)


def _with_choice(config: FederateConfig, choice: Choice) -> FederateConfig:
    """Return the config with the features of a recipe, and with all settings that need no features."""
    return dataclasses.replace(
        config,
        method="fedavg",
        model="linear",
        features=choice.features,
        distortion=choice.distortion,
        public_copies=choice.copies,
        whitening_directions=1 if choice.whiten else None,  # the number follows from the features
        warm_start="public" if choice.start else "none",
        known_space="softmax-head",
        sampler="full",
        steps_per_round=1,
        client_weights="size",
        max_physical_batch_size=config.max_physical_batch_size or PHYSICAL,
    )


def _with_plan(config: FederateConfig, plan: FederatedPlan) -> FederateConfig:
    """Return the config with the settings that a plan chose, which repeats the run without the recipe."""
    whitening = plan.features.whitening
    return dataclasses.replace(
        config,
        recipe=None,
        whitening_directions=None if whitening is None else whitening.k,
        whitening_lam=FederateConfig().whitening_lam if whitening is None else whitening.lam,
        target_epsilon=plan.budget.epsilon,
        max_grad_norm=plan.schedule.max_grad_norm,
        rounds=plan.schedule.steps,
        lr=plan.schedule.lr,
    )
