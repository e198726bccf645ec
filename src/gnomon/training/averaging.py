"""The average of all iterates, each weighted by its step size: what the theory of convex problems is about."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel


class StepWeighted:
    """`sum eta_t w_t / sum eta_t`, one term at a time."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._total, self._seen = 0.0, -1

    def __call__(self, averaged: tuple[Tensor, ...] | list[Tensor], current: object, count: Tensor | int) -> None:
        rate = float(self._optimizer.param_groups[0]["lr"])
        if int(count) != self._seen:  # called once for each kind of tensor
            self._seen, self._total = int(count), self._total + rate
        for mean, value in zip(averaged, current, strict=True):  # type: ignore[call-overload]
            mean.lerp_(value, rate / self._total)


def step_average(model: nn.Module, optimizer: Optimizer) -> AveragedModel:
    """A copy of the model that follows the average of its iterates.

    >>> import torch
    >>> model = nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> average = step_average(model, optimizer)
    >>> for value in (0.0, 4.0):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    ...     optimizer.param_groups[0]["lr"] = 3.0
    >>> float(average.module.weight.detach())
    3.0
    """
    average = AveragedModel(model, multi_avg_fn=StepWeighted(optimizer))
    average.n_averaged.fill_(1)  # the start is replaced by the first term
    return average
