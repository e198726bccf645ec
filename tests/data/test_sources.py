"""Every source reads its official format, scales with public constants, and explains what is wrong."""

import gzip
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from gnomon.data import NAMES, DataError, Records, load
from gnomon.data.sources import arrays, files
from gnomon.data.sources.compas import USED
from gnomon.data.sources.shakespeare import ALPHABET
from gnomon.errors import SettingError

ADULT_LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K"
)


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, packed, train=5, test=3):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    written = {}
    for part, count in (("train", train), ("t10k", test)):
        images, labels = rng.integers(0, 256, (count, 28, 28)), rng.integers(0, 10, count)
        written[part] = images, labels
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    return written


def write_cifar(folder, count=2):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (6, count, 3073), dtype=np.uint8)
    rows[:, :, 0] %= 10
    for name, part in zip([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"], rows, strict=True):
        (folder / f"{name}.bin").write_bytes(part.tobytes())
    return rows


def write_adult(folder, train=ADULT_LINE + "\n\n", test="|1x3 Cross validator\n" + ADULT_LINE + ".\n"):
    folder.mkdir(parents=True)
    (folder / "adult.data").write_text(train)
    (folder / "adult.test.gz").write_bytes(gzip.compress(test.encode()))


def compas_row(**changes):
    usual = {
        "age": 69,
        "sex": "Male",
        "race": "Other",
        "c_charge_degree": "F",
        "score_text": "Low",
        **changes,
    }
    return ",".join(str(usual.get(name, 0)) for name in USED)


def write_compas(folder, rows):
    (folder / "compas_two_years.csv").write_text("\n".join([",".join(USED), *rows]) + "\n")


# Records


def test_records_are_a_map_style_data_set():
    records = Records(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2]))
    x, y = records[1]
    assert x.tolist() == [2.0, 3.0]
    assert int(y) == 1
    batches = list(torch.utils.data.DataLoader(records, batch_size=2))
    assert [len(inputs) for inputs, _ in batches] == [2, 1]
    assert len(list(records)) == 3


@pytest.mark.parametrize(
    ("index", "targets"),
    [
        (slice(1, None), [1, 2]),
        (torch.tensor([2, 0]), [2, 0]),
        (torch.tensor([True, False, True]), [0, 2]),
        ([2], [2]),
        ([], []),
        (torch.tensor(1), [1]),
        (np.array([0, 1]), [0, 1]),
    ],
)
def test_many_positions_give_records_again(index, targets):
    part = Records(torch.arange(3.0).reshape(3, 1), torch.tensor([0, 1, 2]))[index]
    assert isinstance(part, Records)
    assert part.targets.tolist() == targets
    assert part.inputs.shape == (len(targets), 1)


def test_records_need_one_target_for_each_input():
    with pytest.raises(DataError, match=r"3 inputs and 2 targets: give one target for each input"):
        Records(torch.zeros(3, 1), torch.zeros(2))


def test_records_keep_their_groups_and_need_one_for_each():
    records = Records(torch.arange(3.0).reshape(3, 1), torch.tensor([0, 1, 2]), np.array(["a", "b", "a"]))
    for index in (slice(1, None), torch.tensor([1, 2]), torch.tensor([False, True, True]), [1, 2], np.array([1, 2])):
        assert records[index].groups.tolist() == ["b", "a"]
    assert records[[]].groups.tolist() == []
    with pytest.raises(DataError, match=r"groups.*one group for each of 2 records"):
        Records(torch.zeros(2, 1), torch.zeros(2), np.array(["a"]))


# names and folders


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(SettingError, match=r"data = 'imagenet'.*digits.*npz:PATH"):
        load("imagenet")


def test_the_folder_is_the_argument_then_the_environment_then_data(tmp_path, monkeypatch):
    for place in ("argument", "environment", "here/data"):
        write_adult(tmp_path / place / "adult", train="\n".join([ADULT_LINE] * len(place)))
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path / "environment"))
    assert len(load("adult", tmp_path / "argument").train) == len("argument")
    assert len(load("adult").train) == len("environment")
    monkeypatch.delenv("GNOMON_DATA")
    assert len(load("adult").train) == len("here/data")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_a_missing_file_is_named_with_the_ways_to_give_it(name, tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path}.*is missing.*data_dir.*GNOMON_DATA"):
        load(name, tmp_path)


def test_loading_leaves_the_global_random_state_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = load("digits")
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.train.inputs, load("digits").train.inputs)


# digits


