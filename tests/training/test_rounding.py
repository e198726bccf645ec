"""Rounding: no record decides how the updates of other records are rounded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gnomon
from gnomon.accounting import FullBatch, Poisson, Sampling
from gnomon.release import SeededNoise
from gnomon.training.placement import multiple, place
from gnomon.updates.trees import batch_size
from tests.helpers import benchmark

attack = benchmark("rounding_attack")
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = attack.mirrored_weight(GENERATOR)


def released(extra: bool, records: int, sampler: Sampling, crafted: Tensor, runs: int, **settings) -> Tensor:
    """Return the change of the weights along the crafted records in noise-free steps, in units of the clip bound."""
    inputs = attack.crafted_inputs(crafted, records)
    if extra:  # a record without an update of its own, in front of all others
        inputs = torch.cat([torch.zeros(1, attack.WIDTH), inputs])
    model = nn.Linear(attack.WIDTH, 2, bias=False)
    trainer = gnomon.Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=1.0), sampler=sampler,
        expected_batch_size=1, noise_multiplier=0.0, target_delta=1e-5, steps=runs, progress=False, **settings,
    )  # fmt: skip
    direction = F.normalize(torch.stack([-crafted[0], crafted[0]]).flatten(), dim=0)
    found = []
    for batch in trainer.batches((inputs, torch.zeros(len(inputs), dtype=torch.long))):
        with torch.no_grad():
            model.weight.copy_(WEIGHT)
        trainer.step(*batch)
        found.append((model.weight.detach() - WEIGHT).flatten() @ direction)
    return torch.stack(found).double()


@pytest.fixture(scope="module")
def crafted() -> Tensor:
    records = attack.palindromes(WEIGHT, GENERATOR, attempts=50)
    if not len(records):
        pytest.skip("a linear layer rounds all rows alike on this machine")
    return records


@pytest.mark.parametrize("records", [99, 100], ids=["same size", "a size more"])
@pytest.mark.parametrize(
    ("sampler", "settings"),
    [(FullBatch(), {}), (FullBatch(), {"max_physical_batch_size": 32}), (Poisson(0.9), {})],
    ids=["full batch", "physical batches", "poisson"],
)
def test_a_record_in_front_does_not_change_how_the_others_round(records, sampler, settings, crafted):
    runs = 100
    without, with_it = (released(extra, records, sampler, crafted, runs, **settings) for extra in (False, True))
    # in the order of the data set they were 23 apart, each without any spread
    apart = abs(float(without.mean() - with_it.mean()))
    spread = float((without.var() + with_it.var()).div(runs).sqrt())
    assert apart < 5 * spread + 1e-6
    assert without.std() > 1
    # and the whole distribution is the same, not only its mean: Kolmogorov and Smirnov at one in a million
    steps = torch.cat([without, with_it]).sort().values
    gap = max(abs(float((without <= t).double().mean() - (with_it <= t).double().mean())) for t in steps.tolist())
    assert gap < (2 / runs) ** 0.5 * 2.69


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 250])
@pytest.mark.parametrize("most", [None, 2, 6, 300])
def test_a_placed_batch_has_every_record_once_and_a_size_that_one_record_seldom_changes(size, most):
    inputs = {"x": torch.arange(size, dtype=torch.float32), "y": torch.arange(size)[:, None]}
    placed = place(inputs, torch.arange(size), 4, most, SeededNoise(1))
    rows = batch_size(placed.inputs)
    assert placed.counts.sum() == size
    assert sorted(placed.inputs["x"][placed.counts].tolist()) == list(range(size))
    assert torch.equal(placed.inputs["x"].long(), placed.inputs["y"][:, 0])
    assert torch.equal(placed.inputs["y"][:, 0], placed.targets), "inputs and targets stay together"
    assert rows % 4 == 0 or rows == max(size, most)
    assert rows <= max(size, most or rows)


def test_every_row_is_equally_likely():
    counts, order = torch.zeros(8), SeededNoise(0)
    for _ in range(4000):
        placed = place(torch.arange(3.0), None, 8, None, order)
        counts += placed.inputs.eq(2) & placed.counts
    assert counts.sum() == 4000
    assert float((counts - 500).square().sum() / 500) < 40, "chi-square with 7 degrees of freedom"


@pytest.mark.parametrize(("expected", "wanted"), [(1, 4), (250, 4), (511, 4), (512, 8), (2048, 32), (10**6, 32)])
def test_batches_are_filled_up_by_a_small_part_of_the_declared_size(expected, wanted):
    assert multiple(expected) == wanted
    assert multiple(expected) <= max(4, expected / 32)
