"""Batches: drawn as declared, across calls, physical batches and restarts."""

from __future__ import annotations

import itertools

import pytest
import torch

from gnomon.data import Loader
from gnomon.errors import SettingError, StateError
from gnomon.release import SeededNoise
from gnomon.sampling import FullBatch, Poisson, Shuffled
from gnomon.training.batches import Batches


def records(size: int = 12, start: int = 0) -> Loader:
    numbers = torch.arange(start, start + size)
    return Loader((numbers.float(), numbers))


def drawn(batches: Batches, loader: Loader, count: int, step: int = 0) -> list[list[int]]:
    positions = batches.positions(loader, SeededNoise(0), step)
    return [chosen.tolist() for chosen in itertools.islice(positions, count)]


def test_a_second_call_goes_on_in_the_same_epoch():
    batches, loader = Batches(Shuffled(4)), records()
    first, second = drawn(batches, loader, 1), drawn(batches, loader, 3, step=1)
    assert sorted(itertools.chain(*first, *second)) == list(range(12))


def test_after_a_restart_an_epoch_begins_anew():
    batches, loader = Batches(Shuffled(4)), records()
    drawn(batches, loader, 3)
    batches.restart()
    assert sorted(itertools.chain(*drawn(batches, loader, 4, step=4))) == list(range(12))


def test_shuffled_batches_that_were_never_released_are_owed():
    batches, loader = Batches(Shuffled(4)), records()
    assert batches.unreleased(step=0) == 0
    drawn(batches, loader, 3)
    assert batches.unreleased(step=1) == 2
    poisson = Batches(Poisson(0.5))
    drawn(poisson, loader, 3)
    assert poisson.unreleased(step=0) == 0, "each draw is independent of the others"


def test_other_records_are_refused():
    batches = Batches(Shuffled(4))
    drawn(batches, records(), 1)
    with pytest.raises(StateError, match="train holds 11 records, but an earlier call had 12"):
        drawn(batches, records(11), 1)
    with pytest.raises(StateError, match="1 steps into a shuffled epoch of 4"):
        drawn(batches, records(start=5), 1)
    drawn(batches, records(), 3)
    assert drawn(batches, records(start=5), 4), "a new epoch may have records in another order"


@pytest.mark.parametrize("limit", [None, 1, 5, 12, 100])
def test_physical_batches_hold_all_records_once(limit):
    batches, loader = Batches(FullBatch(), limit), records()
    chosen = next(batches.positions(loader, SeededNoise(0), 0))
    read = [targets for _, targets in batches.read(loader, chosen)]
    split = [targets for _, targets in batches.split(torch.zeros(12), torch.arange(12))]
    for parts in (read, split):
        assert sorted(torch.cat(parts).tolist()) == list(range(12))
        assert max(map(len, parts)) <= (limit or 12)


def test_an_empty_batch_is_one_physical_batch():
    batches = Batches(Poisson(0.1), 5)
    assert [len(targets) for _, targets in batches.split(torch.zeros(0, 3), torch.zeros(0))] == [0]
    assert [len(targets) for _, targets in batches.read(records(), torch.zeros(0, dtype=torch.long))] == [0]


def test_a_wrong_limit_is_named():
    with pytest.raises(SettingError, match="max_physical_batch_size = 0 is invalid"):
        Batches(FullBatch(), 0)