def test_digits_need_no_files_and_lie_between_zero_and_one():
    source = load("digits")
    assert (len(source.train), len(source.test)) == (1437, 360)
    assert source.train.inputs.dtype == torch.float32
    assert source.train.targets.dtype == torch.int64
    assert float(source.train.inputs.min()) == 0.0
    assert float(source.train.inputs.max()) == 1.0
    assert source.train.targets.unique().tolist() == list(range(10))


# MNIST


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_idx_files_are_read_packed_or_not_and_standardised(name, mean, std, packed, tmp_path):
    images, labels = write_mnist(tmp_path / name, packed)["train"]
    source = load(name, tmp_path)
    assert source.train.inputs.shape == (5, 1, 28, 28)
    assert len(source.test) == 3
    expected = torch.from_numpy((images / 255 - mean) / std).float().unsqueeze(1)
    torch.testing.assert_close(source.train.inputs, expected)
    assert source.train.targets.tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("train-images-idx3-ubyte.gz", lambda b: b[:-9], "truncated or damaged"),
        ("train-images-idx3-ubyte.gz", lambda b: b"no gzip", "truncated or damaged"),
        (
            "t10k-images-idx3-ubyte.gz",
            lambda b: gzip.compress(gzip.decompress(b)[:-1]),
            "bytes of data where",
        ),
        ("t10k-images-idx3-ubyte.gz", lambda b: gzip.compress(b""), "is truncated: 0 bytes"),
        (
            "train-labels-idx1-ubyte.gz",
            lambda b: gzip.compress(idx_bytes(np.zeros((5, 1)))),
            "magic number 2050",
        ),
        ("train-labels-idx1-ubyte.gz", lambda b: gzip.compress(idx_bytes(np.zeros(4))), "4 labels for the 5"),
        ("train-labels-idx1-ubyte.gz", lambda b: gzip.compress(idx_bytes(np.full(5, 10))), "the label 10"),
        ("train-images-idx3-ubyte.gz", lambda b: gzip.compress(idx_bytes(np.zeros((5, 8, 8)))), r"\(8, 8\)"),
    ],
)
def test_a_bad_idx_file_is_named_with_its_fault(file, change, message, tmp_path):
    write_mnist(tmp_path / "mnist", packed=True)
    path = tmp_path / "mnist" / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", tmp_path)
    assert file in str(caught.value)


# CIFAR-10


def test_cifar_records_keep_their_colours_labels_and_order(tmp_path):
    rows = write_cifar(tmp_path / "cifar-10-batches-bin")
    source = load("cifar10", tmp_path)
    assert source.train.inputs.shape == (10, 3, 32, 32)
    assert source.train.targets.tolist() == rows[:5, :, 0].ravel().tolist()
    blue = (float(rows[1, 0, 1 + 2 * 1024]) - 113.86538318) / 66.70489964  # record 3, its first blue pixel
    assert float(source.train.inputs[2, 2, 0, 0]) == pytest.approx(blue, abs=1e-6)
    assert len(source.test) == 2


