"""Leaves: the updates of all samples for one parameter, each in the form that is cheapest to store.

All leaves have the same operations: `square_norms`, `gram`, `inner`, `weighted_sum` and `dense`.
"""

from gnomon.updates.leaves.convolution import Convolution
from gnomon.updates.leaves.dense import Dense, Zero
from gnomon.updates.leaves.factored import Factored
from gnomon.updates.leaves.indexed import Indexed
from gnomon.updates.leaves.leaf import Leaf
from gnomon.updates.leaves.masked import Masked
from gnomon.updates.leaves.projected import RowProjected
from gnomon.updates.leaves.residual import Residual
from gnomon.updates.leaves.summed import Summed, add

__all__ = [
    "Convolution",
    "Dense",
    "Factored",
    "Indexed",
    "Leaf",
    "Masked",
    "Residual",
    "RowProjected",
    "Summed",
    "Zero",
    "add",
]
