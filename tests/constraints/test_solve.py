"""The solver of constrained steps: its certificate holds, and it returns the minimiser nearest to the start."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import optimize

from gnomon.constraints import Box, GroupBall, L1Ball, L2Ball, NuclearBall, Simplex
from gnomon.constraints.solve import TIE, nearest_fit

D = torch.float64
SETS = [L1Ball(2.0), L2Ball(1.5), Simplex(), Box(-0.3, 0.3), GroupBall(2.0, 4), NuclearBall(2.0, 6)]


def problem(constraint, size=60, rows=15, scale=3.0, seed=0):
    torch.manual_seed(seed)
    phi = torch.randn(rows, size, dtype=D) / math.sqrt(rows)
    return phi, constraint.project(torch.randn(size, dtype=D)), scale * torch.randn(rows, dtype=D)


def solved(phi, constraint, start, displacement, accuracy=1e-2, max_iterations=500, stretch=None):
    stretch = stretch or (math.sqrt(phi.shape[1]) + math.sqrt(len(phi)) + 6) / math.sqrt(len(phi))
    return nearest_fit(
        lambda v: phi @ v, lambda r: phi.T @ r, stretch, constraint, start, displacement, accuracy, max_iterations
    )


def objective(phi, start, displacement, w):
    return float((phi @ (w - start) - displacement).square().sum() / 2 + TIE * (w - start).square().sum() / 2)


@pytest.mark.parametrize("constraint", SETS, ids=lambda s: s.name)
@pytest.mark.parametrize("scale", [0.05, 3.0])
def test_the_certificate_is_true(constraint, scale):
    phi, start, displacement = problem(constraint, scale=scale)
    rough = solved(phi, constraint, start, displacement, 1e-2)
    best = solved(phi, constraint, start, displacement, 1e-6, 3000)
    top = float(displacement.square().sum()) / 2
    assert rough.gap <= 1e-2
    left = (objective(phi, start, displacement, rough.point) - objective(phi, start, displacement, best.point)) / top
    assert left <= rough.gap + 1e-9
    assert best.gap <= 1e-5
    torch.testing.assert_close(constraint.project(rough.point), rough.point, rtol=0, atol=1e-9)


def test_the_optimum_is_that_of_a_general_solver():
    constraint = L2Ball(1.5)
    phi, start, displacement = problem(constraint, size=10, rows=4)
    rule = {"type": "ineq", "fun": lambda w: 1.5**2 - w @ w}
    reference = optimize.minimize(
        lambda w: objective(phi, start, displacement, torch.as_tensor(w)), start.numpy(), constraints=rule, tol=1e-12
    )
    ours = solved(phi, constraint, start, displacement, 1e-9, 5000)
    assert objective(phi, start, displacement, ours.point) == pytest.approx(reference.fun, rel=1e-5)


def test_among_minimisers_the_nearest_to_the_start_is_chosen():
    phi, start, displacement = problem(L2Ball(100.0), scale=0.1)
    point = solved(phi, L2Ball(100.0), start, displacement, 1e-8, 5000).point
    nearest = start + torch.linalg.pinv(phi) @ displacement  # without a component outside the row space of phi
    torch.testing.assert_close(point, nearest, rtol=0, atol=2e-3 * float((nearest - start).norm()))


def test_a_stretch_that_is_too_small_is_found_out():
    phi, start, displacement = problem(L1Ball(2.0))
    careless = solved(phi, L1Ball(2.0), start, displacement, 1e-6, 5000, stretch=0.01)
    assert careless.gap <= 1e-6


def test_nothing_wanted_moves_nothing_and_the_number_of_iterations_is_bounded():
    phi, start, displacement = problem(L1Ball(2.0))
    still = solved(phi, L1Ball(2.0), start, 0 * displacement)
    assert torch.equal(still.point, start)
    short = solved(phi, L1Ball(2.0), start, displacement, 1e-12, max_iterations=7)
    assert short.iterations <= 7
    assert short.gap > 1e-12


def test_the_image_is_the_projection_onto_the_image_of_the_set():
    constraint = Simplex()
    phi, start, displacement = problem(constraint, size=8, rows=3)
    point = solved(phi, constraint, start, displacement, 1e-10, 20_000).point
    y, theta = phi @ start + displacement, phi @ point
    # at the projection onto a hull, no corner is at an acute angle, up to the weight of the distance to the start
    slack = TIE * float((point - start).norm()) * 2
    assert float(((y - theta) @ (phi - theta[:, None])).max()) <= slack + 1e-6
