"""The point of a convex set whose sketch fits best: accelerated projected gradients with a certified stopping rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gnomon.constraints.constraint import Constraint

TIE = 1e-3
"""The weight of staying near the start, beside a sketch that keeps lengths on average."""


@dataclass(frozen=True)
class Fit:
    """What the solver found."""

    point: Tensor
    iterations: int
    gap: float
    """At most so much can still be gained, as a part of the objective at the start."""


def nearest_fit(
    apply: Callable[[Tensor], Tensor],
    transpose: Callable[[Tensor], Tensor],
    stretch: float,
    constraint: Constraint,
    start: Tensor,
    wanted: Tensor,
    accuracy: float = 1e-2,
    most: int = 500,
) -> Fit:
    """The w in C with `Phi (w - start)` nearest to `wanted`; among several the one nearest to the start.

    Minimises `|Phi (w - start) - wanted|^2 / 2 + TIE |w - start|^2 / 2` by FISTA with restarts. Steps start from
    `stretch`, a guess of the largest singular value of Phi; they grow while the objective allows it and shrink where it
    does not. Every iterate gives a lower bound on the optimum through the linear oracle; the solver stops when that
    certifies the accuracy, or after `most` iterations.

    >>> import torch
    >>> from gnomon.constraints import L1Ball
    >>> phi = torch.tensor([[1.0, 1.0]])
    >>> fit = nearest_fit(lambda v: phi @ v, lambda r: phi.T @ r, 1.5, L1Ball(1.0), torch.zeros(2), torch.tensor([0.5]))
    >>> fit.point.round(decimals=2)
    tensor([0.2500, 0.2500])
    """
    curvature = stretch**2 + TIE
    scale = _square(wanted) / 2
    point, ahead, speed = start, start, 1.0
    at_point = at_ahead = -wanted  # residuals
    floor, iteration, gap = -math.inf, 0, 0.0
    if scale == 0:
        return Fit(start, 0, 0.0)
    while iteration < most:
        moved = ahead - start
        slope = transpose(at_ahead).add_(moved, alpha=TIE)
        value = (_square(at_ahead) + TIE * _square(moved)) / 2
        floor = max(floor, value - float(slope @ (ahead - constraint.lowest(slope))))
        while True:
            iteration += 1
            found = constraint.project(ahead.sub(slope, alpha=1 / curvature))
            moved = found - start
            residual = apply(moved).sub_(wanted)
            bend = _square(residual - at_ahead)
            step = found - ahead
            length = _square(step)
            if bend <= (curvature - TIE) * length * (1 + 1e-4) or length == 0 or iteration >= most:
                break
            curvature *= 2.0
        gap = ((_square(residual) + TIE * _square(moved)) / 2 - floor) / scale
        if gap <= accuracy or length == 0:
            point = found
            break
        drift = found - point
        if float(step @ drift) < 0:
            speed = 1.0  # the momentum points uphill
        following = (1 + math.sqrt(1 + 4 * speed**2)) / 2
        momentum = (speed - 1) / following
        ahead = found.add(drift, alpha=momentum)
        at_ahead = residual.add(residual - at_point, alpha=momentum)
        point, at_point, speed = found, residual, following
        curvature *= 0.8  # a larger step next time; it is checked
    return Fit(point, iteration, max(gap, 0.0))


def _square(vector: Tensor) -> float:
    return float(vector @ vector)
