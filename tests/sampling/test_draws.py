"""Batches are drawn as declared."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from gnomon.accounting import FullBatch, Poisson, Shuffled, TruncatedPoisson, epsilon
from gnomon.data import Loader, Records, positions
from gnomon.errors import SettingError
from gnomon.release import SecureNoise, SeededNoise
from gnomon.sampling.draws import check_size


def take(sampling, records: int, count: int) -> list[torch.Tensor]:
    drawn = positions(sampling, records, SecureNoise())
    return [next(drawn) for _ in range(count)]


def test_poisson_includes_each_record_independently_with_the_declared_probability():
    n, q, steps = 400, 0.1, 2000
    joined = torch.zeros(steps, n)
    for row, chosen in zip(joined, take(Poisson(q), n, steps), strict=True):
        row[chosen] = 1
    sizes = joined.sum(1)
    # five standard deviations: fails by chance less than once in a million runs
    assert abs(float(joined.mean()) - q) < 5 * math.sqrt(q * (1 - q) / (n * steps))
    spread = n * q * (1 - q)
    assert abs(float(sizes.var()) / spread - 1) < 5 * math.sqrt(2 / steps)
    together = float((joined[:-1] * joined[1:]).mean())
    assert abs(together - q * q) < 5 * math.sqrt(q * q / (n * steps)) * 2


def test_poisson_batches_may_be_empty():
    assert any(len(chosen) == 0 for chosen in take(Poisson(0.01), 10, 200))


def test_truncated_batches_are_never_larger_than_declared_and_keep_a_random_subset():
    drawn = take(TruncatedPoisson(0.5, 10, 40), 40, 400)
    assert max(map(len, drawn)) == 10
    counts = torch.bincount(torch.cat(drawn), minlength=40).double()
    assert counts.min() > 0.5 * counts.mean()


def test_every_record_is_in_one_shuffled_batch_an_epoch():
    drawn = take(Shuffled(4), 10, 8)
    for epoch in (drawn[:4], drawn[4:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(10))
    assert not torch.equal(torch.cat(drawn[:4]), torch.cat(drawn[4:]))


def test_a_full_batch_holds_every_record():
    assert all(torch.equal(chosen.sort().values, torch.arange(7)) for chosen in take(FullBatch(), 7, 3))


@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(0.5), TruncatedPoisson(0.5, 40, 50)])
def test_the_order_of_a_batch_is_not_that_of_the_data_set(sampling):
    for chosen in take(sampling, 50, 3):
        assert not torch.equal(chosen, chosen.sort().values)


def test_an_unknown_sampling_is_refused():
    with pytest.raises(SettingError, match="sampler"):
        next(positions(object(), 3, SeededNoise(0)))


def test_the_loader_keeps_nested_inputs_together():
    data = ({"a": torch.arange(5), "b": torch.arange(5) * 10}, torch.arange(5) * 100)
    inputs, targets = Loader(data).take(torch.tensor([4, 1]))
    assert inputs["a"].tolist() == [4, 1]
    assert inputs["b"].tolist() == [40, 10]
    assert targets.tolist() == [400, 100]


def test_an_empty_batch_keeps_its_shape():
    none = torch.tensor([], dtype=torch.long)
    for data in (Records(torch.zeros(3, 2), torch.zeros(3)), [(torch.zeros(2), 1), (torch.ones(2), 0)] * 2):
        inputs, targets = Loader(data).take(none)
        assert inputs.shape == (0, 2)
        assert targets.shape == (0,)


def test_fewer_records_than_declared_need_a_largest_batch_above_the_declared_mean():
    check_size(TruncatedPoisson(0.01, 256, 10_000), 5_000)
    check_size(TruncatedPoisson(0.01, 256, 100_000), 100_000)
    with pytest.raises(SettingError, match=r"max_batch_size = 256.*at least 1000.*or dataset_size = 5000"):
        check_size(TruncatedPoisson(0.01, 256, 100_000), 5_000)


def test_more_records_cost_each_of_them_more_up_to_that_mean():
    spent = [
        float(epsilon(noise_multiplier=1.0, sampler=TruncatedPoisson(0.1, 50, size), steps=20, delta=1e-6))
        for size in (100, 200, 300, 400, 450, 500)
    ]
    assert all(more >= 0.999 * less for less, more in itertools.pairwise(spent))
