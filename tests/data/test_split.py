"""Private and public records never share content, and the draw depends on the seed alone."""

import pytest
import torch

from gnomon.data import Records, load
from gnomon.data.fingerprint import fingerprints, overlap
from gnomon.data.split import check_disjoint, public_private
from gnomon.errors import SettingError


def pool(values):
    inputs = torch.tensor(values, dtype=torch.float32).reshape(-1, 1)
    return Records(inputs, torch.arange(len(inputs)))


def test_equal_inputs_have_equal_fingerprints_whatever_their_targets():
    a, b, c = fingerprints(pool([1, 1, 2]))
    assert a == b != c


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_fingerprints_take_every_kind_of_number(dtype):
    inputs = torch.tensor([[0, 1], [1, 0], [0, 1]]).to(dtype)
    a, b, c = fingerprints(Records(inputs, torch.zeros(3)))
    assert a == c != b


def test_a_copy_in_another_precision_or_layout_is_still_found():
    image = torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    original, targets = Records(image, torch.zeros(4)), torch.zeros(4)
    assert overlap(original, Records(image.double(), targets)) == 4
    assert overlap(original, Records(image.reshape(4, 9), targets)) == 4
    assert overlap(original, Records(image.transpose(2, 3).contiguous().transpose(2, 3), targets)) == 4


def test_fingerprints_do_not_depend_on_the_chunk_a_record_falls_in():
    records = pool(list(range(5000)))
    assert fingerprints(records)[4990:] == fingerprints(records[4990:])


def test_a_split_has_the_sizes_asked_for_and_shares_nothing():
    split = public_private(load("digits").train, private=1000, public=100)
    assert (len(split.private), len(split.public)) == (1000, 100)
    assert overlap(split.private, split.public) == 0
    check_disjoint(split.private, split.public)


@pytest.mark.parametrize("seed", range(20))
def test_copies_of_private_or_public_records_are_passed_over(seed):
    records = pool([value for value in range(12) for _ in range(3)])
    split = public_private(records, private=5, public=7, seed=seed)
    assert overlap(split.private, split.public) == 0
    assert len(set(fingerprints(split.public))) == 7
    positions = split.private.targets.tolist() + split.public.targets.tolist()
    assert len(set(positions)) == 12


@pytest.mark.parametrize("seed", range(20))
def test_with_no_record_to_spare_those_that_occur_once_become_public(seed):
    records = pool([*range(20), *range(10)])  # ten occur twice, ten once
    split = public_private(records, private=22, public=8, seed=seed)
    assert overlap(split.private, split.public) == 0
    assert min(split.public.inputs) >= 10
    positions = split.private.targets.tolist() + split.public.targets.tolist()
    assert sorted(positions) == list(range(30))


def test_the_draw_depends_on_the_seed_alone():
    records = pool(list(range(50)))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = public_private(records, private=20, public=10, seed=4)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(1)
    again, other = (public_private(records, private=20, public=10, seed=seed) for seed in (4, 5))
    assert torch.equal(first.private.targets, again.private.targets)
    assert torch.equal(first.public.targets, again.public.targets)
    assert not torch.equal(first.private.targets, other.private.targets)


def test_a_split_may_have_no_public_records():
    split = public_private(pool([1, 2, 3]), private=3, public=0)
    assert (len(split.private), len(split.public)) == (3, 0)


def test_too_few_records_are_an_error_that_says_how_many_there_are():
    with pytest.raises(SettingError, match=r"private \+ public = '3 \+ 2'.*at most the 4 records"):
        public_private(pool([1, 2, 3, 4]), private=3, public=2)
    with pytest.raises(SettingError, match=r"public = 2 .*at most 0: all other records have copies"):
        public_private(pool([1, 1, 1, 1]), private=1, public=2)


@pytest.mark.parametrize(("private", "public"), [(0, 1), (1, -1), (1.5, 1)])
def test_sizes_that_make_no_sense_are_refused(private, public):
    with pytest.raises(SettingError, match="whole number"):
        public_private(pool([1, 2, 3]), private=private, public=public)


def test_shared_records_are_counted_in_the_error():
    with pytest.raises(ValueError, match="2 of 3 public records occur in the private set: remove them"):
        check_disjoint(pool([1, 2, 3]), pool([2, 3, 4]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float64, torch.float16])
def test_a_copy_in_another_type_is_still_found(dtype):
    inputs = torch.tensor([[0, 1], [200, 3], [7, 7]])
    assert overlap(Records(inputs.float(), torch.zeros(3)), Records(inputs.to(dtype), torch.zeros(3))) == 3


def test_numbers_that_float32_cannot_hold_are_told_apart():
    inputs = torch.tensor([[2**24], [2**24 + 1], [-(2**40)], [-(2**40) - 1]])
    assert len(set(fingerprints(Records(inputs, torch.zeros(4))))) == 4
