"""Federated training: the same pipeline on every client, and small strategies around it."""

from gnomon.federated.aggregation import Mean, QFair
from gnomon.federated.bases import fingerprint, round_basis
from gnomon.federated.client import Client
from gnomon.federated.message import Message
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.refusal import Refused
from gnomon.federated.server import Member, Server
from gnomon.federated.state import PersistentState
from gnomon.federated.strategies import Blur, Component, Controls, FairClip, FairPace, Losses, Moon, Prox
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
from gnomon.federated.uploads import Coordinates, Largest, Whole
from gnomon.federated.validation import Reach

__all__ = [
    "STRATEGIES",
    "Blur",
    "Client",
    "Component",
    "Controls",
    "Coordinates",
    "FairClip",
    "FairPace",
    "Largest",
    "Losses",
    "Mean",
    "Member",
    "Message",
    "Moon",
    "PersistentState",
    "PrivateMean",
    "Prox",
    "QFair",
    "Reach",
    "Refused",
    "Server",
    "Strategy",
    "Whole",
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
