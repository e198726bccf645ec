"""The parts that strategies are made of."""

from gnomon.federated.pieces.controls import Controls
from gnomon.federated.pieces.fairness import FairClip, FairPace, Losses
from gnomon.federated.pieces.moon import Moon
from gnomon.federated.pieces.piece import Piece, Tally, Turn
from gnomon.federated.pieces.pulls import Blur, Prox

__all__ = ["Blur", "Controls", "FairClip", "FairPace", "Losses", "Moon", "Piece", "Prox", "Tally", "Turn"]
