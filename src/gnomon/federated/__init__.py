"""Federated training: the private step on every client, and strategies composed of small components around it."""

from gnomon.federated.aggregation import Aggregator, Mean, QFair
from gnomon.federated.client import Client
from gnomon.federated.message import Message
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.refusal import Refused
from gnomon.federated.round_basis import BasisCache, fingerprint, round_basis
from gnomon.federated.server import ClientProfile, Server
from gnomon.federated.state import ClientState, ServerState
from gnomon.federated.strategies import (
    BoundedUpdate,
    Component,
    ControlVariates,
    FairClipping,
    FairLearningRate,
    LossRelease,
    Moon,
    Proximal,
)
from gnomon.federated.strategies.published import (
    STRATEGIES,
    Strategy,
    fedavg,
    fedfair,
    fedfdp,
    fedlrs,
    fedpcdp,
    fedpdp,
    fedprox,
    moon,
    pfa,
    qffl,
    scaffold,
)
from gnomon.federated.uploads import AllParameters, Coordinates, LargestEntries
from gnomon.federated.validation import UpdateBounds

__all__ = [
    "STRATEGIES",
    "Aggregator",
    "AllParameters",
    "BasisCache",
    "BoundedUpdate",
    "Client",
    "ClientProfile",
    "ClientState",
    "Component",
    "ControlVariates",
    "Coordinates",
    "FairClipping",
    "FairLearningRate",
    "LargestEntries",
    "LossRelease",
    "Mean",
    "Message",
    "Moon",
    "PrivateMean",
    "Proximal",
    "QFair",
    "Refused",
    "Server",
    "ServerState",
    "Strategy",
    "UpdateBounds",
    "fedavg",
    "fedfair",
    "fedfdp",
    "fedlrs",
    "fedpcdp",
    "fedpdp",
    "fedprox",
    "fingerprint",
    "moon",
    "pfa",
    "qffl",
    "round_basis",
    "scaffold",
]
