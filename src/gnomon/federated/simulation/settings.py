"""What the settings of a federated run stand for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from gnomon.data import IID, ByKey, Dirichlet, OneClass, Partition, Records, Shards, Source
from gnomon.errors import SettingError
from gnomon.runs.config import TrainConfig
from gnomon.runs.federate_config import NOT_FEDERATED, PARTITIONS, FederateConfig

LEAST = 10
"""A client of a split by column or group has at least so many records."""


def partition(config: FederateConfig, records: Records, source: Source) -> Partition:
    """The partition that a config names, for some records of a source.

    >>> from gnomon.data import load
    >>> source = load("digits")
    >>> partition(FederateConfig(partition="shards:3"), source.train, source)
    Shards(per_client=3)
    """
    kind, _, rest = config.partition.partition(":")
    try:
        if kind == "iid" and not rest:
            return IID()
        if kind == "dirichlet":
            return Dirichlet(float(rest or 0.1))
        if kind == "shards":
            return Shards(int(rest or 2))
        if kind == "one-class":
            return OneClass(float(rest or 0))
        if kind == "column" and rest:
            return ByKey(_column(rest, records, source), LEAST)
        if kind == "group" and not rest:
            return ByKey(_groups(records, source), LEAST)
    except SettingError:
        raise
    except (ValueError, IndexError) as error:
        raise SettingError("partition", config.partition, f"{PARTITIONS} ({error})") from None
    raise SettingError("partition", config.partition, PARTITIONS)


def _column(name: str, records: Records, source: Source) -> list[Any]:
    """What each record has in a column, by its name or its place among the inputs."""
    if name in source.columns:
        return source.columns[name].keys(records.inputs)
    if not name.isdigit() or int(name) >= math.prod(source.input_shape):
        named = f"column:NAME with one of {', '.join(source.columns)}" if source.columns else "column:N"
        raise SettingError("partition", f"column:{name}", f"{named}, or a place below {math.prod(source.input_shape)}")
    return records.inputs.flatten(1)[:, int(name)].tolist()


def _groups(records: Records, source: Source) -> list[Any]:
    """Whose each record is, as the data set says."""
    if records.groups is None:
        why = f"the records of {source.name} have no groups (those of shakespeare have, and an .npz file with `groups`)"
        raise SettingError("partition", "group", f"another one: {why}")
    groups: list[Any] = records.groups.tolist()
    return groups


def declared(config: FederateConfig, source: Source) -> Source:
    """The source with the number of classes that the settings declare, if they do.

    >>> from gnomon.data import load
    >>> declared(FederateConfig(classes=9), load("digits"))
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


def refuse_unused(config: FederateConfig, unused: Iterable[str] = NOT_FEDERATED, who: str = "rounds have") -> None:
    """Refuses settings that somebody has no use for, in a file for example; by default those of training alone.

    >>> refuse_unused(FederateConfig(optimizer="adam"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: optimizer = 'adam' is invalid; expected 'sgd': rounds have no use for it
    """
    usual = FederateConfig()
    for name in sorted(unused):
        value, default = getattr(config, name), getattr(usual, name)
        if value != default:
            raise SettingError(name.replace("_", "-"), value, f"{default!r}: {who} no use for it")


def local_config(config: FederateConfig, method: str) -> TrainConfig:
    """The settings of a client's own training, with its local method by name.

    >>> local_config(FederateConfig(), "dp-sgd").subspace_scope
    'global'
    """
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}
    plain = TrainConfig()
    settings |= {name: getattr(plain, name) for name in NOT_FEDERATED}
    if method not in ("pdp", "pcdp"):
        settings |= {"rank": None, "subspace_scope": "global", "public_batch": None}
    return TrainConfig(**settings | {"method": method})