def test_a_truncated_cifar_batch_is_named(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3.bin has 6145 bytes, not a multiple of 3073"):
        load("cifar10", tmp_path)


def test_packed_cifar_points_to_the_script_that_unpacks_it(tmp_path):
    for name in ("cifar10_train.npz", "unpack.py"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"run `python .*unpack.py DEST` and point data_dir \(--data-dir\) at DEST"):
        load("cifar10", tmp_path)


# Adult


def test_adult_scales_with_constants_and_one_hot_columns(tmp_path):
    write_adult(tmp_path / "adult")
    source = load("adult", tmp_path)
    assert source.input_shape == (104,)
    numbers = source.train.inputs[0, :5]
    gain = float(np.log1p(2174) / np.log1p(99_999))
    torch.testing.assert_close(numbers, torch.tensor([0.39, 13 / 16, 0.40, gain, 0.0]))
    assert float(source.train.inputs[0, 5:].sum()) == 8  # one value for each categorical column
    assert torch.equal(source.train.inputs, source.test.inputs)


@pytest.mark.parametrize("value", ["?", "Freelance"])
def test_adult_unknown_values_are_all_zeros(value, tmp_path):
    write_adult(tmp_path / "adult", train=ADULT_LINE.replace("State-gov", value))
    assert float(load("adult", tmp_path).train.inputs[0, 5:13].sum()) == 0


def test_adult_features_of_one_record_do_not_depend_on_the_others(tmp_path):
    write_adult(tmp_path / "a" / "adult")
    write_adult(tmp_path / "b" / "adult", train=ADULT_LINE + "\n" + ADULT_LINE.replace("39,", "90,", 1))
    alone, together = load("adult", tmp_path / "a"), load("adult", tmp_path / "b")
    assert torch.equal(alone.train.inputs[0], together.train.inputs[0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (ADULT_LINE[:40], r"columns in line 2, not 15"),
        (ADULT_LINE.replace("<=50K", "nan"), r"label 'nan' in line 2"),
        (ADULT_LINE.replace("39,", "old,", 1), r"age = 'old' in record 2"),
    ],
)
def test_a_bad_adult_line_is_named(line, message, tmp_path):
    write_adult(tmp_path / "adult", train=ADULT_LINE + "\n" + line)
    with pytest.raises(DataError, match=rf"adult.data has .*{message}"):
        load("adult", tmp_path)


# COMPAS


def test_compas_keeps_the_rows_that_pass_the_filter(tmp_path):
    kept = [compas_row(days_b_screening_arrest=days) for days in (-30, 0, 30)]
    left_out = [
        compas_row(days_b_screening_arrest=31),
        compas_row(days_b_screening_arrest=""),
        compas_row(is_recid=-1),
        compas_row(score_text="N/A"),
        compas_row(c_charge_degree="O"),
    ]
    write_compas(tmp_path, [*kept, *left_out, *kept[:2]])
    source = load("compas", tmp_path)
    assert (len(source.train), len(source.test)) == (4, 1)
    assert source.input_shape == (15,)


def test_compas_scales_with_constants(tmp_path):
    write_compas(tmp_path, [compas_row(priors_count=10, juv_fel_count=2, two_year_recid=1)])
    record = load("compas", tmp_path).train
    torch.testing.assert_close(record.inputs[0, :5], torch.tensor([0.69, 0.1, 0.0, 0.0, 0.25]))
    assert record.inputs[0, 5:].tolist() == [0, 1, 0, 0, 0, 0, 0, 1, 1, 0]
    assert record.targets.tolist() == [1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (compas_row(two_year_recid="nan"), "NaN labels"),
        (compas_row(two_year_recid=2), "the label 2"),
        (compas_row(days_b_screening_arrest="soon"), "days_b_screening_arrest = 'soon' in row 2"),
        (compas_row()[:-2], "11 columns in row 2, not 12"),
    ],
)
def test_a_bad_compas_row_is_named(row, message, tmp_path):
    write_compas(tmp_path, [row])
    with pytest.raises(DataError, match=message):
        load("compas", tmp_path)


def test_compas_without_its_columns_says_which(tmp_path):
    (tmp_path / "compas_two_years.csv").write_text("age,sex\n")
    with pytest.raises(DataError, match=r"has no column juv_fel_count"):
        load("compas", tmp_path)


# Tiny Shakespeare

PLAY = """First Citizen:
Before we proceed any further, hear me speak.

All:
Speak, speak.

TITUS:


First Citizen:
You are all resolved rather to die than to famish?
"""


@pytest.mark.parametrize("packed", [False, True])
def test_speeches_are_cut_into_pieces_that_share_no_character(packed, tmp_path):
    path = tmp_path / f"tinyshakespeare.txt{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(PLAY.encode()) if packed else PLAY.encode())
    source = load("shakespeare", tmp_path)
    pieces = {
        "".join(ALPHABET[int(place)] for place in (*record, target))
        for part in (source.train, source.test)
        for record, target in zip(part.inputs, part.targets, strict=True)
    }
    assert pieces == {
        "Before we proceed any", " further, hear me spe", "You are all resolved ", "rather to die than to",
    }  # fmt: skip
    assert set(source.train.groups) == {"First Citizen"}
    assert (source.classes, source.input_shape) == (65, (20,))


