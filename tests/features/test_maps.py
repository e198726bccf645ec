"""The feature maps: what they compute, and what they refuse."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon import DataError, SettingError
from gnomon.features import (
    Chain,
    GridWhitening,
    HashedNgrams,
    Origin,
    Pretrained,
    PublicWhitening,
    RandomFeatures,
    Scattering,
    WhitenedPatches,
    check_per_record,
    compose,
)
from gnomon.features.patches import CONTRAST, _filters, _pooling


def images(count: int = 6, shape: tuple[int, ...] = (1, 12, 12), seed: int = 0) -> Tensor:
    """Return smooth random images in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, shape[0], 5, 5, generator=generator)
    noise = torch.rand(count, *shape, generator=generator)
    return 0.7 * F.interpolate(coarse, size=shape[1:], mode="bilinear") + 0.3 * noise


def every_map() -> dict[str, tuple[nn.Module, object]]:
    """Return each map with inputs that it takes."""
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Dropout(), nn.Flatten())
    return {
        "scattering": (Scattering((1, 12, 12)), images()),
        "colour scattering": (Scattering((3, 12, 12), L=4), images(shape=(3, 12, 12))),
        "patches": (WhitenedPatches(images(9, seed=1), filters=20, size=5), images()),
        "patches without mirror": (WhitenedPatches(images(9, seed=1), filters=20, mirror=False), images()),
        "random features": (RandomFeatures([(0, 1)] * 3, features=7, inputs=True), torch.rand(6, 3)),
        "n-grams": (HashedNgrams(64), ["a b", "b a c", "", "c c c", "d", "a b c d e"]),
        "tokens": (HashedNgrams(64, padding=0), torch.randint(0, 9, (6, 5))),
        "network": (Pretrained(network, name="network"), images()),
    }


MAPS = every_map()


@pytest.mark.parametrize("name", MAPS)
def test_every_map_returns_rows_of_norm_one_and_looks_at_one_record_at_a_time(name):
    feature_map, inputs = MAPS[name]
    features = check_per_record(feature_map, inputs)
    assert features.dtype == torch.float32
    assert features.shape == (6, feature_map.dimension)
    norms = features.norm(dim=1)
    nonzero = norms > 0
    assert torch.allclose(norms[nonzero], torch.ones(int(nonzero.sum())), atol=1e-5)
    assert nonzero.sum() >= 5  # an empty text has no n-grams
    assert not any(parameter.requires_grad for parameter in feature_map.parameters())


@pytest.mark.parametrize("name", MAPS)
def test_every_map_stays_in_evaluation_mode_and_describes_itself_in_one_sentence(name):
    feature_map, inputs = MAPS[name]
    before = feature_map(inputs)
    feature_map.train()
    assert not any(module.training for module in feature_map.modules())
    assert torch.equal(feature_map(inputs), before)
    assert feature_map.description.startswith("Feature map: ")
    assert feature_map.description.endswith(").")


@pytest.mark.parametrize("name", [name for name in MAPS if "gram" not in name])
def test_every_map_of_numbers_takes_a_batch_of_no_records(name):
    feature_map, inputs = MAPS[name]
    dimension = feature_map(inputs).shape[1]
    assert feature_map(inputs[:0]).shape == (0, dimension)


# -- scattering ---------------------------------------------------------------------------------------


def plain_scattering(image: np.ndarray, scattering: Scattering) -> np.ndarray:
    """Return the coefficients of one grey image by full-size FFTs, with subsampling in space."""
    from gnomon.features.scattering import _gabor, _wavelet

    J, L = scattering.J, scattering.L
    left, right, top, bottom = scattering.margins
    padded = np.pad(image, ((top, bottom), (left, right)), mode="reflect")
    low = np.fft.fft2(_gabor(padded.shape, 0.8 * 2 ** (J - 1), 0, 0, 1)).real
    waves = [(j, _wavelet(padded.shape, j, angle, L)) for j in range(J) for angle in range(L)]
    filtered = lambda signal, transfer: np.fft.ifft2(np.fft.fft2(signal) * transfer)
    average = lambda signal: filtered(signal, low).real[:: 2**J, :: 2**J][1:-1, 1:-1]
    first = [(j, np.abs(filtered(padded, wave))) for j, wave in waves]
    second = [np.abs(filtered(u, wave)) for j, u in first for k, wave in waves if k > j]
    return np.stack([average(padded), *(average(u) for _, u in first), *map(average, second)])


def test_scattering_is_the_cascade_of_wavelets_moduli_and_averages():
    scattering = Scattering((1, 20, 24))
    image = images(1, (1, 20, 24))
    ours = scattering.coefficients(image)[0].numpy()
    plain = plain_scattering(image[0, 0].double().numpy(), scattering)
    assert ours.shape == plain.shape == (81, 5, 6)
    # Subsampling before the average drops the highest frequencies, so the two agree closely but not to the bit.
    assert np.abs(ours - plain).max() < 0.01 * np.abs(plain).max()
    assert np.abs(ours[0] - plain[0]).max() < 1e-5  # nothing is subsampled before the average of the image


