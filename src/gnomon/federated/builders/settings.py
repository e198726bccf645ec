"""Interpret the settings of a federated run: partition, number of classes, and the clients' local settings."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from gnomon.data import IID, ByKey, Dirichlet, OneClass, Partition, Records, Shards, Source
from gnomon.errors import SettingError
from gnomon.runs.config import FEATURES, TrainConfig
from gnomon.runs.federate_config import PARTITIONS, SIMULATION_ONLY, TRAINING_ONLY, FederateConfig
from gnomon.runs.setting_names import dashed

MIN_RECORDS = 10
"""The smallest number of records of a client in a partition by column or group."""


def build_partition(config: FederateConfig, records: Records, source: Source) -> Partition:
    """Return the partition that a config names, for some records of a source.

    Raises:
        SettingError: the partition is unknown, or does not fit the data set.

    >>> from gnomon.data import load
    >>> source = load("digits")
    >>> build_partition(FederateConfig(partition="shards:3"), source.train, source)
    Shards(per_client=3)
    """
    kind, _, argument = config.partition.partition(":")
    try:
        if kind == "iid" and not argument:
            return IID()
        if kind == "dirichlet":
            return Dirichlet(float(argument or 0.1))
        if kind == "shards":
            return Shards(int(argument or 2))
        if kind == "one-class":
            return OneClass(float(argument or 0))
        if kind == "column" and argument:
            return ByKey(_column_values(argument, records, source), MIN_RECORDS)
        if kind == "group" and not argument:
            return ByKey(_group_values(records, source), MIN_RECORDS)
    except SettingError:
        raise
    except (ValueError, IndexError) as error:
        raise SettingError("partition", config.partition, f"{PARTITIONS} ({error})") from None
    raise SettingError("partition", config.partition, PARTITIONS)


def _column_values(name: str, records: Records, source: Source) -> list[Any]:
    """Return each record's value in a column, which is given by its name or by its index among the inputs."""
    if name in source.columns:
        return source.columns[name].keys(records.inputs)
    size = math.prod(source.input_shape)
    if not name.isdigit() or int(name) >= size:
        named = f"column:NAME with one of {', '.join(source.columns)}" if source.columns else "column:N"
        raise SettingError("partition", f"column:{name}", f"{named}, or an index below {size}")
    return records.inputs.flatten(1)[:, int(name)].tolist()


def _group_values(records: Records, source: Source) -> list[Any]:
    """Return the group of each record, as the data set declares it."""
    if records.groups is None:
        raise SettingError.with_message(
            f"partition = 'group' needs records with groups, and the records of {source.name} have no groups: choose "
            "another partition, the data set shakespeare, or an .npz file with an array `groups`",
            name="partition",
            value="group",
        )
    groups: list[Any] = records.groups.tolist()
    return groups


def with_declared_classes(config: FederateConfig, source: Source) -> Source:
    """Return the source with the number of classes that the settings declare, if they declare one.

    Raises:
        SettingError: the number contradicts the data set.

    >>> from gnomon.data import load
    >>> with_declared_classes(FederateConfig(classes=9), load("digits"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: classes = 9 is invalid; expected 10, the number of classes of digits
    """
    if config.classes is None or config.classes == source.classes:
        return dataclasses.replace(source, counted=source.counted and config.classes is None)
    if not source.counted or config.classes < source.classes:
        least = "at least " if source.counted else ""
        raise SettingError(
            "classes", config.classes, f"{least}{source.classes}, the number of classes of {source.name}"
        )
    return dataclasses.replace(source, classes=config.classes, counted=False)


def refuse_simulation_settings(config: FederateConfig) -> None:
    """Refuse settings of a simulation: the sites of a deployment hold their own records and have no feature maps.

    Raises:
        SettingError: such a setting has another value than its default.

    >>> refuse_simulation_settings(FederateConfig(holdout=0.2))
    Traceback (most recent call last):
    gnomon.errors.SettingError: holdout = 0.2 has no effect in a deployment: remove this setting
    """
    defaults = FederateConfig()
    feature_settings = [field.name for field in dataclasses.fields(config) if field.metadata["group"] == FEATURES]
    for field in (*sorted(SIMULATION_ONLY), *feature_settings):
        value = getattr(config, field)
        if value != getattr(defaults, field):
            name = dashed(field)
            message = f"{name} = {value!r} has no effect in a deployment: remove this setting"
            if field in feature_settings:
                message = (
                    f"{name} = {value!r} is for simulations only: sites of a deployment have no feature maps, "
                    "because a site takes none from a server and cannot build one itself yet. Remove this setting"
                )
            raise SettingError.with_message(message, name=name, value=value)


def local_config(config: FederateConfig, method: str) -> TrainConfig:
    """Return the settings of a client's local training with the local method `method`.

    >>> local_config(FederateConfig(), "dp-sgd").subspace_scope
    'global'
    """
    shared = {field.name for field in dataclasses.fields(TrainConfig)} - TRAINING_ONLY - {"recipe"}
    settings = {name: getattr(config, name) for name in shared} | {"method": method}
    if method not in ("pdp", "pcdp"):
        settings |= {"rank": None, "subspace_scope": "global", "public_batch": None}
    return TrainConfig(**settings)
