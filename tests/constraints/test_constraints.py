"""Constraint sets: projections, linear oracles, widths and diameters."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import optimize

from gnomon.constraints import Box, GroupBall, L1Ball, L2Ball, NuclearBall, Simplex, parse, sets
from gnomon.constraints.sets import threshold
from gnomon.errors import SettingError

SIZE = 12
SETS = [L1Ball(2.0), L2Ball(1.5), Simplex(), Simplex(3.0), Box(-0.5, 1.0), GroupBall(2.0, 3), NuclearBall(2.0, 3)]
D = torch.float64


def inside(constraint, x) -> bool:
    """Whether x is in the set, by the definition of the set."""
    slack = 1e-9
    match constraint:
        case L1Ball():
            return float(x.abs().sum()) <= constraint.radius + slack
        case L2Ball():
            return float(x.norm()) <= constraint.radius + slack
        case Simplex():
            return bool((x >= -slack).all()) and abs(float(x.sum()) - constraint.radius) <= slack
        case Box():
            return bool(((x >= constraint.low - slack) & (x <= constraint.high + slack)).all())
        case GroupBall():
            return float(x.view(-1, constraint.group).norm(dim=1).sum()) <= constraint.radius + slack
        case _:
            return float(torch.linalg.svdvals(x.view(constraint.rows, -1)).sum()) <= constraint.radius + slack


@pytest.mark.parametrize("constraint", SETS, ids=lambda s: s.name)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_projection_is_the_nearest_point(constraint, scale):
    torch.manual_seed(0)
    for _ in range(20):
        x = scale * torch.randn(SIZE, dtype=D)
        p = constraint.project(x)
        assert inside(constraint, p)
        # p is the projection if and only if the angle at p towards every extreme point is obtuse
        for _ in range(20):
            v = constraint.lowest(torch.randn(SIZE, dtype=D))
            assert inside(constraint, v)
            assert float((x - p) @ (v - p)) <= 1e-8 * max(scale, 1)
        assert float((x - p) @ (constraint.lowest(p - x) - p)) <= 1e-8 * max(scale, 1)
        torch.testing.assert_close(constraint.project(p), p, rtol=0, atol=1e-9)


@pytest.mark.parametrize("constraint", SETS, ids=lambda s: s.name)
def test_a_point_of_the_set_stays_where_it_is(constraint):
    torch.manual_seed(1)
    for _ in range(10):
        mean = torch.stack([constraint.lowest(torch.randn(SIZE, dtype=D)) for _ in range(5)]).mean(0)
        torch.testing.assert_close(constraint.project(mean), mean, rtol=0, atol=1e-9)


@pytest.mark.parametrize("constraint", SETS, ids=lambda s: s.name)
def test_the_linear_oracle_is_lowest(constraint):
    torch.manual_seed(2)
    for _ in range(20):
        g = torch.randn(SIZE, dtype=D)
        best = float(g @ constraint.lowest(g))
        points = [constraint.project(5 * torch.randn(SIZE, dtype=D)) for _ in range(50)]
        assert best <= min(float(g @ p) for p in points) + 1e-9


def test_the_l1_oracle_agrees_with_linear_programming():
    torch.manual_seed(3)
    g = torch.randn(SIZE, dtype=D)
    both = torch.cat([g, -g]).numpy()
    solution = optimize.linprog(both, A_ub=[[1.0] * (2 * SIZE)], b_ub=[2.0], bounds=(0, None))
    assert float(g @ L1Ball(2.0).lowest(g)) == pytest.approx(solution.fun)


@pytest.mark.parametrize("constraint", SETS, ids=lambda s: s.name)
def test_no_two_points_are_further_apart_than_the_diameter(constraint):
    torch.manual_seed(4)
    points = torch.stack([constraint.lowest(torch.randn(SIZE, dtype=D)) for _ in range(200)])
    assert float(torch.cdist(points, points).max()) <= constraint.diameter(SIZE) + 1e-9
    apart = max(float((constraint.lowest(g) - constraint.lowest(-g)).norm()) for g in torch.randn(500, SIZE, dtype=D))
    assert apart >= 0.5 * constraint.diameter(SIZE)


@pytest.mark.parametrize(
    ("constraint", "size"),
    [
        (L1Ball(2.0), 1000), (L2Ball(1.5), 1000), (Simplex(), 1000), (Box(-0.5, 1.0), 1000), (GroupBall(2.0, 10), 1000),
        (NuclearBall(2.0, 20), 1000),
    ],
    ids=lambda v: getattr(v, "name", v),
)  # fmt: skip
def test_widths_bound_the_mean_of_the_supremum_closely(constraint, size):
    torch.manual_seed(5)
    draws = torch.randn(300, size, dtype=D)
    mean = float(torch.stack([g @ constraint.lowest(-g) for g in draws]).mean())
    assert 0.95 * mean <= constraint.width(size) <= 1.35 * mean


def test_the_threshold_meets_its_total_also_for_many_equal_values():
    for values in (torch.ones(1000), torch.arange(1000.0), torch.tensor([1e6, 1.0])):
        t = threshold(values, 3.0)
        assert float((values.double() - t).clamp_min(0).sum()) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("l1:5", L1Ball(5.0)), ("l2:0.5", L2Ball(0.5)), ("simplex", Simplex()), ("simplex:2", Simplex(2.0)),
        ("box:-1,1", Box(-1.0, 1.0)), ("group:5,10", GroupBall(5.0, 10)), ("nuclear:5,10", NuclearBall(5.0, 10)),
    ],
)  # fmt: skip
def test_texts_name_constraints(text, made):
    assert parse(text) == made
    assert parse(made) is made


@pytest.mark.parametrize("text", ["", "l1", "l1:x", "l1:-1", "l1:1,2", "l7:1", "box:1,-1", "group:1,2.5", "l1:nan"])
def test_wrong_texts_are_refused_with_what_is_allowed(text):
    with pytest.raises(SettingError, match="l1:RADIUS"):
        parse(text)


def test_sizes_that_do_not_fit_are_refused():
    for constraint in (GroupBall(1.0, 5), NuclearBall(1.0, 5)):
        with pytest.raises(SettingError, match="a divisor of the 12 parameters"):
            constraint.check(12)
    assert math.isfinite(Simplex().width(1))


def test_sorting_and_dropping_find_the_same_threshold(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    for size in (1, 7, 300):
        values = torch.randn(size, generator=draw, dtype=torch.float64).abs()
        for total in (0.1, 3.0, 1000.0):
            sorted_out = sets.threshold(values, total)
            with monkeypatch.context() as patch:
                patch.setattr(sets, "SHORT", 0)
                assert sets.threshold(values, total) == pytest.approx(sorted_out, abs=1e-12)
            assert float((values - sorted_out).clamp_min(0).sum()) == pytest.approx(total)