def test_scattering_has_the_shapes_and_groups_of_the_literature():
    grey, colour = Scattering((1, 28, 28)), Scattering((3, 32, 32))
    assert (grey.dimension, grey.groups) == (81 * 7 * 7, 27)
    assert (colour.dimension, colour.groups) == (3 * 81 * 8 * 8, 81)
    assert grey.origin.kind == "none"


def test_scattering_of_a_colour_image_is_that_of_its_channels():
    x = images(2, (3, 16, 16))
    whole, single = Scattering((3, 16, 16)), Scattering((1, 16, 16))
    parts = torch.cat([single.coefficients(x[:, c : c + 1]) for c in range(3)], 1)
    assert torch.allclose(whole.coefficients(x), parts, atol=1e-6)


def test_scattering_by_fft_and_by_matrices_is_the_same(monkeypatch):
    x = images(2, (1, 28, 28))
    by_matrices = Scattering((1, 28, 28)).coefficients(x)
    monkeypatch.setattr("gnomon.features.scattering.MATRIX_SIDE", 0)
    monkeypatch.setattr("gnomon.features.scattering.DENSE_ENTRIES", 0)
    assert torch.allclose(Scattering((1, 28, 28)).coefficients(x), by_matrices, atol=1e-5)


def test_wavelets_do_not_see_a_constant():
    flat = Scattering((1, 12, 12)).coefficients(torch.full((1, 1, 12, 12), 0.5))
    assert flat[0, 0].sub(0.5).abs().max() < 1e-3
    assert flat[0, 1:].abs().max() < 1e-5


def test_bytes_count_as_their_values_over_255():
    x = torch.randint(0, 256, (3, 1, 12, 12), dtype=torch.uint8)
    scattering = Scattering((1, 12, 12))
    assert torch.equal(scattering(x), scattering(x.float() / 255))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"shape": (1, 4, 4)}, "shape"),
        ({"shape": (28, 28)}, "shape"),
        ({"shape": (1, 12, 12), "J": 0}, "J"),
        ({"shape": (1, 12, 12), "normalise": "batch"}, "normalise"),
    ],
)
def test_bad_settings_of_scattering_are_named(settings, named):
    with pytest.raises(SettingError) as refused:
        Scattering(**settings)
    assert refused.value.name == named


def test_images_of_another_size_are_refused():
    with pytest.raises(DataError, match=r"has shape \(2, 1, 9, 9\).*1x12x12"):
        Scattering((1, 12, 12))(torch.zeros(2, 1, 9, 9))


# -- patches ------------------------------------------------------------------------------------------


