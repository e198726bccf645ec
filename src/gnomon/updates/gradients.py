"""Per-sample gradients from one forward and one backward pass."""

from __future__ import annotations

from typing import Any

from torch import nn

from gnomon.losses import Loss
from gnomon.updates.backward import backward
from gnomon.updates.exact import exact_products
from gnomon.updates.layout import Layouts
from gnomon.updates.leaves import Convolution, Dense, Factored, Leaf
from gnomon.updates.trees import batch_size
from gnomon.updates.updates import Updates

DENSE_BYTES = 64 * 2**20
"""The memory that one call may spend on dense gradients in order to save time."""


@exact_products()
def gradients(model: nn.Module, loss: Loss, inputs: Any, targets: Any, *, layouts: Layouts | None = None) -> Updates:
    """Compute the gradient of each sample's own loss with respect to every trainable parameter.

    Guarantee: the result equals that of a loop of single-sample backward passes, up to rounding, if samples do not
    interact in the model. The model is left as it was: without hooks, new attributes or `.grad`.

    Args:
        model: the model.
        loss: maps (outputs, targets) to one loss per sample.
        inputs: a tensor, a tuple of arguments or a dict of keyword arguments of the model; the batch is the first
            dimension of every tensor.
        targets: passed to the loss.
        layouts: a cache of model layouts. A caller that computes updates repeatedly passes the same one each time;
            without it, two small forward passes work out the layout in every call.

    Raises:
        GnomonError: per-sample gradients of this model and loss cannot be computed.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> loss = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> x, y = torch.tensor([[3.0, 4.0]]), model(torch.tensor([[3.0, 4.0]])).detach() + 1
    >>> gradients(model, loss, x, y).dense().round()
    tensor([[-3., -4., -1.]])
    """
    leaves, losses = backward(
        model, loss, inputs, targets, batch_size(inputs), layouts=layouts or Layouts(), convert=DenseWithinBudget()
    )
    return Updates(leaves, losses)


class DenseWithinBudget:
    """Convert leaves to dense form where that takes less memory, or less time as long as the memory budget lasts."""

    def __init__(self) -> None:
        self.budget = DENSE_BYTES

    def __call__(self, leaf: Leaf) -> Leaf:
        converted = cheapest(leaf, self.budget)
        if isinstance(converted, Dense) and converted is not leaf:
            self.budget -= converted.values.numel() * converted.values.element_size()
        return converted


def cheapest(leaf: Leaf, budget: int) -> Leaf:
    """Return the leaf, or its dense form if that takes less memory, or less time and fits the budget in bytes.

    The dense form of a layer with in x out weights costs T in out multiplications, which pays where norms from T x T
    matrices would cost more; see docs/architecture.md.
    """
    if not isinstance(leaf, Factored | Convolution) or leaf.length == 1:
        return leaf
    dense_size = len(leaf) * leaf.shape.numel()
    factored_size = leaf.inputs.numel() + leaf.outputs.numel()
    rows, columns = leaf.rows, leaf.columns
    slower = leaf.length**2 * (rows + columns) > 8 * rows * columns
    if dense_size <= factored_size or (slower and dense_size * leaf.like.element_size() <= budget):
        return Dense(leaf.dense())
    return leaf
