"""Convex sets that a model's weights may be held to: project, width, diameter, linear oracle."""

from gnomon.constraints.balls import Box, L1Ball, L2Ball, Simplex
from gnomon.constraints.constraint import Constraint
from gnomon.constraints.parse import parse
from gnomon.constraints.structured import GroupBall, NuclearBall

__all__ = ["Box", "Constraint", "GroupBall", "L1Ball", "L2Ball", "NuclearBall", "Simplex", "parse"]
