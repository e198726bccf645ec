"""Build the parts of a federation from its settings: strategy, server and clients."""

from gnomon.federated.builders.federation import (
    Federation,
    build_client,
    build_federation,
    build_server,
    client_profile,
    feature_notes,
    record_account,
    rounds_per_client,
)
from gnomon.federated.builders.preparation import (
    CHOSEN_BY_RECIPE,
    PreparedFederation,
    client_names,
    prepare_federation,
)
from gnomon.federated.builders.settings import (
    build_partition,
    local_config,
    refuse_simulation_settings,
    with_declared_classes,
)
from gnomon.federated.builders.strategy import NEEDS_PUBLIC, build_private_mean, build_strategy

__all__ = [
    "CHOSEN_BY_RECIPE",
    "NEEDS_PUBLIC",
    "Federation",
    "PreparedFederation",
    "build_client",
    "build_federation",
    "build_partition",
    "build_private_mean",
    "build_server",
    "build_strategy",
    "client_names",
    "client_profile",
    "feature_notes",
    "local_config",
    "prepare_federation",
    "record_account",
    "refuse_simulation_settings",
    "rounds_per_client",
    "with_declared_classes",
]
