"""The settings of a federated run: those of training, and a few more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnomon.runs.config import RECIPES, TrainConfig, setting

METHODS = ("fedavg", "fedprox", "scaffold", "moon", "fedlrs", "pfa", "fedpdp", "fedpcdp", "fedfair", "fedfdp", "q-ffl")
PARTITIONS = "iid, dirichlet:ALPHA, shards:N, one-class, one-class:REST, column:NAME, column:N or group"

NOT_FEDERATED = frozenset(
    {"epochs", "sampler", "every", "start", "public_blocks", "optimizer", "weight_decay", "schedule", "ema_decay"}
    | {"dataset_size", "residual", "mask_rate", "evaluate_every"}
)
"""Settings of training that rounds have no use for."""

NOT_DEPLOYED = frozenset({"private", "public", "partition", "holdout"})
"""Settings of a simulation that a real federation has no use for: its sites have their records, and share none."""


@dataclass(frozen=True)
class FederateConfig(TrainConfig):
    """Everything that decides a federated run.

    >>> FederateConfig.from_dict({"clients": 10, "method": "fedavg"}).rounds
    10
    """

    method: str = setting("fedpcdp", "federated method", METHODS, group="method")
    scope: str = setting(
        "per-tensor", "one public subspace for each tensor, or one for all", ("global", "per-tensor"), group="method"
    )
    batch_size: int = setting(64, "expected batch size of a client's step; at most its number of records")
    clients: int = setting(5, "how many clients", group="federation")
    rounds: int = setting(10, "how many rounds", group="federation")
    steps_per_round: int = setting(5, "private steps a client takes in a round", group="federation")
    participation: float = setting(1.0, "share of the clients that take part in a round", group="federation")
    partition: str = setting("iid", f"how records are spread: {PARTITIONS}", group="federation")
    classes: int | None = setting(
        None, "number of classes, for own data that do not declare it in an array `classes`", group="federation"
    )
    holdout: float = setting(0.0, "share of each client's records kept back to measure fairness", group="federation")
    client_weights: str = setting(
        "uniform", "fixed weights of the mean; size takes declared numbers", ("uniform", "size"), group="federation"
    )
    sample_rate: float | None = setting(
        None, "the same sample rate for every client, instead of a batch size", group="federation"
    )
    max_weight: float = setting(
        1e4, "largest entry of the server's weights; a client refuses a round with a larger one", group="federation"
    )
    server_lr: float = setting(1.0, "step size of the server", group="federation")
    mu: float = setting(0.01, "strength of fedprox's and fedlrs's pull", group="method")
    update_limit: float = setting(1.0, "length of a local update at which fedlrs's pull begins", group="method")
    keep: float = setting(0.3, "share of entries that fedlrs uploads", group="method")
    contrast: float = setting(1.0, "weight of moon's contrastive loss", group="method")
    temperature: float = setting(0.5, "temperature of moon's contrastive loss", group="method")
    fair: float = setting(0.1, "lambda of fedfair and fedfdp", group="method")
    fair_most: float = setting(2.0, "largest factor of fedfair and fedfdp", group="method")
    loss_noise: float = setting(
        2.5, "noise multiplier of released losses, in units of the update's (fedfair, fedfdp, q-ffl)", group="method"
    )
    q: float = setting(1.0, "q of q-ffl", group="method")
    unit: str = setting(
        "record",
        "what is protected: one record, against everybody; or a whole client, by a server that is trusted",
        ("record", "client"),
        group="privacy",
    )
    client_clip: float = setting(1.0, "longest change of a client, for unit client", group="privacy")


def federated_recipe(data: str, method: str = "fedavg") -> FederateConfig:
    """The defaults for a data set: those of training, where rounds have them too.

    >>> federated_recipe("mnist").max_grad_norm
    0.01
    """
    settings: dict[str, Any] = {key: value for key, value in RECIPES.get(data, {}).items() if key != "epochs"}
    return FederateConfig(data=data, **settings)
