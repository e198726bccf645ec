"""The parts that strategies are made of."""

from gnomon.federated.strategies.component import Component, LocalRound, RoundOutcome
from gnomon.federated.strategies.control_variates import Controls
from gnomon.federated.strategies.fairness import FairClip, FairPace, Losses
from gnomon.federated.strategies.moon import Moon
from gnomon.federated.strategies.proximal import Blur, Prox

__all__ = [
    "Blur",
    "Component",
    "Controls",
    "FairClip",
    "FairPace",
    "LocalRound",
    "Losses",
    "Moon",
    "Prox",
    "RoundOutcome",
]
