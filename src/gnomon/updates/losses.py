"""Losses with one number a sample."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) -> (B,)"""


def per_sample(loss: Loss) -> Loss:
    """The loss with one number a sample.

    A criterion of torch that reduces over the batch is converted, with a warning that says so: its mean
    would divide each sample's gradient by the batch size, its sum is right only by luck.

    >>> import torch, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     criterion = per_sample(nn.CrossEntropyLoss())
    >>> criterion(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    tensor([0.6931, 0.6931, 0.6931])
    """
    if not callable(loss):
        raise TypeError(f"loss = {loss!r} is not callable: give (outputs, targets) -> one number a sample")
    if isinstance(loss, nn.Module):
        reduction = getattr(loss, "reduction", None)
        if reduction not in ("mean", "sum", "batchmean"):
            return loss
        converted = copy.copy(loss)
        setattr(converted, "reduction", "none")  # noqa: B010
        _say_converted(f"{type(loss).__name__}(reduction={reduction!r})")
        return converted
    bound = loss.keywords if isinstance(loss, functools.partial) else {}
    function = loss.func if isinstance(loss, functools.partial) else loss
    if getattr(function, "__module__", None) == F.__name__ and "reduction" not in bound:
        parameters = inspect.signature(function).parameters
        if "reduction" in parameters:
            default = parameters["reduction"].default
            _say_converted(f"{getattr(function, '__name__', function)} with reduction={default!r}")
            whole: Callable[..., Tensor] = loss
            return functools.partial(whole, reduction="none")
    return loss


def checked(losses: Tensor, size: int) -> Tensor:
    """The losses, if they are one number for each of `size` samples.

    >>> import torch
    >>> checked(torch.tensor(0.5), 8)
    Traceback (most recent call last):
    ValueError: the loss returned shape () for 8 samples: it must return one number a sample, shape (8,); \
a reduced loss needs reduction='none'
    """
    if not isinstance(losses, Tensor):
        raise TypeError(f"the loss returned {type(losses).__name__}: it must return a tensor, shape ({size},)")
    if tuple(losses.shape) == (size,):
        return losses
    hint = "a reduced loss needs reduction='none'"
    if losses.dim() > 1 and losses.shape[0] == size:
        hint = "average what belongs to one sample, for example losses.flatten(1).mean(1)"
    raise ValueError(
        f"the loss returned shape {tuple(losses.shape)} for {size} samples: "
        f"it must return one number a sample, shape ({size},); {hint}"
    )


def _say_converted(what: str) -> None:
    warnings.warn(
        f"{what} reduces over the batch; Gnomon needs one loss a sample and uses reduction='none' instead. "
        "Pass that yourself to silence this.",
        stacklevel=3,
    )