@pytest.mark.parametrize(
    ("play", "message"),
    [
        ("Before we proceed any further, hear me speak.", "no line with a speaker at the head of speech 1"),
        (PLAY + "\nAll:\nResolved. Resolved. \u2014", "the character '\u2014' in speech 5"),
        ("All:\nSpeak, speak.", "no speech of 21 characters"),
        ("", "no line with a speaker"),
    ],
)
def test_a_text_that_is_no_such_play_is_named(play, message, tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_text(play, encoding="utf-8")
    with pytest.raises(DataError, match=rf"tinyshakespeare.txt has .*{message}"):
        load("shakespeare", tmp_path)


# a user's own arrays


@pytest.mark.parametrize("names", [("inputs", "targets"), ("x_train", "y_train")])
def test_own_arrays_may_say_whose_each_record_is(names, tmp_path):
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    test = {} if names[0] == "inputs" else {"x_test": x, "y_test": y}
    np.savez(tmp_path / "own.npz", **dict(zip(names, (x, y), strict=True)), **test, groups=x[:, 0])
    train = load(str(tmp_path / "own.npz")).train
    assert train.groups.tolist() == train.inputs[:, 0].tolist()
    np.savez(tmp_path / "own.npz", **dict(zip(names, (x, y), strict=True)), **test, groups=x[:3, 0])
    with pytest.raises(DataError, match=r"groups of shape \(3,\) for 10 records: store one name or number"):
        load(str(tmp_path / "own.npz"))


def test_own_arrays_are_read_with_their_split(tmp_path):
    x, y = np.arange(12, dtype=np.float64).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])
    np.savez(tmp_path / "own.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    for name in (f"npz:{tmp_path / 'own.npz'}", str(tmp_path / "own.npz")):
        source = load(name)
        assert (len(source.train), len(source.test), source.classes) == (4, 2, 3)
        assert source.train.inputs.dtype == torch.float32


def test_own_bytes_are_divided_by_255_and_classes_may_be_stated(tmp_path):
    pixels = np.full((10, 1, 4, 4), 255, dtype=np.uint8)
    np.savez(tmp_path / "own.npz", inputs=pixels, targets=np.zeros(10, dtype=np.uint8), classes=7)
    source = load(str(tmp_path / "own.npz"))
    assert source.train.inputs.unique().tolist() == [1.0]
    assert (len(source.train), len(source.test), source.classes) == (8, 2, 7)


def test_nan_inputs_pass_through(tmp_path):
    x = np.zeros((10, 2))
    x[:, 0] = np.nan
    np.savez(tmp_path / "own.npz", inputs=x, targets=np.arange(10) % 2)
    assert bool(load(str(tmp_path / "own.npz")).train.inputs[:, 0].isnan().all())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 2))}, "has the arrays x: store x_train"),
        ({"inputs": np.zeros((3, 2)), "targets": np.zeros(2, dtype=int)}, "3 records in inputs and 2 labels"),
        ({"inputs": np.zeros((0, 2)), "targets": np.zeros(0, dtype=int)}, "at least one record"),
        ({"inputs": np.zeros((2, 2)), "targets": np.array([0.0, np.nan])}, "targets has NaN labels"),
        ({"inputs": np.zeros((2, 2)), "targets": np.array([0.0, 0.5])}, "the label 0.5"),
        ({"inputs": np.zeros((2, 2)), "targets": np.array([0, -1])}, "the label -1"),
        ({"inputs": np.zeros((2, 2)), "targets": np.array(["a", "b"])}, "labels of type"),
        ({"inputs": np.zeros((2, 2)), "targets": np.zeros((2, 1))}, r"labels of shape \(2, 1\)"),
        ({"inputs": np.array([["a"], ["b"]]), "targets": np.zeros(2, dtype=int)}, "inputs has the type"),
        ({"inputs": np.zeros(2), "targets": np.zeros(2, dtype=int)}, r"inputs has the shape \(2,\)"),
        ({"inputs": np.zeros((2, 2)), "targets": np.array([0, 3]), "classes": 3}, "the label 3"),
        ({"inputs": np.zeros((2, 2)), "targets": np.array([0, 1]), "classes": 1}, "has classes = 1"),
        ({"inputs": np.array([[None]], dtype=object), "targets": np.array([0])}, "without object arrays"),
    ],
)
def test_bad_arrays_are_named_with_the_remedy(arrays, message, tmp_path):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load(str(tmp_path / "own.npz"))
    assert "own.npz" in str(caught.value)


PRIVATE = {"inputs": np.arange(20.0).reshape(10, 2), "targets": np.arange(10) % 3, "classes": 3}


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_declared_public_records_are_read_beside_all_private_ones(split, tmp_path):
    x, y = PRIVATE["inputs"], PRIVATE["targets"]
    arrays = {"x_train": x[:8], "y_train": y[:8], "x_test": x[8:], "y_test": y[8:], "classes": 3} if split else PRIVATE
    assert load(_stored(tmp_path, **arrays)).public is None
    source = load(_stored(tmp_path, **arrays, x_public=x[:4] + 0.5, y_public=y[:4]))
    assert source.public.inputs.tolist() == (x[:4] + 0.5).tolist()
    assert source.public.targets.tolist() == y[:4].tolist()
    assert (len(source.train), len(source.test)) == (8, 2)


