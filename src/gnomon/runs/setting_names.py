"""Former names of settings, and the translation between former and current names.

Files written by earlier versions (`config.yaml`, experiment files, checkpoints and kept results) use the former
names. They are translated when a file is read, and kept results are still stored and keyed under the former names,
so that every result is found again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMER_NAMES = {
    "private": "private_records",
    "public": "public_records",
    "scope": "subspace_scope",
    "every": "refresh_basis_every",
    "start": "project_from_epoch",
    "residual": "residual_bound",
    "sketch": "sketch_dimension",
    "form": "sketch_form",
    "iterate": "returned_iterate",
    "schedule": "lr_schedule",
    "mu": "proximal_mu",
    "keep": "upload_fraction",
    "fair": "fairness_lambda",
    "fair_most": "fairness_limit",
    "q": "fairness_exponent",
}
"""Former name of each renamed setting, with its current name."""

STORED_NAMES = {current: former for former, current in FORMER_NAMES.items()}
"""Name under which kept results store each renamed setting."""


def current_name(name: str) -> str:
    """Return the current field name of a setting that is spelt with dashes or underscores.

    >>> current_name("every"), current_name("batch-size")
    ('refresh_basis_every', 'batch_size')
    """
    field = name.replace("-", "_")
    return FORMER_NAMES.get(field, field)


def dashed(name: str) -> str:
    """Return a setting's name as flags and YAML keys spell it.

    >>> dashed("batch_size")
    'batch-size'
    """
    return name.replace("_", "-")


def stored_settings(config: DataclassInstance) -> dict[str, Any]:
    """Return the settings of a config under the names that kept results use.

    >>> from gnomon.runs.config import TrainConfig
    >>> stored_settings(TrainConfig(refresh_basis_every=5))["every"]
    5
    """
    return {STORED_NAMES.get(name, name): value for name, value in dataclasses.asdict(config).items()}
