"""Features of a run: names of maps, copies of public images, whitening, and raw records."""

from __future__ import annotations

import math

import pytest
import torch

from gnomon import DataError, SettingError
from gnomon.data import Loader, Records
from gnomon.features import MAPS, Facts, Scaled, build, pipeline
from gnomon.features.registry import parse


def images(count: int, seed: int = 0, channels: int = 1, side: int = 16) -> Records:
    """Return random images of two classes."""
    inputs = torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(seed))
    return Records(inputs, torch.arange(count) % 2)


# -- names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "dimension"),
    [
        ("scattering", (1, 16, 16), 81 * 16),
        ("patches:5", (3, 16, 16), None),
        ("random:7", (4,), 7 * 2 + 4),
        ("ngrams:64", (10,), 64),
        ("context:32", (10,), 3 * 7 + 2 * 32),
        ("scaled", (2, 3), 7),
    ],
)
def test_maps_are_built_by_name(text, shape, dimension):
    public = images(10, channels=3) if text.startswith("patches") else None
    feature_map = build(text, Facts(shape, public, tokens=7 if text.startswith("context") else 0))
    assert feature_map.dimension == dimension or text.startswith("patches")
    assert set(MAPS) >= {text.partition(":")[0]}


def test_maps_beside_each_other_are_concatenated():
    public = images(10)
    both = build("scattering+patches:5", Facts((1, 16, 16), public))
    scattering, patches = build("scattering", Facts((1, 16, 16))), build("patches:5", Facts((1, 16, 16), public))
    features = both(public.inputs[:3])
    expected = torch.cat([scattering(public.inputs[:3]), patches(public.inputs[:3])], 1) / math.sqrt(2)
    assert torch.allclose(features, expected, atol=1e-5)
    assert both.origin.records == 10


def test_features_on_a_grid_are_whitened_alike_in_every_cell():
    public, private = images(20, channels=3), images(5, seed=1, channels=3)
    parts = pipeline("patches:10", Facts((3, 16, 16), public), progress=False).whitened(k=40, lam=0.1)
    assert parts.whitening.rank > len(public)  # more directions than public records
    assert "the same in each of 9 cells" in parts.feature_map.description
    assert parts.records(private).inputs.shape == (5, 40)
    again = parts.whitened(k=7, lam=0.2)
    assert again.records(private).inputs.shape == (5, 7)
    with pytest.raises(DataError, match="5 of 20 public records"):
        parts.records(public[:5])


@pytest.mark.parametrize(
    "text", ["wavelets", "scattering+", "scattering+wavelets", "scattering:3", "patches:0", "patches:x", "patches:", ""]
)
def test_names_of_no_map_are_refused(text):
    with pytest.raises(SettingError, match="features"):
        parse(text)


def test_a_map_of_public_images_needs_them():
    with pytest.raises(SettingError, match="needs no public records"):
        build("patches", Facts((3, 16, 16)))


def test_scaled_inputs_have_norm_one_and_keep_the_size_of_a_record():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    features = Scaled((2,))(rows)
    assert torch.allclose(features.norm(dim=1), torch.ones(2))
    assert features[0, 2] < features[1, 2]  # the constant tells a long record from a short one
    assert Scaled((2,), constant=0)(rows)[0].allclose(Scaled((2,), constant=0)(rows)[1])
    with pytest.raises(DataError, match="shape"):
        Scaled((3,))(rows)


# -- the pipeline -------------------------------------------------------------------------------------


def test_copies_come_after_the_public_images_and_carry_their_labels():
    public = images(6)
    parts = pipeline("scattering", Facts((1, 16, 16), public), copies=3, distortion="objects", progress=False)
    assert len(parts.public) == 18
    assert torch.equal(parts.public.targets, public.targets.repeat(3))
    alone = pipeline("scattering", Facts((1, 16, 16), public), progress=False)
    assert torch.allclose(parts.public.inputs[:6], alone.public.inputs)
    assert list(Loader(parts.public).fingerprints(torch.arange(18))) == 3 * list(Loader(public).fingerprints())


def test_the_whole_map_gives_the_features_of_the_pipeline():
    public, private = images(20), images(5, seed=1)
    parts = pipeline("scattering", Facts((1, 16, 16), public), progress=False).whitened(k=4, lam=0.1)
    features = parts.records(private)
    assert torch.allclose(parts.feature_map(private.inputs), features.inputs, atol=5e-3)  # kept as float16
    assert features.inputs.dtype == torch.float32
    assert parts.feature_map.origin.records == 20


def test_another_whitening_of_the_same_features_is_that_of_a_new_pipeline():
    public, private = images(20), images(5, seed=1)
    base = pipeline("scattering", Facts((1, 16, 16), public), progress=False)
    again = base.whitened(k=2, lam=0.5).whitened(k=4, lam=0.1)
    assert torch.equal(again.records(private).inputs, base.whitened(k=4, lam=0.1).records(private).inputs)


def test_public_records_among_the_private_ones_are_refused_by_a_map_without_statistics_too():
    public = images(20)
    parts = pipeline("scattering", Facts((1, 16, 16), public), progress=False).whitened(k=4)
    with pytest.raises(DataError, match="3 of 20 public records"):
        parts.records(public[:3])
    assert len(parts.records(public[:3], private=False)) == 3  # test records may be anything


def test_whitening_needs_public_records_and_copies_need_a_distortion():
    with pytest.raises(SettingError, match="public"):
        pipeline("scattering", Facts((1, 16, 16)), progress=False).whitened(k=3)
    with pytest.raises(SettingError, match="copies that are all alike"):
        pipeline("scattering", Facts((1, 16, 16), images(5)), copies=2, progress=False)


def test_computed_features_are_read_from_the_cache(tmp_path):
    public, private = images(20), images(8, seed=1)
    first = pipeline("scattering", Facts((1, 16, 16), public), cache=tmp_path, progress=False).whitened(k=3)
    features = first.records(private).inputs
    files = sorted(tmp_path.iterdir())
    again = pipeline("scattering", Facts((1, 16, 16), public), cache=tmp_path, progress=False).whitened(k=3)
    assert torch.equal(again.records(private).inputs, features)
    assert sorted(tmp_path.iterdir()) == files
    assert files


# -- raw records --------------------------------------------------------------------------------------


def test_features_are_recognised_by_their_raw_records():
    raw = images(6)
    features = Records(torch.randn(6, 3), raw.targets, raw=raw)
    assert list(Loader(features).fingerprints()) == list(Loader(raw).fingerprints())
    assert Loader(features).fingerprint(2) == Loader(raw).fingerprint(2)
    assert torch.equal(Loader(features).take(torch.tensor([1]))[0], features.inputs[1:2])


def test_parts_of_records_keep_their_raw_records():
    raw = images(6)
    features = Records(torch.randn(6, 3), raw.targets, raw=raw)
    for index in (slice(2, 4), torch.tensor([2, 3]), [2, 3], torch.tensor([False, False, True, True, False, False])):
        part = features[index]
        assert torch.equal(part.raw.inputs, raw.inputs[2:4])
        assert torch.equal(part.inputs, features.inputs[2:4])
    with pytest.raises(DataError, match="raw"):
        Records(torch.randn(6, 3), raw.targets, raw=raw[:5])


def test_a_record_that_is_not_finite_is_named():
    private = images(4)
    private.inputs[2, 0, 0, 0] = math.inf
    with pytest.raises(DataError, match="record 2"):
        pipeline("scattering", Facts((1, 16, 16)), progress=False).records(private)
