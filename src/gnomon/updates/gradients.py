"""Per-sample gradients from one forward and one backward pass."""

from __future__ import annotations

from typing import Any

from torch import nn

from gnomon.losses import Loss
from gnomon.updates.backward import backward
from gnomon.updates.exact import exact_products
from gnomon.updates.layouts import Layouts
from gnomon.updates.leaves import Convolution, Dense, Factored, Leaf, RowProjected
from gnomon.updates.trees import batch_size
from gnomon.updates.two_pass import TwoPassUpdates, supports_two_passes
from gnomon.updates.updates import Updates, check_views, mean_of_views

DENSE_BYTES = 16 * 2**20
"""The memory that one call may spend on dense gradients in order to save time."""


@exact_products()
def gradients(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, *, layouts: Layouts | None = None, views: int = 1
) -> Updates:
    """Compute the gradient of each sample's own loss with respect to every trainable parameter.

    Guarantee: the result equals that of a loop of single-sample backward passes, up to rounding, if samples do not
    interact in the model. The model is left as it was: without hooks, new attributes or `.grad`.

    For a model under activation checkpointing (`torch.utils.checkpoint`) without dropout or other random numbers, only
    the norms are kept, and the sum over the samples takes a second backward pass, so that memory follows that of plain
    SGD with the same checkpoints.

    Args:
        model: the model.
        loss: maps (outputs, targets) to one loss per sample.
        inputs: a tensor, a tuple of arguments or a dict of keyword arguments of the model; the batch is the first
            dimension of every tensor.
        targets: passed to the loss.
        layouts: a cache of model layouts. A caller that computes updates repeatedly passes the same one each time;
            without it, two small forward passes work out the layout in every call.
        views: the number of consecutive samples that are views of one record. The result has one update for each
            record, the mean of the gradients of its views, and is that of `Updates.merged` in less memory.

    Raises:
        SettingError: the number of samples is no multiple of `views`.
        GnomonError: per-sample gradients of this model and loss cannot be computed.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> loss = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> x, y = torch.tensor([[3.0, 4.0]]), model(torch.tensor([[3.0, 4.0]])).detach() + 1
    >>> gradients(model, loss, x, y).dense().round()
    tensor([[-3., -4., -1.]])
    """
    size, known = batch_size(inputs), layouts or Layouts()
    check_views(views, size)
    if size and supports_two_passes(known.of(model, inputs)):
        return TwoPassUpdates(model, loss, inputs, targets, size, known, views)
    leaves, losses = backward(
        model, loss, inputs, targets, size, layouts=known, convert=DenseWithinBudget(), views=views
    )
    return Updates(leaves, mean_of_views(losses, views))


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

    Norms of T positions take T^2 (in + out) multiplications, which is a fraction 1 / r of the T in out of the sum if
    the dense form takes r times the memory of the factors; the dense form has its norms and sums in two passes over
    its memory. Measured, that saves time up to r = 2. A convolution has to extract its windows for the norms anyway,
    from which the dense form is one product away, so that it saves time up to larger r.
    """
    if isinstance(leaf, RowProjected):
        inner = cheapest(leaf.leaf, budget)
        if inner is leaf.leaf or not isinstance(inner, Dense):
            return leaf
        return Dense(leaf.mapped(inner.values), inner.square_ceilings() * leaf.factor)
    if not isinstance(leaf, Factored | Convolution) or leaf.length == 1:
        return leaf
    dense_size = len(leaf) * leaf.shape.numel()
    factored_size = leaf.inputs.numel() + leaf.outputs.numel()
    ratio = 1.0
    if dense_size * leaf.like.element_size() <= budget:
        ratio = 2.0 if isinstance(leaf, Factored) else 8.0
    if dense_size > ratio * factored_size:
        return leaf
    # products of several positions may cancel in the dense form, which does not show it
    return Dense(leaf.dense(), leaf.factor_ceilings())
