"""One gradient a sample, from one forward and one backward pass."""

from __future__ import annotations

from typing import Any

from torch import nn

from gnomon.updates.backward import backward
from gnomon.updates.exact import exact_products
from gnomon.updates.leaves import Convolution, Dense, Factored, Leaf
from gnomon.updates.losses import Loss
from gnomon.updates.trees import tensors
from gnomon.updates.updates import Updates

KEPT_BYTES = 64 * 2**20
"""How much memory one call may spend on written-out gradients that save time."""


class Kept:
    """Writes leaves out where that takes less memory, or less work while the budget lasts."""

    def __init__(self) -> None:
        self.budget = KEPT_BYTES

    def __call__(self, leaf: Leaf) -> Leaf:
        kept = cheapest(leaf, self.budget)
        if isinstance(kept, Dense) and kept is not leaf:
            self.budget -= kept.values.numel() * kept.values.element_size()
        return kept


@exact_products()
def gradients(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> Updates:
    """Each sample's gradient of its own loss, for every trainable parameter.

    `inputs` is a tensor, a tuple of arguments or a dict of keyword arguments of the model, the batch first;
    `loss` maps (outputs, targets) to one number a sample. The model is left as it was: no hooks, no
    attributes, no `.grad`.

    Guarantee: equal to a loop of single-sample backward passes, up to rounding, if samples do not
    interact in the model.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> loss = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> x, y = torch.tensor([[3.0, 4.0]]), model(torch.tensor([[3.0, 4.0]])).detach() + 1
    >>> gradients(model, loss, x, y).dense().round()
    tensor([[-3., -4., -1.]])
    """
    size = batch_size(inputs)
    leaves, losses = backward(model, loss, inputs, targets, size, kept=Kept())
    return Updates(leaves, losses)


def batch_size(inputs: Any) -> int:
    """How many samples a batch holds; every tensor in it must agree.

    >>> import torch
    >>> batch_size({"text": torch.zeros(3, 5), "length": torch.zeros(3)})
    3
    """
    sizes = {len(t) for t in tensors(inputs) if t.dim()}
    if len(sizes) != 1:
        what = f"tensors with {sorted(sizes)} samples" if sizes else "no tensor"
        raise ValueError(f"the inputs hold {what}: every tensor needs the batch as its first dimension")
    return sizes.pop()


def cheapest(leaf: Leaf, budget: int) -> Leaf:
    """The leaf itself, or written out where that takes less memory, or less work and fits the budget.

    Writing out T in out multiplications of a layer with in x out weights pays when norms by T x T
    matrices would cost more; see docs/architecture.md.
    """
    if not isinstance(leaf, Factored | Convolution) or leaf.length == 1:
        return leaf
    size = len(leaf) * leaf.shape.numel()
    held = leaf.inputs.numel() + leaf.outputs.numel()
    rows, columns = leaf.rows, leaf.columns
    slower = leaf.length**2 * (rows + columns) > 8 * rows * columns
    if size <= held or (slower and size * leaf.like.element_size() <= budget):
        return Dense(leaf.dense())
    return leaf
