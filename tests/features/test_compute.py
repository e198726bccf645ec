"""Computing features once: refusals, the cache on disk, and what an interruption leaves."""

from __future__ import annotations

import json
import math
import stat

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon import DataError, SettingError, features
from gnomon.data import Loader, Records
from gnomon.features import Chain, FeatureMap, HashedNgrams, Origin, Pretrained, PublicWhitening, RandomFeatures


def compute(feature_map, inputs, **settings):
    return features.compute(feature_map, inputs, **({"progress": False, "chunk": 7} | settings))


def table(count: int = 30, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed))


def random_features(seed: int = 0) -> RandomFeatures:
    return RandomFeatures([(0, 1)] * 3, features=6, seed=seed)


class Custom(FeatureMap):
    """A map by a function; counts its calls."""

    def __init__(self, function) -> None:
        super().__init__("custom", None)
        self.function, self.calls = function, 0

    def features(self, inputs):
        self.calls += 1
        return self.function(inputs)


# -- results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_features_are_those_of_the_map_in_the_order_of_the_records(workers, chunk):
    x = table()
    threads = torch.get_num_threads()
    result = compute(random_features(), x, workers=workers, chunk=chunk)
    assert torch.allclose(result, random_features()(x), atol=1e-6)
    assert torch.get_num_threads() == threads


def test_every_kind_of_input_gives_the_same_features(tmp_path):
    x = table()
    expected = compute(random_features(), x)
    np.save(tmp_path / "x.npy", x.numpy())
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    for inputs in (x.numpy(), on_disk, Records(x, torch.zeros(30)), Loader((x, torch.zeros(30)))):
        assert torch.equal(compute(random_features(), inputs), expected)
    items = [(row, 0) for row in x]
    assert torch.equal(compute(random_features(), Loader(items)), expected)


def test_texts_are_computed_and_cached(tmp_path):
    texts = ["a b", "b c", "c d e"] * 5
    first = compute(HashedNgrams(32), texts, cache=tmp_path)
    assert torch.equal(first, HashedNgrams(32)(texts))
    assert torch.equal(compute(HashedNgrams(32), texts, cache=tmp_path), first)
    assert len(list(tmp_path.glob("*.npy"))) == 1


@pytest.mark.parametrize("inputs", [[1, 2], np.array(["a"]), torch.tensor(1.0), torch.zeros(0, 3), None])
def test_inputs_that_cannot_be_read_are_refused(inputs):
    with pytest.raises(DataError, match="the inputs"):
        compute(random_features(), inputs)


# -- the cache ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0), ("float16", 1e-3)])
def test_features_come_from_the_disk_the_second_time(tmp_path, dtype, tolerance):
    x, feature_map = table(100), Custom(lambda x: F.normalize(x))
    first = compute(feature_map, x, cache=tmp_path, dtype=dtype)
    after_first = feature_map.calls
    second = compute(feature_map, x, cache=tmp_path, dtype=dtype)
    checks = feature_map.calls - after_first
    assert checks < after_first - 10  # the checks on a sample, but none of the 15 chunks
    assert torch.equal(first, second)
    assert str(first.dtype) == f"torch.{dtype}"
    assert (first.float() - F.normalize(x)).abs().max() <= tolerance
    path = next(tmp_path.glob("*.npy"))
    assert np.load(path, allow_pickle=False).shape == (100, 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # features of private records are private


def test_other_records_settings_or_buffers_have_files_of_their_own(tmp_path):
    x = table()
    for feature_map, inputs in (
        (random_features(), x),
        (random_features(seed=1), x),
        (RandomFeatures([(0, 2)] * 3, features=6), x),
        (random_features(), x.flip(0)),
    ):
        assert torch.allclose(compute(feature_map, inputs, cache=tmp_path), feature_map(inputs), atol=1e-6)
    assert len(list(tmp_path.glob("*.npy"))) == 4


def test_a_change_of_the_result_does_not_reach_the_file(tmp_path):
    first = compute(random_features(), table(), cache=tmp_path)
    copy = first.clone()
    first.zero_()
    assert torch.equal(compute(random_features(), table(), cache=tmp_path), copy)


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a flipped bit": flip_a_byte,
    "a truncated file": lambda path: path.write_bytes(path.read_bytes()[:-50]),
    "an empty file": lambda path: path.write_bytes(b""),
    "a damaged header": lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]),
    "a file of other features": lambda path: np.save(path, np.zeros((3, 4), np.float32)),
    "a pickle": lambda path: np.save(path, np.array([{}], dtype=object)),
    "a damaged note": lambda path: path.with_suffix(".json").write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_noticed_and_computed_again(tmp_path, damage):
    first = compute(random_features(), table(), cache=tmp_path).clone()
    DAMAGE[damage](next(tmp_path.glob("*.npy")))
    with pytest.warns(UserWarning, match="computed again"):
        second = compute(random_features(), table(), cache=tmp_path)
    assert torch.equal(first, second)
    assert torch.equal(compute(random_features(), table(), cache=tmp_path), first)  # without a warning


