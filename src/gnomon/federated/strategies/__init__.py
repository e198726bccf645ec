"""The components that strategies are composed of."""

from gnomon.federated.strategies.component import Component, LocalRound, RoundOutcome
from gnomon.federated.strategies.contrastive import Moon
from gnomon.federated.strategies.control_variates import ControlVariates
from gnomon.federated.strategies.fairness import FairClipping, FairLearningRate, LossRelease
from gnomon.federated.strategies.proximal import BoundedUpdate, Proximal

__all__ = [
    "BoundedUpdate",
    "Component",
    "ControlVariates",
    "FairClipping",
    "FairLearningRate",
    "LocalRound",
    "LossRelease",
    "Moon",
    "Proximal",
    "RoundOutcome",
]
