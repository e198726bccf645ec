"""Averages of the weights over steps: exponential, or weighted by step sizes as in convex optimisation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gnomon import validate
from gnomon.errors import SettingError


class StepWeighted:
    """The running average `sum eta_t w_t / sum eta_t` of iterates w_t with step sizes eta_t."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._seen = optimizer, -1
        self.total = torch.zeros((), dtype=torch.float64)
        """The sum of the step sizes so far; a buffer of the average, so that checkpoints keep it."""

    def __call__(self, averaged: tuple[Tensor, ...] | list[Tensor], current: object, count: Tensor | int) -> None:
        rate = float(self._optimizer.param_groups[0]["lr"])
        if int(count) != self._seen:  # called once per data type
            self._seen = int(count)
            self.total += rate
        for mean, value in zip(averaged, current, strict=True):  # type: ignore[call-overload]
            mean.lerp_(value, rate / float(self.total) if self.total else 1.0)  # a warm-up may start at 0


def step_average(model: nn.Module, optimizer: Optimizer) -> AveragedModel:
    """Return a copy of the model that follows the step-weighted average of its iterates.

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
    weighted = StepWeighted(optimizer)
    average = AveragedModel(model, multi_avg_fn=weighted)
    average.register_buffer("step_total", weighted.total)
    average.n_averaged.fill_(1)  # the first term replaces the initial weights
    return average


def warmed_up(decay: float) -> Callable[[list[Tensor], list[Tensor], Tensor | int], None]:
    """Return the update of an exponential average whose decay in step t is `min(decay, (1 + t) / (10 + t))`.

    With a constant decay of 0.9999 the weights after the first step would be most of the average for 7,000 steps.

    >>> average, update = torch.zeros(1), warmed_up(0.9999)
    >>> update([average], [torch.ones(1)], 1)
    >>> average
    tensor([0.8182])
    """

    @torch.no_grad()
    def update(averaged: list[Tensor], current: list[Tensor], count: Tensor | int) -> None:
        step = int(count)
        rate = 1 - min(decay, (1 + step) / (10 + step))
        for mean, value in zip(averaged, current, strict=True):
            mean.lerp_(value, rate)

    return update


SCHEDULES: dict[str, Callable[[float], Callable[..., None]]] = {"constant": get_ema_multi_avg_fn, "warm-up": warmed_up}
"""The update of an exponential average by the name of the schedule of its decay."""


def averaging(
    model: nn.Module, optimizer: Optimizer, decay: float | None, always: bool, schedule: str = "constant"
) -> AveragedModel | None:
    """Return the average that a run keeps: exponential with `decay`, else of all iterates if `always`, else None.

    Args:
        model: the model.
        optimizer: its optimizer.
        decay: the decay of an exponential average.
        always: whether an average of all iterates is kept without it.
        schedule: the schedule of the decay, one of `SCHEDULES`.

    Raises:
        SettingError: the schedule is unknown, or is given without a decay.

    >>> model = nn.Linear(1, 1)
    >>> averaging(model, torch.optim.SGD(model.parameters(), lr=1.0), None, always=False) is None
    True
    """
    if schedule not in SCHEDULES or (decay is None and schedule != "constant"):
        expected = "constant without ema_decay" if schedule in SCHEDULES else f"one of {', '.join(SCHEDULES)}"
        raise SettingError("ema_schedule", schedule, expected)
    if decay is not None:
        return AveragedModel(model, multi_avg_fn=SCHEDULES[schedule](validate.probability("ema_decay", decay)))
    return step_average(model, optimizer) if always else None
