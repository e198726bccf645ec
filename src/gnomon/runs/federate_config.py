"""The settings of a federated run: those of training, and a few more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnomon.runs.config import RECIPES, TrainConfig, setting

METHODS = ("fedavg", "fedprox", "scaffold", "moon", "fedlrs", "pfa", "fedpdp", "fedpcdp", "fedfair", "fedfdp", "q-ffl")
PARTITIONS = "iid, dirichlet:ALPHA, shards:N, one-class, one-class:REST, column:NAME, column:N or group"
PROJECTED = ("pfa", "fedpdp", "fedpcdp")

NOT_FEDERATED = frozenset(
    {"epochs", "sampler", "refresh_basis_every", "project_from_epoch", "public_blocks", "optimizer", "weight_decay"}
    | {"lr_schedule", "ema_decay", "dataset_size", "residual_bound", "mask_rate", "evaluate_every"}
    | {"constraint", "sketch_dimension", "sketch_form", "returned_iterate"}
)
"""Settings of training that rounds have no use for."""

NOT_DEPLOYED = frozenset({"private_records", "public_records", "partition", "holdout"})
"""Settings of a simulation that a real federation has no use for: its sites have their records, and share none."""


@dataclass(frozen=True)
class FederateConfig(TrainConfig):
    """Everything that decides a federated run.

    >>> FederateConfig.from_dict({"clients": 10, "method": "fedavg"}).rounds
    10
    """

    method: str = setting("fedpcdp", "federated method", METHODS, group="method")
    rank: float | None = setting(
        None, "dimensions of the subspace, or below 1 the share of energy that it keeps (default: 100)",
        group="federated methods", methods=PROJECTED,
    )  # fmt: skip
    subspace_scope: str = setting(
        "per-tensor", "one public subspace for all parameters, or one per tensor", ("global", "per-tensor"),
        group="federated methods", methods=PROJECTED,
    )  # fmt: skip
    public_batch: int | None = setting(
        None, "number of public records from which a basis is computed (default: all)",
        group="federated methods", methods=PROJECTED,
    )  # fmt: skip
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
    proximal_mu: float = setting(
        0.01, "strength mu of the proximal term", group="federated methods", methods=("fedprox", "fedlrs")
    )
    update_limit: float = setting(
        1.0, "length of a local update at which the proximal term begins", group="federated methods",
        methods=("fedlrs",),
    )  # fmt: skip
    upload_fraction: float = setting(
        0.3, "share of the update's entries that a client uploads", group="federated methods", methods=("fedlrs",)
    )
    contrast: float = setting(1.0, "weight of the contrastive loss", group="federated methods", methods=("moon",))
    temperature: float = setting(
        0.5, "temperature of the contrastive loss", group="federated methods", methods=("moon",)
    )
    fairness_lambda: float = setting(
        0.1, "strength lambda of the fairness term", group="federated methods", methods=("fedfair", "fedfdp")
    )
    fairness_limit: float = setting(
        2.0, "largest factor by which fairness scales a client or sample", group="federated methods",
        methods=("fedfair", "fedfdp"),
    )  # fmt: skip
    loss_noise: float = setting(
        2.5, "noise multiplier of released losses, as a multiple of the update's", group="federated methods",
        methods=("fedfair", "fedfdp", "q-ffl"),
    )  # fmt: skip
    fairness_exponent: float = setting(1.0, "exponent q", group="federated methods", methods=("q-ffl",))
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