def test_a_class_that_only_public_records_have_counts(tmp_path):
    arrays = {name: value for name, value in PRIVATE.items() if name != "classes"}
    public = {"x_public": PRIVATE["inputs"][:2] + 0.5, "y_public": np.array([0, 4])}
    assert load(_stored(tmp_path, **arrays, **public)).classes == 5


@pytest.mark.parametrize(
    ("public", "message"),
    [
        ({"x_public": np.ones((2, 2))}, "has x_public without y_public: store both"),
        ({"y_public": np.ones(2, dtype=int)}, "has y_public without x_public: store both"),
        (
            {"x_public": np.ones((2, 3)), "y_public": np.ones(2, dtype=int)},
            r"public inputs of shape \(3,\) and private inputs of shape \(2,\)",
        ),
        ({"x_public": np.ones((2, 2)), "y_public": np.ones(3, dtype=int)}, "2 records in x_public and 3 labels"),
        ({"x_public": np.ones((0, 2)), "y_public": np.ones(0, dtype=int)}, "at least one record"),
        ({"x_public": np.ones((2, 2)), "y_public": np.array([0, 3])}, "y_public has the label 3"),
        ({"x_public": np.ones((2, 2)), "y_public": np.array([0.0, np.nan])}, "y_public has NaN labels"),
        ({"x_public": np.ones((2, 2), dtype=np.uint8), "y_public": np.array([0, 1])}, "both as uint8"),
        (
            {"x_public": np.array([[1.0, np.nan], [0.0, 0.0], [np.inf, 0.0]]), "y_public": np.array([0, 1, 2])},
            "x_public has NaN or infinite numbers in 2 of 3 public records",
        ),
        (
            {"x_public": np.vstack([PRIVATE["inputs"][[0, 9]], [[0.5, 0.5]]]), "y_public": np.array([0, 1, 2])},
            "x_public has 2 of 3 public records among the private ones in inputs: remove them",
        ),
    ],
)
def test_bad_public_arrays_are_named_with_the_remedy(public, message, tmp_path):
    with pytest.raises(DataError, match=message) as caught:
        load(_stored(tmp_path, **PRIVATE, **public))
    assert "own.npz" in str(caught.value)


def _stored(folder, **arrays):
    np.savez(folder / "own.npz", **arrays)
    return str(folder / "own.npz")


def test_bytes_beside_other_numbers_are_refused_and_two_of_a_kind_are_scaled_alike(tmp_path):
    bytes_, numbers, y = np.full((4, 3), 255, dtype=np.uint8), np.ones((4, 3), dtype=np.float32), np.arange(4) % 2
    parts = {"y_train": y, "y_test": y}
    for train, test in ((bytes_, numbers), (numbers, bytes_), (bytes_, bytes_.astype(np.int64))):
        np.savez(tmp_path / "own.npz", x_train=train, x_test=test, **parts)
        with pytest.raises(DataError, match="both as uint8, which is divided by 255, or neither"):
            load(str(tmp_path / "own.npz"))
    np.savez(tmp_path / "own.npz", x_train=bytes_, x_test=bytes_, **parts)
    source = load(str(tmp_path / "own.npz"))
    assert float(source.train.inputs.max()) == float(source.test.inputs.max()) == 1.0
    np.savez(tmp_path / "own.npz", x_train=numbers, x_test=numbers.astype(np.float64), **parts)
    assert float(load(str(tmp_path / "own.npz")).test.inputs.max()) == 1.0


@pytest.mark.parametrize("name", ["npz:", "npz:."])
def test_no_file_after_npz_is_named_as_it_was_given(name):
    with pytest.raises(SettingError, match=rf"data = '{name}' is invalid; expected npz:FILE"):
        load(name)


@pytest.mark.parametrize("name", ["p.csv", "folder/p.parquet"])
def test_a_file_of_another_kind_is_told_the_way_to_npz(name):
    with pytest.raises(SettingError, match=rf"data = '{name}'.*inputs and targets, with np.savez.*README"):
        load(name)