def plain_patches(x: Tensor, patches: WhitenedPatches, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the pooled responses of images and no mirror images, (B, cells, 2 filters), by convolutions in float64."""
    channels, size, stride = x.shape[1], patches.size, patches.stride
    kernel = weight.reshape(len(weight), channels, size, size).double()
    box = torch.full((1, channels, size, size), 1 / (channels * size * size), dtype=torch.float64)
    x = x.double()
    mean, square = F.conv2d(x, box, stride=stride), F.conv2d(x * x, box, stride=stride)
    deviation = (square - mean**2 + patches.contrast).sqrt()
    response = (F.conv2d(x, kernel, stride=stride) - kernel.sum((1, 2, 3))[:, None, None] * mean) / deviation
    response = F.softshrink(response - bias.double()[:, None, None], patches.threshold)
    parts = torch.cat([response.clamp(min=0), (-response).clamp(min=0)], 1).flatten(2)  # (B, 2 filters, positions)
    return (parts @ patches.cells.double().T).transpose(1, 2)


@pytest.mark.parametrize("size", [4, 5])  # with 4, the patches of the mirrored image lie elsewhere
@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_patches_are_convolutions_of_normalised_patches_averaged_over_the_mirror_image(size, mirror, stride):
    public, x = images(12, (3, 13, 13), seed=2), images(3, (3, 13, 13))
    patches = WhitenedPatches(public, filters=15, size=size, stride=stride, threshold=0.5, mirror=mirror)
    variance = float(public.double().var())
    weight, bias = _filters(public, 15, size, CONTRAST * variance, 0.016 * variance, mirror, 0)
    expected = plain_patches(x, patches, weight, bias)
    if mirror:
        expected = (expected + plain_patches(x.flip(3), patches, weight, bias)) / 2
    expected = F.normalize(F.normalize(expected.sqrt(), dim=2).flatten(1)).float()
    assert (patches(x) - expected).abs().max() < 2e-3  # the root of a rounding error is larger than the error
    if mirror:
        assert (patches(x) - patches(x.flip(3))).abs().max() < 2e-3


def test_cells_without_overlap_are_means_and_with_overlap_share_the_positions_between_them():
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64)
    apart = _pooling(6, 6, 3, overlap=0).double()
    assert torch.allclose(x.flatten(1) @ apart.T, F.adaptive_avg_pool2d(x, 3).flatten(1))
    shared = _pooling(4, 8, 2, overlap=0.5).double().reshape(2, 2, 4, 8)
    along = torch.tensor([0.625, 0.875, 0.875, 0.625, 0.375, 0.125, 0, 0], dtype=torch.float64)
    assert torch.allclose(shared[0, 0].sum(0), along / along.sum())
    assert torch.allclose(shared, shared.flip(0, 2))
    assert torch.allclose(shared, shared.flip(1, 3))


def test_the_scale_of_the_pixels_does_not_matter_to_patches():
    public, x = images(12, seed=2), images(3)
    first = WhitenedPatches(public, filters=15, size=4)(x)
    second = WhitenedPatches(public * 40 - 7, filters=15, size=4)(x * 40 - 7)
    assert (first - second).abs().max() < 5e-3


def test_patches_declare_their_public_images_and_depend_on_the_seed():
    public = images(12, seed=2)
    first, again, other = (WhitenedPatches(public, filters=10, size=4, seed=seed) for seed in (0, 0, 1))
    assert first.origin == Origin.public(public)
    assert first.origin.records == 12
    assert "12 public records" in first.description
    assert first.identity() == again.identity() != other.identity()


@pytest.mark.parametrize(
    ("public", "words"),
    [
        (torch.rand(1, 1, 12, 12), "1 image: give at least 2"),
        (torch.full((9, 1, 12, 12), 0.5), "constant"),
        (torch.rand(1, 1, 1, 1).expand(9, 1, 12, 12) * torch.ones(9, 1, 12, 12), "constant"),
        ([torch.rand(1, 12, 12), torch.rand(1, 13, 13)], "2 sizes"),
        (torch.rand(9, 1, 12, 12).index_fill(0, torch.tensor([4]), math.nan), "public image 4 has pixels"),
        (torch.rand(9, 12), r"shape \(9, 12\)"),
        ("photos", "are a str"),
    ],
)
def test_public_images_that_cannot_be_used_are_refused(public, words):
    with pytest.raises(DataError, match=words):
        WhitenedPatches(public, filters=10)


def test_fewer_patches_than_filters_are_noted():
    patches = WhitenedPatches(images(2, (1, 8, 8)), filters=500, size=4)
    assert patches.filters < 500
    assert patches.notes == (f"filters = 500 was reduced to {patches.filters}",)


# -- whitening on a grid ------------------------------------------------------------------------------


def grid_features(count: int, seed: int) -> Tensor:
    """Return normal features of 4 cells x 6 channels with one covariance of the channels and one of the cells."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 4, 6, generator=generator, dtype=torch.float64)
    channels = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cells = torch.eye(4, dtype=torch.float64) + 0.5
    return (cells @ rows @ channels).flatten(1).float() + 2


def test_whitening_on_a_grid_is_the_whitening_by_the_covariance_if_that_is_a_product():
    public, x = grid_features(200_000, seed=2), grid_features(9, seed=3)
    grid, plain = GridWhitening(public, cells=4, lam=0.1), PublicWhitening(public, lam=0.1)
    assert torch.allclose(grid.eigenvalues, plain.eigenvalues, rtol=0.03)
    assert (grid(x) @ grid(x).T - plain(x) @ plain(x).T).abs().max() < 0.03  # the directions are free up to a rotation


def test_whitening_on_a_grid_uses_more_directions_than_public_records():
    public, x = grid_features(12, seed=2), grid_features(5, seed=3)
    grid = GridWhitening(public, cells=4)
    assert grid.rank == grid.k == 24
    few = grid.with_(k=7, lam=0.02)
    assert torch.equal(few(x), GridWhitening(public, cells=4, k=7, lam=0.02)(x))
    assert few.dimension == 7
    coordinates = (x - public.mean(0)).reshape(5, 4, 6) @ grid.basis
    coordinates = (grid.across.T @ coordinates).flatten(1)[:, grid.order[:7]]
    expected = F.normalize(coordinates * (grid.eigenvalues[:7] + 0.02 * grid.eigenvalues[0]).rsqrt().float())
    assert torch.allclose(few(x), expected, atol=1e-5)
    assert few.name == "whitening by 7 public directions, lam = 0.02, the same in each of 4 cells"
    assert few.identity() != grid.identity()


def test_whitening_on_a_grid_names_what_it_cannot_use():
    with pytest.raises(SettingError, match="cells = 5 is invalid; expected a divisor of 24"):
        GridWhitening(grid_features(9, seed=2), cells=5)
    with pytest.raises(DataError, match="the same for every record"):
        GridWhitening(torch.ones(9, 24), cells=4)
    with pytest.raises(DataError, match=r"takes \(B, 24\)"):
        GridWhitening(grid_features(9, seed=2), cells=4)(torch.ones(2, 23))


# -- tables, texts and networks -----------------------------------------------------------------------


def test_random_features_approximate_the_gaussian_kernel():
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)) * 10
    features = RandomFeatures([(0, 10)] * 3, features=20_000, scale=1.5)(x)
    kernel = torch.exp(-(torch.cdist(x / 5, x / 5) ** 2) / (2 * 1.5**2))
    assert (features @ features.T - kernel).abs().max() < 0.03


