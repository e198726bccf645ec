"""Per-sample updates: the gradient, or the displacement by local steps, of each sample.

updates = gradients(model, loss, inputs, targets)
updates = local_sgd(model, loss, inputs, targets, steps=10, lr=0.025)
updates.norms(); updates.gram(other); updates.weighted_sum(w); updates.dense(); updates.losses
"""

from gnomon.losses import Loss, per_sample
from gnomon.updates.gradients import gradients
from gnomon.updates.layouts import Layouts
from gnomon.updates.leaves import Convolution, Dense, Factored, Indexed, Leaf, RowProjected, Zero
from gnomon.updates.local import LocalDescent, local_sgd
from gnomon.updates.rules import forward_rule, rule
from gnomon.updates.updates import Updates

__all__ = [
    "Convolution",
    "Dense",
    "Factored",
    "Indexed",
    "Layouts",
    "Leaf",
    "LocalDescent",
    "Loss",
    "RowProjected",
    "Updates",
    "Zero",
    "forward_rule",
    "gradients",
    "local_sgd",
    "per_sample",
    "rule",
]