def test_a_map_whose_code_changed_does_not_get_the_old_features(tmp_path):
    compute(Custom(lambda x: x + 1), table(), cache=tmp_path)
    with pytest.warns(UserWarning, match="does not hold the features of these records"):
        result = compute(Custom(lambda x: x + 2), table(), cache=tmp_path)
    assert torch.equal(result, table() + 2)


def test_an_interrupted_computation_leaves_nothing_that_is_trusted(tmp_path):
    x = table(100)
    fails = Custom(lambda x: x)

    def interrupted(inputs):
        if fails.calls > 30:
            raise KeyboardInterrupt
        return inputs

    fails.function = interrupted
    with pytest.raises(KeyboardInterrupt):
        compute(fails, x, cache=tmp_path, chunk=2, workers=1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_its_note_is_not_trusted(tmp_path):
    first = compute(random_features(), table(), cache=tmp_path).clone()
    path = next(tmp_path.glob("*.npy"))
    note = json.loads(path.with_suffix(".json").read_text())
    assert note["shape"] == [30, 12]
    path.with_suffix(".json").unlink()
    flip_a_byte(path)
    assert torch.equal(compute(random_features(), table(), cache=tmp_path), first)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/cache cannot store .* of features"):
        compute(random_features(), table(), cache=tmp_path / "file" / "cache")


# -- refusals -----------------------------------------------------------------------------------------


class Counter(nn.Module):
    """A network that remembers how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + 0 * self.calls


BAD_MAPS = {
    "centres by the batch": (lambda x: x - x.mean(0), "alone and in a batch"),
    "normalises by the batch": (lambda x: F.batch_norm(x, None, None, training=True) if len(x) > 1 else x, "alone"),
    "sorts the batch": (lambda x: x.sort(0).values, "alone and in a batch"),
    "cumulates over the batch": (lambda x: x.cumsum(0), "alone and in a batch"),
    "drops out": (lambda x: F.dropout(x, 0.5, training=True), "without randomness"),
    "adds noise": (lambda x: x + torch.randn_like(x), "without randomness"),
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_a_map_that_does_not_treat_each_record_by_itself_and_always_alike_is_refused(name):
    function, words = BAD_MAPS[name]
    with pytest.raises(SettingError, match=words):
        compute(Custom(function), table())


def test_a_map_that_changes_its_own_buffers_is_refused():
    with pytest.raises(SettingError, match="no call changes"):
        compute(Pretrained(Counter(), name="counter"), table())


def test_batch_normalisation_is_allowed_with_stored_statistics_and_refused_in_training_mode():
    network = Pretrained(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()), name="network")
    compute(network, table())
    network.module[0].train()
    with pytest.raises(SettingError, match=r"module\.0 is in training mode"):
        compute(network, table())


def test_what_is_not_a_map_is_refused():
    with pytest.raises(SettingError, match="Pretrained"):
        compute(nn.Linear(3, 2), table())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_record_whose_features_are_not_finite_is_named(bad, workers, tmp_path):
    x = table()
    x[17, 0] = x[23, 0] = -1
    feature_map = Custom(lambda x: torch.where(x < 0, bad, x))
    with pytest.raises(DataError, match="record 17 has features that are not finite under custom"):
        compute(feature_map, x, cache=tmp_path, workers=workers)
    assert list(tmp_path.iterdir()) == []
    x[17] = math.nan
    with pytest.raises(DataError, match="record 17 has inputs that are not finite"):
        compute(random_features(), x)


def test_features_too_large_for_float16_are_refused():
    with pytest.raises(SettingError, match="'float32', because a feature is larger"):
        compute(Custom(lambda x: x * 1e6), table(), dtype="float16")


@pytest.mark.parametrize("settings", [{"dtype": "float64"}, {"chunk": 0}, {"workers": 0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        compute(random_features(), table(), **settings)


def test_a_map_whose_public_records_are_among_the_private_ones_is_refused():
    public, private = table(20, seed=1), table(30)
    source = random_features()
    whitening = PublicWhitening(source(public), 3, origin=Origin.public(public))
    chain = Chain(source, whitening)
    assert compute(chain, private).shape == (30, 3)
    mixed = torch.cat([private, public[4:6].double()])
    with pytest.raises(DataError, match="2 of 20 public records"):
        compute(chain, mixed)
    with pytest.raises(DataError, match="2 of 20 public records"):
        features.check_private(chain, Records(mixed, torch.zeros(32)))
    assert compute(chain, public, private=False).shape == (20, 3)


def test_public_bytes_are_found_among_private_floats():
    images = torch.randint(0, 256, (9, 1, 12, 12), dtype=torch.uint8)
    patches = features.WhitenedPatches(images, filters=5, size=4)
    with pytest.raises(DataError, match="1 of 9 public records"):
        compute(patches, images[2:3].float() / 255)
