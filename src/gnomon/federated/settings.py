"""What the settings of a federated run stand for."""

from __future__ import annotations

import dataclasses

from gnomon.config import TrainConfig
from gnomon.data import IID, ByKey, Dirichlet, OneClass, Partition, Records, Shards
from gnomon.federated_config import NOT_FEDERATED, PARTITIONS, FederateConfig
from gnomon.validate import SettingError


def partition(config: FederateConfig, records: Records) -> Partition:
    """The partition that a config names.

    >>> import torch
    >>> partition(FederateConfig(partition="shards:3"), Records(torch.zeros(2, 1), torch.zeros(2)))
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
            return ByKey(records.inputs.flatten(1)[:, int(rest)].tolist())
    except (ValueError, IndexError) as error:
        raise SettingError("partition", config.partition, f"{PARTITIONS} ({error})") from None
    raise SettingError("partition", config.partition, PARTITIONS)


def local_config(config: FederateConfig, method: str) -> TrainConfig:
    """The settings of a client's own training, with its local method by name.

    >>> local_config(FederateConfig(), "dp-sgd").scope
    'global'
    """
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}
    plain = TrainConfig()
    settings |= {name: getattr(plain, name) for name in NOT_FEDERATED}
    if method not in ("pdp", "pcdp"):
        settings |= {"rank": None, "scope": "global", "public_batch": None}
    return TrainConfig(**settings | {"method": method})
