"""The solver of constrained steps: accelerated projected gradients with a certified stopping rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gnomon.constraints.sets import Constraint

TIE = 1e-3
"""The weight of the distance to the start in the objective. The sketch preserves squared lengths on average, so the
term is small beside the fit."""


@dataclass(frozen=True)
class Fit:
    """The solution of `nearest_fit`.

    Attributes:
        point: a point of the set.
        iterations: the number of iterations.
        gap: an upper bound on how much the objective could still fall, as a fraction of its value at the start.
    """

    point: Tensor
    iterations: int
    gap: float


def nearest_fit(
    apply: Callable[[Tensor], Tensor],
    transpose: Callable[[Tensor], Tensor],
    stretch: float,
    constraint: Constraint,
    start: Tensor,
    displacement: Tensor,
    accuracy: float = 1e-2,
    max_iterations: int = 500,
) -> Fit:
    """Return the w in C with `Phi (w - start)` nearest to `displacement`; among several, the one nearest to the start.

    Minimises `|Phi (w - start) - displacement|^2 / 2 + TIE |w - start|^2 / 2` by FISTA with restarts. Step sizes grow
    while the objective allows it and shrink where it does not. Every iterate gives a lower bound on the optimum
    through the linear oracle of C.

    Args:
        apply: multiplies a vector of parameters by Phi.
        transpose: multiplies a vector of coordinates by the transpose of Phi.
        stretch: an estimate of the largest singular value of Phi, which determines the first step size.
        constraint: the convex set C.
        start: a point of C.
        displacement: the change of the coordinates to fit.
        accuracy: stop when the lower bound certifies that `Fit.gap` is at most this.
        max_iterations: stop after this many iterations in any case.

    >>> import torch
    >>> from gnomon.constraints import L1Ball
    >>> phi = torch.tensor([[1.0, 1.0]])
    >>> fit = nearest_fit(lambda v: phi @ v, lambda r: phi.T @ r, 1.5, L1Ball(1.0), torch.zeros(2), torch.tensor([0.5]))
    >>> fit.point.round(decimals=2)
    tensor([0.2500, 0.2500])
    """
    curvature = stretch**2 + TIE
    scale = _square(displacement) / 2  # the objective at the start
    point, ahead, speed = start, start, 1.0
    residual_at_point = residual_at_ahead = -displacement
    lower_bound, iteration, gap = -math.inf, 0, 0.0
    if scale == 0:
        return Fit(start, 0, 0.0)
    while iteration < max_iterations:
        moved = ahead - start
        slope = transpose(residual_at_ahead).add_(moved, alpha=TIE)
        value = (_square(residual_at_ahead) + TIE * _square(moved)) / 2
        lower_bound = max(lower_bound, value - float(slope @ (ahead - constraint.lowest(slope))))
        while True:
            iteration += 1
            candidate = constraint.project(ahead.sub(slope, alpha=1 / curvature))
            moved = candidate - start
            residual = apply(moved).sub_(displacement)
            bend = _square(residual - residual_at_ahead)
            step = candidate - ahead
            length = _square(step)
            if bend <= (curvature - TIE) * length * (1 + 1e-4) or length == 0 or iteration >= max_iterations:
                break
            curvature *= 2.0
        gap = ((_square(residual) + TIE * _square(moved)) / 2 - lower_bound) / scale
        if gap <= accuracy or length == 0:
            point = candidate
            break
        drift = candidate - point
        if float(step @ drift) < 0:
            speed = 1.0  # restart: the momentum points uphill
        following = (1 + math.sqrt(1 + 4 * speed**2)) / 2
        momentum = (speed - 1) / following
        ahead = candidate.add(drift, alpha=momentum)
        residual_at_ahead = residual.add(residual - residual_at_point, alpha=momentum)
        point, residual_at_point, speed = candidate, residual, following
        curvature *= 0.8  # try a larger step next time; the inner loop checks it
    return Fit(point, iteration, max(gap, 0.0))


def _square(vector: Tensor) -> float:
    return float(vector @ vector)
