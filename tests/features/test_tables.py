"""Feature maps of tables and of tokens, and of small images."""

from __future__ import annotations

import pytest
import torch

from gnomon import DataError, SettingError
from gnomon.features import BinnedColumns, Scattering, TokenContext


def test_bins_of_a_number_are_weights_of_its_neighbouring_nodes():
    table = BinnedColumns(1, {0: (10.0, 20.0)}, bins=5, constant=0)
    values = torch.tensor([[10.0], [13.0], [20.0], [9.0], [99.0]])
    weights = table(values)
    nodes = torch.arange(6) * 2.0 + 10
    for row, value in zip(weights, values.clamp(10, 20), strict=True):
        assert float(row @ nodes / row.sum()) == pytest.approx(float(value), rel=1e-5)  # the number is their mean
        assert int((row > 0).sum()) <= 2


def test_categories_are_centred_and_other_columns_are_kept():
    table = BinnedColumns(4, {}, [(0, 3)], constant=2.0)
    row = table(torch.tensor([[0.0, 1.0, 0.0, 0.5]]))
    row = row / row[0, -1] * 2
    assert torch.allclose(row, torch.tensor([[-1 / 3, 2 / 3, -1 / 3, 0.5, 2.0]]))


@pytest.mark.parametrize(
    "settings",
    [{"ranges": {0: (1.0, 1.0)}}, {"ranges": {5: (0.0, 1.0)}}, {"ranges": {0: (0.0, 1.0)}, "categories": [(0, 2)]}],
)
def test_ranges_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingError):
        BinnedColumns(3, **settings)


def test_the_last_tokens_decide_the_context():
    context = TokenContext(10, positions=64)
    tokens = torch.randint(0, 10, (50, 8), generator=torch.Generator().manual_seed(0))
    other = torch.cat([torch.randint(0, 10, (50, 5)), tokens[:, -3:]], 1)
    assert torch.equal(context(tokens), context(other))
    assert torch.allclose(context(tokens).norm(dim=1), torch.ones(50))
    assert torch.equal(context(tokens.float()), context(tokens))
    for wrong in (tokens + 5, tokens - 1, tokens + 0.5, tokens / 0):
        with pytest.raises(DataError, match="tokens are 0, 1"):
            context(wrong)
    with pytest.raises(DataError, match="T >= 3"):
        context(tokens[:, :2])


def test_small_images_are_scattered_at_a_larger_size():
    scattering = Scattering((1, 8, 8), resize=16)
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    larger = torch.nn.functional.interpolate(images, (16, 16), mode="bilinear", align_corners=False)
    assert torch.equal(scattering(images), Scattering((1, 16, 16))(larger))
    assert scattering.identity() != Scattering((1, 16, 16)).identity()
