"""Federated training: the same pipeline on every client, and small strategies around it."""

from gnomon.federated.aggregates import Mean, QFair
from gnomon.federated.bases import fingerprint, round_basis
from gnomon.federated.client import Client
from gnomon.federated.memory import Memory
from gnomon.federated.parcel import Parcel
from gnomon.federated.pieces import Blur, Controls, FairClip, FairPace, Losses, Moon, Piece, Prox
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.reach import Reach
from gnomon.federated.refused import Refused
from gnomon.federated.server import Member, Server
from gnomon.federated.strategies import (
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

__all__ = [
    "STRATEGIES",
    "Blur",
    "Client",
    "Controls",
    "Coordinates",
    "FairClip",
    "FairPace",
    "Largest",
    "Losses",
    "Mean",
    "Member",
    "Memory",
    "Moon",
    "Parcel",
    "Piece",
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
