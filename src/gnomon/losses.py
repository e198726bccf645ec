"""Losses with one value per sample: the check that a loss is one, and the convex losses of linear models."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.errors import SettingError

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) -> one loss per sample, (B,)"""


def per_sample(loss: Loss) -> Loss:
    """Return a loss with one value per sample.

    A criterion of torch that reduces over the batch is replaced by the same criterion with `reduction="none"`, and a
    warning says so: a mean would divide the gradient of each sample by the batch size. Any other loss is returned as it
    is.

    Raises:
        SettingError: the loss is not callable.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     criterion = per_sample(nn.CrossEntropyLoss())
    >>> criterion(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    tensor([0.6931, 0.6931, 0.6931])
    """
    if not callable(loss):
        raise SettingError("loss", loss, "a callable (outputs, targets) -> one loss per sample")
    if isinstance(loss, nn.Module):
        reduction = getattr(loss, "reduction", None)
        if reduction not in ("mean", "sum", "batchmean"):
            return loss
        converted = copy.copy(loss)
        setattr(converted, "reduction", "none")  # noqa: B010
        _warn_converted(f"{type(loss).__name__}(reduction={reduction!r})")
        return converted
    bound = loss.keywords if isinstance(loss, functools.partial) else {}
    function = loss.func if isinstance(loss, functools.partial) else loss
    if getattr(function, "__module__", None) == F.__name__ and "reduction" not in bound:
        parameters = inspect.signature(function).parameters
        if "reduction" in parameters:
            default = parameters["reduction"].default
            _warn_converted(f"{getattr(function, '__name__', function)} with reduction={default!r}")
            reduced: Callable[..., Tensor] = loss
            return functools.partial(reduced, reduction="none")
    return loss


def check_per_sample(losses: Tensor, size: int) -> Tensor:
    """Return the losses if they are one value for each of `size` samples.

    Raises:
        SettingError: the loss returned something else than a tensor of shape (size,).

    >>> check_per_sample(torch.tensor(0.5), 8)
    Traceback (most recent call last):
    gnomon.errors.SettingError: the loss returned shape () for 8 samples; it must return one value per sample, \
shape (8,): use reduction='none'
    """
    if not isinstance(losses, Tensor):
        raise SettingError.with_message(
            f"the loss returned a {type(losses).__name__}; it must return a tensor of shape ({size},)", name="loss"
        )
    if tuple(losses.shape) == (size,):
        return losses
    remedy = "use reduction='none'"
    if losses.dim() > 1 and losses.shape[0] == size:
        remedy = "average the values of each sample, for example losses.flatten(1).mean(1)"
    raise SettingError.with_message(
        f"the loss returned shape {tuple(losses.shape)} for {size} samples; "
        f"it must return one value per sample, shape ({size},): {remedy}",
        name="loss",
    )


def _warn_converted(criterion: str) -> None:
    warnings.warn(
        f"{criterion} reduces over the batch, but Gnomon needs one loss per sample; it uses reduction='none' instead. "
        "Pass reduction='none' yourself to silence this warning.",
        stacklevel=3,
    )


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy: binary for one output and targets 0 or 1, multinomial for one logit per class.

    >>> logistic(torch.zeros(1, 1), torch.tensor([1])), logistic(torch.zeros(1, 3), torch.tensor([2]))
    (tensor([0.6931]), tensor([1.0986]))
    """
    if outputs.shape[1] == 1:
        return F.softplus(-_signs(targets, outputs) * outputs[:, 0])
    return F.cross_entropy(outputs, targets, reduction="none")


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a support vector machine: `max(0, 1 - margin)`.

    For one logit per class the margin is that of the true class over the best other class (Crammer and Singer 2001).

    >>> hinge(torch.tensor([[0.5]]), torch.tensor([0])), hinge(torch.tensor([[0.5, 0.0]]), torch.tensor([0]))
    (tensor([1.5000]), tensor([0.5000]))
    """
    if outputs.shape[1] == 1:
        return (1 - _signs(targets, outputs) * outputs[:, 0]).clamp_min(0)
    true_class = outputs.gather(1, targets[:, None])
    other_classes = outputs.masked_fill(F.one_hot(targets, outputs.shape[1]).bool(), -torch.inf)
    return (1 + other_classes.amax(1) - true_class[:, 0]).clamp_min(0)


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Huber loss with threshold 1, summed over outputs; classes are regressed on their one-hot vectors.

    >>> huber(torch.tensor([[3.0]]), torch.tensor([0.0]))
    tensor([2.5000])
    """
    regressed = (
        targets.to(outputs.dtype).reshape(outputs.shape)
        if outputs.shape[1] == 1
        else F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    )
    return F.huber_loss(outputs, regressed, reduction="none").sum(1)


def _signs(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return targets 0 and 1 as -1 and 1."""
    return 2 * targets.to(outputs.dtype).reshape(len(outputs)) - 1


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": logistic,
    "hinge": hinge,
    "huber": huber,
}
"""The losses by their names on the command line."""