def test_a_truncated_or_missing_npz_is_named(tmp_path):
    path = tmp_path / "own.npz"
    with pytest.raises(DataError, match=r"own.npz is missing"):
        load(f"npz:{path}")
    np.savez(path, inputs=np.zeros((9, 9)), targets=np.zeros(9, dtype=int))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"own.npz cannot be read as plain arrays"):
        load(f"npz:{path}")
    np.save(tmp_path / "single.npy", np.zeros(3))
    (tmp_path / "single.npy").rename(path)
    with pytest.raises(DataError, match=r"own.npz cannot be read as plain arrays"):
        load(f"npz:{path}")


# the real files


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "file", "train", "test", "ones"),
    [
        ("mnist", "mnist", 60_000, 10_000, 6742),
        ("fashion-mnist", "fashion-mnist", 60_000, 10_000, 6000),
        ("cifar10", "cifar-10-batches-bin", 50_000, 10_000, 5000),
        ("adult", "adult", 32_561, 16_281, 7841),
        ("compas", "compas_two_years.csv.gz", 4938, 1234, 2253),
        ("shakespeare", "tinyshakespeare.txt.gz", 36_240, 9_059, 5825),
    ],
)
def test_the_official_files_have_the_published_counts(name, file, train, test, ones):
    folder = os.environ.get("GNOMON_DATA")
    if not folder or not (Path(folder) / file).exists():
        pytest.skip(f"{name} needs {file} in the folder that GNOMON_DATA names")
    source = load(name)
    assert (len(source.train), len(source.test)) == (train, test)
    assert int((source.train.targets == 1).sum()) == ones
    assert tuple(source.train.inputs.shape[1:]) == source.input_shape
    if len(source.input_shape) == 3:  # standardised images
        assert abs(float(source.train.inputs.mean())) < 1e-3
        assert abs(float(source.train.inputs.std()) - 1) < 1e-3


def npy(shape, content=b"", dtype="<f8"):
    """A .npy file with a header of its own and whatever follows it."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("shape", "content", "said"),
    [
        ((10**10, 2000), bytes(16), r"claims shape \(10000000000, 2000\), 146 TiB, where the file has 16 bytes"),
        ((2**40, 2**40), bytes(16), "where the file has 16 bytes"),
        ((4, 2), bytes(16), "64 bytes, where the file has 16 bytes"),
        ((1, 2), bytes(800), "16 bytes, where the file has 800 bytes"),
    ],
)
def test_a_header_that_claims_other_bytes_than_there_are_is_named_before_memory_is_asked_for(
    tmp_path, method, shape, content, said
):
    with zipfile.ZipFile(tmp_path / "own.npz", "w", method) as file:
        file.writestr("inputs.npy", npy(shape, content))
        file.writestr("targets.npy", npy((2,), bytes(2), "|u1"))
    with pytest.raises(DataError, match=rf"own.npz has an array inputs .*{said}.*: the file is damaged"):
        load(str(tmp_path / "own.npz"))


def test_a_member_that_claims_more_than_its_compressed_bytes_can_hold_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("inputs.npy", npy((10**10, 2000), bytes(16)))
        file.infolist()[0].file_size = 160 * 10**12 + 128  # the directory of the archive agrees with the header
    with pytest.raises(DataError, match=r"array inputs that claims 146 TiB in a file of \d+ bytes"):
        load(str(tmp_path / "own.npz"))


def test_arrays_that_unpack_to_more_than_the_memory_there_is_are_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "own.npz", inputs=np.zeros((2**16, 32)), targets=np.zeros(2**16, dtype=np.uint8))
    assert (tmp_path / "own.npz").stat().st_size < 2**16
    assert len(load(str(tmp_path / "own.npz")).train) > 2**15
    monkeypatch.setattr(arrays, "available_memory", lambda: 2**24)
    with pytest.raises(DataError, match=r"has arrays of 16.1 MiB together, and 16 MiB of memory are available: store"):
        load(str(tmp_path / "own.npz"))


def test_a_compressed_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist", packed=True)
    (tmp_path / "mnist/train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(2**20))))
    monkeypatch.setattr(files, "LARGEST", 2**18)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz unpacks to more than 256 KiB"):
        load("mnist", tmp_path)


def test_an_idx_header_that_claims_other_bytes_than_there_are_is_named(tmp_path):
    write_mnist(tmp_path / "mnist", packed=False)
    path = tmp_path / "mnist/train-images-idx3-ubyte"
    stored = path.read_bytes()
    path.write_bytes(stored[:4] + b"\xff" * 12 + stored[16:])
    with pytest.raises(DataError, match=r"3920 bytes of data where its header \(4294967295, .* asks for"):
        load("mnist", tmp_path)