def test_values_outside_the_declared_range_are_clamped():
    ranges = RandomFeatures([(0, 1), (-5, 5)], features=4, inputs=True)
    assert torch.equal(ranges(torch.tensor([[2.0, -1e30]])), ranges(torch.tensor([[1.0, -5.0]])))


@pytest.mark.parametrize("ranges", [[], [(1, 1)], [(2, 1)], [(0, math.inf)], [(0, 1, 2)], [5]])
def test_ranges_that_are_not_ranges_are_refused(ranges):
    with pytest.raises(SettingError, match="ranges"):
        RandomFeatures(ranges)


def test_hashed_ngrams_are_the_same_on_every_machine():
    features = HashedNgrams(16, n=(1, 1))(["cat"])
    code = zlib.crc32(b"cat")
    assert int((features != 0).sum()) == 1
    assert int(features.abs().argmax(1)) == (code & 0x7FFFFFFF) % 16
    assert float(features.sum()) == (-1.0 if code >> 31 else 1.0)


def test_ngrams_know_the_order_of_words_and_ignore_padding():
    ngrams = HashedNgrams(4096, n=(2, 2), padding=0)
    first, second = ngrams(["dog bites man", "man bites dog"])
    assert float(first @ second) == 0.0
    tokens = ngrams(torch.tensor([[3, 4, 0, 0], [3, 4, 5, 0]]))
    assert torch.equal(tokens[0], ngrams(torch.tensor([[3, 4]]))[0])
    assert not torch.equal(tokens[0], tokens[1])


@pytest.mark.parametrize("batch", [torch.zeros(2, 3), [1, 2], [b"bytes"]])
def test_what_is_not_text_is_refused(batch):
    with pytest.raises(DataError):
        HashedNgrams(16)(batch)


def test_a_network_is_copied_frozen_and_read_at_the_layer():
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 2)).train()
    x = torch.randn(3, 4)
    features = Pretrained(network, name="net", layer="1", shape=(4,))
    assert torch.allclose(features(x), F.normalize(torch.relu(network[0](x))), atol=1e-6)
    assert network.training
    assert network[0].weight.requires_grad
    with torch.no_grad():
        network[0].weight.zero_()
    assert features(x).abs().sum() > 0
    assert not features.module[1]._forward_hooks
    assert features.origin.constants == ("trained on public data, as declared by the user",)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"layer": "9"}, "layer"), ({"name": ""}, "name"), ({"module": print}, "module")],
)
def test_bad_settings_of_a_network_are_named(settings, named):
    with pytest.raises(SettingError) as refused:
        Pretrained(**({"module": nn.Linear(2, 2), "name": "net"} | settings))
    assert refused.value.name == named


def test_a_network_with_weights_that_are_not_finite_is_refused():
    network = nn.Linear(2, 2)
    nn.init.constant_(network.weight, math.nan)
    with pytest.raises(SettingError, match=r"module\.weight"):
        Pretrained(network, name="net")


# -- chains -------------------------------------------------------------------------------------------


def test_a_chain_applies_its_maps_in_order_and_unites_their_origins():
    public, x = images(9, seed=1), images()
    patches = WhitenedPatches(public, filters=5, size=4)
    network = Pretrained(nn.Linear(patches.dimension, 3), name="head", trained_on="web pages")
    chain = compose(patches, network)
    assert torch.equal(chain(x), network(patches(x)))
    assert chain.origin.fingerprints == patches.origin.fingerprints
    assert chain.origin.constants == network.origin.constants
    assert chain.name == f"{patches.name}, then {network.name}"
    assert not any(module.training for module in chain.train().modules())


def test_maps_that_do_not_fit_are_refused():
    with pytest.raises(SettingError, match="a second map of 8 inputs"):
        Chain(RandomFeatures([(0, 1)], features=4), RandomFeatures([(0, 1)] * 3))
    with pytest.raises(SettingError, match="Pretrained"):
        Chain(nn.Linear(2, 2))
