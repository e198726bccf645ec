"""Convex constraints on the weights of a model, and the solver of constrained steps."""

from gnomon.constraints.sets import Box, Constraint, GroupBall, L1Ball, L2Ball, NuclearBall, Simplex, parse
from gnomon.constraints.solve import nearest_fit

__all__ = ["Box", "Constraint", "GroupBall", "L1Ball", "L2Ball", "NuclearBall", "Simplex", "nearest_fit", "parse"]
