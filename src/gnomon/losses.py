"""Convex losses of linear models, one number a sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy: of one score and targets 0 or 1, or of a score for each class (multinomial).

    >>> logistic(torch.zeros(1, 1), torch.tensor([1])), logistic(torch.zeros(1, 3), torch.tensor([2]))
    (tensor([0.6931]), tensor([1.0986]))
    """
    if outputs.shape[1] == 1:
        return F.softplus(-_signs(targets, outputs) * outputs[:, 0])
    return F.cross_entropy(outputs, targets, reduction="none")


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a support vector machine: how far the right class is from leading by 1 (Crammer and Singer 2001).

    >>> hinge(torch.tensor([[0.5]]), torch.tensor([0])), hinge(torch.tensor([[0.5, 0.0]]), torch.tensor([0]))
    (tensor([1.5000]), tensor([0.5000]))
    """
    if outputs.shape[1] == 1:
        return (1 - _signs(targets, outputs) * outputs[:, 0]).clamp_min(0)
    own = outputs.gather(1, targets[:, None])
    others = outputs.masked_fill(F.one_hot(targets, outputs.shape[1]).bool(), -torch.inf)
    return (1 + others.amax(1) - own[:, 0]).clamp_min(0)


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squares up to a distance of 1 and distances beyond; classes are fitted as a 1 among zeros.

    >>> huber(torch.tensor([[3.0]]), torch.tensor([0.0]))
    tensor([2.5000])
    """
    wanted = (
        targets.to(outputs.dtype).reshape(outputs.shape)
        if outputs.shape[1] == 1
        else F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    )
    return F.huber_loss(outputs, wanted, reduction="none").sum(1)


def _signs(targets: Tensor, outputs: Tensor) -> Tensor:
    return 2 * targets.to(outputs.dtype).reshape(len(outputs)) - 1


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": logistic,
    "hinge": hinge,
    "huber": huber,
}
"""The losses by the name that the command line uses."""
