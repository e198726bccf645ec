"""Whitening by public features, and the distorted copies of public images that it learns from."""

from __future__ import annotations

import math

import pytest
import torch

from gnomon import DataError, SettingError
from gnomon.features import DISTORTIONS, Chain, Distortion, Origin, PublicWhitening, RandomFeatures, augmented


def features(count: int, dimension: int, seed: int = 0) -> torch.Tensor:
    """Return normal features whose directions have different variances, and a mean that is not zero."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dimension, generator=generator) / torch.arange(1, dimension + 1) + 3


@pytest.mark.parametrize(("count", "dimension"), [(40, 12), (12, 40)])
def test_whitening_is_the_formula_by_the_covariance(count, dimension):
    public, x = features(count, dimension), features(5, dimension, seed=1)
    k, lam = 6, 0.05
    whitening = PublicWhitening(public, k, lam)
    centred = (public - public.mean(0)).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / count)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    expected = (x - public.mean(0)).double() @ vectors * (values + lam * values[0]).rsqrt()
    expected = expected / expected.norm(dim=1, keepdim=True)
    ours = whitening(x).double()
    assert torch.allclose(ours.abs(), expected.abs(), atol=1e-4)  # the sign of an eigenvector is free
    assert torch.allclose(whitening.eigenvalues[:k], values, rtol=1e-5)
    assert math.isclose(whitening.effective_dimension, float((values / (values + lam * values[0])).sum()), rel_tol=1e-6)


def test_with_other_settings_is_the_same_as_anew():
    public, x = features(30, 10), features(4, 10, seed=1)
    first = PublicWhitening(public, 3, 0.1)
    other = first.with_(k=5, lam=0.01)
    assert torch.equal(other(x), PublicWhitening(public, 5, 0.01)(x))
    assert (first.k, first.lam, first.dimension) == (3, 0.1, 3)
    assert other.identity() != first.identity()
    assert first.basis.data_ptr() == other.basis.data_ptr()


def test_more_directions_than_the_rank_are_reduced_and_noted():
    whitening = PublicWhitening(features(8, 30), k=100)
    assert whitening.rank == whitening.k == whitening.dimension == 7  # centring takes one
    assert whitening.notes == ("k = 100 was reduced to 7, the rank of the public features",)
    assert "reduced to 7" in whitening.description
    copies = PublicWhitening(features(8, 30).repeat(4, 1))
    assert copies.rank == 7
    assert copies.notes == ()


def test_the_origin_is_what_the_features_were_computed_from():
    images = torch.rand(20, 3)
    source = RandomFeatures([(0, 1)] * 3, features=4)
    whitening = PublicWhitening(source(images), 2, origin=source.origin | Origin.public(images))
    chain = Chain(source, whitening)
    assert chain.origin.records == 20
    assert chain.origin.digest == Origin.public(images.flip(0)).digest
    assert PublicWhitening(source(images)).origin.records == 20


@pytest.mark.parametrize(
    ("public", "words"),
    [
        (torch.rand(1, 4), "are of 1 record"),
        (torch.ones(9, 4), "the same for every record"),
        (torch.rand(9, 4).index_fill(0, torch.tensor([6]), math.nan), "not finite in row 6"),
        (torch.rand(9), "have shape"),
    ],
)
def test_public_features_that_cannot_be_used_are_refused(public, words):
    with pytest.raises(DataError, match=words):
        PublicWhitening(public, 2)


@pytest.mark.parametrize(("k", "lam", "name"), [(0, 0.1, "k"), (2, -1.0, "lam"), (2, 0.0, "lam"), (2, math.nan, "lam")])
def test_bad_settings_are_named(k, lam, name):
    with pytest.raises(SettingError) as refused:
        PublicWhitening(features(9, 4), k, lam)
    assert refused.value.name == name


# -- distorted copies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DISTORTIONS)
def test_copies_follow_the_images_and_are_repeatable(kind):
    images = torch.rand(4, 3, 10, 12)
    first, again, other = (augmented(images, 3, kind, seed) for seed in (0, 0, 1))
    assert first.shape == (12, 3, 10, 12)
    assert torch.equal(first[:4], images)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[4:8], images)


def test_no_distortion_changes_nothing_and_a_mirror_only_mirrors():
    images = torch.rand(20, 1, 8, 8)
    assert torch.allclose(augmented(images, 2, Distortion())[20:], images, atol=1e-6)
    copies = augmented(images, 2, Distortion(mirror=True))[20:]
    same = (copies - images).abs().amax((1, 2, 3)) < 1e-5
    mirrored = (copies - images.flip(3)).abs().amax((1, 2, 3)) < 1e-5
    assert (same ^ mirrored).all()
    assert same.any()
    assert mirrored.any()


def test_what_comes_in_from_outside_is_the_darkest_value_whatever_the_scale():
    images = torch.rand(5, 1, 9, 9)
    assert torch.allclose(augmented(images * 2 - 7, 3), augmented(images, 3) * 2 - 7, atol=1e-5)


def test_unknown_kinds_are_refused():
    with pytest.raises(SettingError, match="kind = 'cats'"):
        augmented(torch.rand(2, 1, 8, 8), kind="cats")
    with pytest.raises(SettingError, match="padding"):
        Distortion(padding="zeros")
