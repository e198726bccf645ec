"""The settings of a federated run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gnomon.errors import SettingError
from gnomon.runs.config import DATA_DEFAULTS, FEATURES, Config, TrainConfig, setting
from gnomon.runs.setting_names import current_name

METHODS = ("fedavg", "fedprox", "scaffold", "moon", "fedlrs", "pfa", "fedpdp", "fedpcdp", "fedfair", "fedfdp", "q-ffl")
PARTITIONS = "iid, dirichlet:ALPHA, shards:N, one-class, one-class:REST, column:NAME, column:N or group"
PROJECTED = ("pfa", "fedpdp", "fedpcdp")
RECIPES = ("fed-best",)

SIMULATION_ONLY = frozenset({"private_records", "public_records", "partition", "holdout"})
"""Settings that only a simulation has: the sites of a real federation hold their own records and share none."""

_TRAIN_FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}


def shared(name: str) -> Any:
    """Return a field with the default, help text, choices and group that `TrainConfig` has for it."""
    field = _TRAIN_FIELDS[name]
    return dataclasses.field(default=field.default, metadata=field.metadata)


@dataclass(frozen=True)
class FederateConfig(Config):
    """Everything that decides a federated run. Each field is a flag and a YAML key of the same name.

    >>> FederateConfig.from_dict({"clients": 10, "method": "fedavg"}).rounds
    10
    """

    data_dir: str | None = shared("data_dir")
    private_records: int | None = shared("private_records")
    model: str | None = shared("model")
    recipe: str | None = setting(
        None,
        "choose features, model, rounds and every setting of training from the budget and public facts: fed-best (one "
        "feature map from public records for all clients, and noisy full-batch sums in each round); simulations only",
        RECIPES,
        group=FEATURES,
    )
    features: str | None = shared("features")
    distortion: str = shared("distortion")
    public_copies: int = shared("public_copies")
    whitening_directions: int | None = shared("whitening_directions")
    whitening_lam: float = shared("whitening_lam")
    known_space: str = shared("known_space")
    feature_cache: str | None = shared("feature_cache")
    target_epsilon: float | None = shared("target_epsilon")
    noise_multiplier: float | None = shared("noise_multiplier")
    target_delta: float = shared("target_delta")
    max_grad_norm: float = shared("max_grad_norm")
    clip: str = shared("clip")
    sampler: str = setting(
        "poisson",
        "sampling scheme of every client's steps: poisson, or full for all its records in each step, without "
        "amplification",
        ("poisson", "full"),
        group="privacy",
    )
    accountant: str = shared("accountant")
    adjacency: str | None = shared("adjacency")
    method: str = setting("fedpcdp", "federated method", METHODS, group="method")
    public_records: int | None = shared("public_records")
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
    pre_noise: float = shared("pre_noise")
    local_steps: int | None = shared("local_steps")
    local_lr: float = shared("local_lr")
    local_momentum: float = shared("local_momentum")
    constraint: str | None = shared("constraint")
    sketch_dimension: int | None = shared("sketch_dimension")
    sketch_form: str = shared("sketch_form")
    returned_iterate: str = shared("returned_iterate")
    warm_start: str = shared("warm_start")
    loss: str = shared("loss")
    batch_size: int = setting(64, "expected batch size of a client's step; at most its number of records")
    max_physical_batch_size: int | None = shared("max_physical_batch_size")
    lr: float = shared("lr")
    momentum: float = shared("momentum")
    seed: int = shared("seed")
    split_seed: int = shared("split_seed")
    insecure_noise_seed: int | None = shared("insecure_noise_seed")
    device: str = shared("device")
    threads: int | None = shared("threads")
    clients: int = setting(5, "number of clients", group="federation")
    rounds: int = setting(10, "number of rounds", group="federation")
    steps_per_round: int = setting(5, "private steps of a client in a round", group="federation")
    participation: float = setting(1.0, "share of the clients that take part in a round", group="federation")
    partition: str = setting(
        "iid", f"how the records are distributed over the clients: {PARTITIONS}", group="federation"
    )
    classes: int | None = setting(
        None, "number of classes, for own data that do not declare it in an array `classes`", group="federation"
    )
    holdout: float = setting(0.0, "share of each client's records held out to measure fairness", group="federation")
    client_weights: str = setting(
        "uniform",
        "fixed weights of the clients in the mean: equal, or proportional to their declared sizes",
        ("uniform", "size"),
        group="federation",
    )
    sample_rate: float | None = setting(
        None, "sampling rate of every client's steps, instead of a batch size", group="federation"
    )
    max_weight: float = setting(
        1e4,
        "largest absolute value in the server's weights; a client refuses a round with a larger one",
        group="federation",
    )
    server_lr: float = setting(1.0, "learning rate of the server", group="federation")
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
        "unit of privacy: one record, protected from everybody; or a whole client, which needs a trusted server",
        ("record", "client"),
        group="privacy",
    )
    client_clip: float = setting(1.0, "clip bound of a client's change, for unit client", group="privacy")

    @classmethod
    def parse(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that some settings give, by name.

        Settings of `gnomon train` alone are ignored at their defaults, so that files which list them can be read.

        Raises:
            SettingError: a name is unknown, a value has the wrong type, or a setting of `gnomon train` alone has
                another value than its default.

        >>> FederateConfig.parse({"optimizer": "adam"})
        Traceback (most recent call last):
        gnomon.errors.SettingError: optimizer = 'adam' has no effect in a federated run: remove this setting
        """
        used = {}
        for key, value in values.items():
            name = current_name(str(key))
            if name not in TRAINING_ONLY:
                used[key] = value
            elif value != _TRAIN_FIELDS[name].default:
                raise SettingError.with_message(
                    f"{key} = {value!r} has no effect in a federated run: remove this setting",
                    name=str(key),
                    value=value,
                )
        return super().parse(used)


TRAINING_ONLY = frozenset(_TRAIN_FIELDS) - {field.name for field in dataclasses.fields(FederateConfig)}
"""Settings of `gnomon train` that a federated run does not have."""


def federated_defaults(data: str, method: str = "fedavg") -> FederateConfig:
    """Return the default settings for a data set.

    >>> federated_defaults("mnist").max_grad_norm
    0.01
    """
    settings: dict[str, Any] = {
        key: value for key, value in DATA_DEFAULTS.get(data, {}).items() if key not in TRAINING_ONLY
    }
    return FederateConfig(data=data, **settings)
