"""The constrained fit: a minimiser over the set, certified, and the nearest one to the start."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import optimize

from gnomon.constraints import Box, GroupBall, L1Ball, L2Ball, NuclearBall, Simplex
from gnomon.constraints.solve import TIE, nearest_fit

D = torch.float64
SETS = [L1Ball(2.0), L2Ball(1.5), Simplex(), Box(-0.3, 0.3), GroupBall(2.0, 4), NuclearBall(2.0, 6)]


def problem(one, size=60, rows=15, scale=3.0, seed=0):
    torch.manual_seed(seed)
    phi = torch.randn(rows, size, dtype=D) / math.sqrt(rows)
    return phi, one.project(torch.randn(size, dtype=D)), scale * torch.randn(rows, dtype=D)


def solved(phi, one, start, wanted, accuracy=1e-2, most=500, stretch=None):
    stretch = stretch or (math.sqrt(phi.shape[1]) + math.sqrt(len(phi)) + 6) / math.sqrt(len(phi))
    return nearest_fit(lambda v: phi @ v, lambda r: phi.T @ r, stretch, one, start, wanted, accuracy, most)


def objective(phi, start, wanted, w):
    return float((phi @ (w - start) - wanted).square().sum() / 2 + TIE * (w - start).square().sum() / 2)


@pytest.mark.parametrize("one", SETS, ids=lambda s: s.name)
@pytest.mark.parametrize("scale", [0.05, 3.0])
def test_the_certificate_is_true(one, scale):
    phi, start, wanted = problem(one, scale=scale)
    rough = solved(phi, one, start, wanted, 1e-2)
    best = solved(phi, one, start, wanted, 1e-6, 3000)
    top = float(wanted.square().sum()) / 2
    assert rough.gap <= 1e-2
    left = (objective(phi, start, wanted, rough.point) - objective(phi, start, wanted, best.point)) / top
    assert left <= rough.gap + 1e-9
    assert best.gap <= 1e-5
    torch.testing.assert_close(one.project(rough.point), rough.point, rtol=0, atol=1e-9)


def test_the_optimum_is_that_of_a_general_solver():
    one = L2Ball(1.5)
    phi, start, wanted = problem(one, size=10, rows=4)
    rule = {"type": "ineq", "fun": lambda w: 1.5**2 - w @ w}
    found = optimize.minimize(
        lambda w: objective(phi, start, wanted, torch.as_tensor(w)), start.numpy(), constraints=rule, tol=1e-12
    )
    mine = solved(phi, one, start, wanted, 1e-9, 5000)
    assert objective(phi, start, wanted, mine.point) == pytest.approx(found.fun, rel=1e-5)


def test_among_minimisers_the_nearest_to_the_start_is_chosen():
    phi, start, wanted = problem(L2Ball(100.0), scale=0.1)
    found = solved(phi, L2Ball(100.0), start, wanted, 1e-8, 5000).point
    nearest = start + torch.linalg.pinv(phi) @ wanted  # nothing moves outside the rows of phi
    torch.testing.assert_close(found, nearest, rtol=0, atol=2e-3 * float((nearest - start).norm()))


def test_a_stretch_that_is_too_small_is_found_out():
    phi, start, wanted = problem(L1Ball(2.0))
    careless = solved(phi, L1Ball(2.0), start, wanted, 1e-6, 5000, stretch=0.01)
    assert careless.gap <= 1e-6


def test_nothing_wanted_moves_nothing_and_the_number_of_iterations_is_bounded():
    phi, start, wanted = problem(L1Ball(2.0))
    still = solved(phi, L1Ball(2.0), start, 0 * wanted)
    assert torch.equal(still.point, start)
    short = solved(phi, L1Ball(2.0), start, wanted, 1e-12, most=7)
    assert short.iterations <= 7
    assert short.gap > 1e-12


def test_the_image_is_the_projection_onto_the_image_of_the_set():
    one = Simplex()
    phi, start, wanted = problem(one, size=8, rows=3)
    found = solved(phi, one, start, wanted, 1e-10, 20_000).point
    y, theta = phi @ start + wanted, phi @ found
    # the nearest point of a hull makes no acute angle with any of its corners, up to the weight of staying near
    slack = TIE * float((found - start).norm()) * 2
    assert float(((y - theta) @ (phi - theta[:, None])).max()) <= slack + 1e-6
