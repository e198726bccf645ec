"""The Gaussian sketch: one matrix for all leaves, drawn in tiles, and not stored if it is large."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gnomon.constraints import L1Ball, L2Ball
from gnomon.errors import SettingError
from gnomon.release import SeededNoise
from gnomon.subspaces import GaussianSketch, Growing, StepContext
from gnomon.subspaces import gaussian_sketch as module
from gnomon.subspaces.basis import COORDINATES
from gnomon.subspaces.gaussian_sketch import SketchBasis
from gnomon.updates import gradients
from tests.methods.test_methods import LOSS, MODELS, setting


def basis_of(model, rows=7, normalised=False, step=0, seed=0):
    return GaussianSketch(rows, normalised).basis(StepContext(model, LOSS, step, 1, 10, SeededNoise(seed)))


@pytest.mark.parametrize("tile", [200, 10**6])
@pytest.mark.parametrize("name", MODELS)
def test_coordinates_are_a_product_with_one_matrix(name, tile, monkeypatch):
    monkeypatch.setattr(module, "TILE_NUMBERS", tile)
    model, private, _ = setting(name)
    updates = gradients(model, LOSS, *private)
    basis = basis_of(model)
    phi, g = basis.dense(), updates.dense()
    coordinates = basis.coordinates(updates)
    torch.testing.assert_close(coordinates.dense(), g @ phi.T, rtol=1e-9, atol=1e-12)
    scaled = basis_of(model, normalised=True).coordinates(updates)
    torch.testing.assert_close(scaled.norms(), updates.norms())
    expected = g @ phi.T * (g.norm(dim=1) / (g @ phi.T).norm(dim=1))[:, None]
    torch.testing.assert_close(scaled.dense(), expected, rtol=1e-9, atol=1e-12)


def test_a_large_sketch_is_drawn_again_and_is_the_same(monkeypatch):
    model, private, _ = setting("mlp")
    updates = gradients(model, LOSS, *private)
    stored = basis_of(model)
    expected = stored.coordinates(updates).dense()
    monkeypatch.setattr(module, "STORED_NUMBERS", 0)
    redrawn = basis_of(model)
    for _ in range(2):
        torch.testing.assert_close(redrawn.coordinates(updates).dense(), expected)
    assert redrawn._stored is None
    assert stored._stored is not None


def test_no_more_than_a_tile_exists_at_a_time_when_the_model_is_large(monkeypatch):
    sizes = []
    original = SketchBasis._normal
    monkeypatch.setattr(
        SketchBasis, "_normal", lambda self, n, size: sizes.append(self.rank * size) or original(self, n, size)
    )
    like = {"weight": torch.zeros(1, 400_000)}
    basis = SketchBasis(like, 100, seed=1)
    coordinates = basis.apply(torch.ones(400_000))
    assert sum(sizes) == 100 * 400_000
    assert max(sizes) <= module.TILE_NUMBERS
    assert basis._stored is None
    assert float(coordinates.square().mean()) == pytest.approx(400_000 / 100, rel=0.6)


def test_apply_and_lift_are_transposes_and_undo_each_other_on_average():
    model = nn.Linear(20, 3).double()
    like = {name: p.detach() for name, p in model.named_parameters()}
    flat = lambda v: torch.cat([x.flatten() for x in v.values()])
    total = torch.zeros(63, 63, dtype=torch.float64)
    for seed in range(300):
        basis = SketchBasis(like, 10, seed)
        phi = basis.dense()
        total += phi.T @ phi / 300
        if seed < 5:
            r = torch.randn(10, dtype=torch.float64)
            torch.testing.assert_close(flat(basis.lift({COORDINATES: r})), phi.T @ r)
            torch.testing.assert_close(basis.apply(flat(like)), phi @ flat(like))
    assert float((total - torch.eye(63)).abs().max()) < 0.12
    assert float(total.diagonal().mean()) == pytest.approx(1.0, abs=0.01)


def test_every_step_has_a_fresh_sketch_and_the_bound_on_its_stretch_holds():
    model = nn.Linear(300, 1)
    space, noise = GaussianSketch(20), SeededNoise(0)
    moments = [StepContext(model, LOSS, step, 1, 10, noise) for step in range(10)]
    assert len({space.key(context) for context in moments}) == 10
    drawn = [space.basis(context) for context in moments]
    assert abs(float((drawn[0].dense() * drawn[1].dense()).mean())) < 5 / 20 / math.sqrt(20 * 301)
    for basis in drawn:
        largest = float(torch.linalg.svdvals(basis.dense())[0])
        assert 0.7 * basis.largest_stretch < largest < basis.largest_stretch


def test_the_schedule_grows_with_the_width_and_stops_at_the_dimension():
    rows = Growing(L1Ball(1.0))
    # the step, counted from 1, at which the sketch of the unit l1 ball has all d directions
    for size, last in ((10**4, 22), (10**5, 64)):
        counts = [rows.at(step - 1, size) for step in (last - 1, last)]
        assert counts[0] < size == counts[1]
    assert Growing(L2Ball(1.0)).at(0, 50) == 50
    basis = GaussianSketch(rows).basis(StepContext(nn.Linear(500, 1), LOSS, 0, 1, 5, SeededNoise(0)))
    assert basis.rank == rows.at(0, 501)
    with pytest.raises(SettingError, match="a constant number of directions"):
        _ = GaussianSketch(rows).expansion


def test_the_sum_is_seen_in_double_precision():
    like = {"weight": torch.zeros(1, 1000)}
    basis = SketchBasis(like, 10, seed=0)
    big = {"weight": torch.full((1, 1000), 1e4)}
    other = {"weight": big["weight"].clone()}
    other["weight"][0, 0] += 1.0
    moved = basis.sketch_sum(other)[COORDINATES] - basis.sketch_sum(big)[COORDINATES]
    torch.testing.assert_close(moved, basis.dense()[:, 0].double(), rtol=1e-9, atol=1e-9)


def test_a_sum_of_zero_is_seen_as_zero():
    for normalised in (False, True):
        basis = SketchBasis({"weight": torch.zeros(1, 8)}, 3, 0, normalised)
        assert torch.equal(
            basis.sketch_sum({"weight": torch.zeros(1, 8)})[COORDINATES], torch.zeros(3, dtype=torch.float64)
        )


def test_bad_numbers_of_directions_are_refused():
    for rows in (0, 2.5, -1):
        with pytest.raises(SettingError, match="rows"):
            GaussianSketch(rows)
