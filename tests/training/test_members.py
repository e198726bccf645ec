"""Validation on training records is recognised, whatever form the records come in."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from gnomon.data import CsrRecords, Records
from gnomon.models import SparseLinear
from gnomon.training.checks import members
from gnomon.training.checks.members import of_members
from tests import helpers
from tests.helpers import data


class Items(Dataset):
    """Items that are made when they are asked for; it counts how many were."""

    def __init__(self, x, y):
        self.x, self.y, self.made = x, y, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.made += 1
        return self.x[i].clone(), int(self.y[i])


FORMS = {
    "tensors": lambda x, y: (x.clone(), y.clone()),
    "arrays": lambda x, y: (x.numpy().copy(), y.numpy().copy()),
    "Records": lambda x, y: Records(x.clone(), y.clone()),
    "TensorDataset": lambda x, y: TensorDataset(x.clone(), y.clone()),
    "Dataset": Items,
    "Subset": lambda x, y: Subset(Items(torch.cat([x, x + 1]), torch.cat([y, y])), range(len(x))),
    "Subset of a Subset": lambda x, y: Subset(Subset(Items(x, y), range(len(x))), range(len(x))),
    "ConcatDataset": lambda x, y: ConcatDataset([Items(x[:9], y[:9]), Items(x[9:], y[9:])]),
    "list": lambda x, y: [(one, int(two)) for one, two in zip(x, y, strict=True)],
}


trainer = functools.partial(helpers.trainer, seed=None, steps=2)


def marked(train, validation, model=None) -> bool:
    """Whether a run logs its validation as unprotected, in metrics and statement alike."""
    t = trainer(model)
    last = t.fit(train, validation).history[-1]
    raw = {name.startswith("unprotected/") for name in last if "validation/" in name}
    assert len(raw) == 1
    assert raw == {any("training records" in note for note in t.statement().caveats)}
    return raw.pop()


@pytest.mark.parametrize("validation", FORMS)
@pytest.mark.parametrize("train", FORMS)
def test_training_records_are_recognised_in_every_form(train, validation):
    x, y = data()
    assert marked(FORMS[train](x, y), FORMS[validation](x[5:25], y[5:25]))
    assert not marked(FORMS[train](x, y), FORMS[validation](*data(20, seed=1)))


def test_another_precision_or_another_order_hides_nothing():
    x, y = data()
    assert of_members((x.double().flip(0), y), Items(x, y))
    assert of_members(Items(x.flip(0), y), (x.double(), y))


def test_the_training_dataset_itself_and_parts_of_it_are_recognised_by_their_positions():
    both = Items(*data())
    assert marked(both, both)
    assert marked(both, Subset(both, range(20)))
    assert marked(Subset(both, range(40)), both)
    assert marked(Subset(both, range(40)), Subset(both, torch.arange(35, 60)))
    assert marked(Subset(both, range(40, 60)), Subset(both, [0, 1, -1]))
    assert marked(Subset(both, range(40)), Subset(Subset(both, range(20, 60)), [0, 30]))
    assert not marked(Subset(both, range(40)), Subset(both, range(40, 60)))
    assert not marked(Subset(both, range(40)), Subset(Subset(both, range(20, 60)), [25, 30]))


def test_positions_in_one_dataset_answer_without_reading_its_items():
    both = Items(*data())
    assert of_members(Subset(both, [3, 4]), Subset(both, [4, 5]))
    assert not of_members(Subset(both, [3, 4]), Subset(both, [5]))
    assert both.made == 0


def test_rows_of_a_sparse_matrix_are_recognised():
    x, y = data()
    rows = lambda some: CsrRecords(sparse.csr_matrix(x[some].numpy()), y[some])
    assert marked(rows(slice(60)), rows(slice(5, 25)), SparseLinear(4, 2))
    listed = [((torch.arange(4), x[i]), int(y[i])) for i in range(5, 25)]  # a Dataset of such rows
    assert marked(rows(slice(60)), listed, SparseLinear(4, 2))
    assert not marked(rows(slice(40)), rows(slice(40, 60)), SparseLinear(4, 2))
    assert not of_members([("a b", 0)] * 3, rows(slice(60)))


@pytest.mark.parametrize("form", ["tensors", "Dataset"])
def test_a_tenth_of_the_validation_records_is_enough_and_single_ones_are_not(form):
    x, y = data(400)
    fresh, labels = data(100, seed=1)
    for shared, expected in ((100, True), (12, True), (5, False), (1, False)):
        part = torch.cat([x[:shared], fresh[shared:]]), torch.cat([y[:shared], labels[shared:]])
        assert of_members(FORMS[form](*part), FORMS[form](x, y)) == expected, shared


@pytest.mark.parametrize("values", [2, 3, 4])
def test_twins_by_chance_are_no_training_records_but_a_third_more_than_chance_are(values):
    def drawn(count, seed):  # of 32 to 1024 kinds of people
        return torch.randint(0, values, (count, 5), generator=torch.Generator().manual_seed(seed)).float()

    x = drawn(500, 0)
    for seed in range(1, 30):
        other = drawn(300, seed)
        assert not of_members((other, other[:, 0]), (x, x[:, 0]))
    if values == 4:  # with fewer kinds everybody has a twin, and nothing can be told
        part = torch.cat([x[:100], drawn(200, 30)])
        assert of_members((part, part[:, 0]), (x, x[:, 0]))


def test_text_and_items_of_different_shapes_are_compared_too():
    words = [(f"word {n}", n % 2) for n in range(30)]
    assert of_members(words[5:9], words)
    assert not of_members([("another word", 0)], words)
    lines = [(torch.arange(float(n)), 0) for n in range(1, 30)]
    assert of_members(lines[5:9], lines)
    assert not of_members([(torch.full((3,), 7.0), 0)], lines)


def test_reading_items_leaves_the_random_numbers_of_a_run_as_they_were():
    class Drawn(Items):
        def __getitem__(self, i):
            return super().__getitem__(i)[0] + torch.rand(()) + random.random() + np.random.rand(), 0  # noqa: NPY002

    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    expected = torch.rand(()), random.random(), np.random.rand()  # noqa: NPY002
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    assert not of_members(Drawn(*data()), Drawn(*data()))
    assert (torch.rand(()), random.random(), np.random.rand()) == expected  # noqa: NPY002


def test_larger_sets_are_not_read_and_of_many_validation_items_a_selection(monkeypatch):
    x, y = data()
    train, validation = Items(x, y), Items(x, y)
    monkeypatch.setattr(members, "SAMPLED", 10)
    assert of_members(validation, train)
    assert (train.made, validation.made) == (60, 10)
    monkeypatch.setattr(members, "ITEMS", 59)
    assert not of_members(validation, train)
    assert (train.made, validation.made) == (60, 10)


def test_a_record_of_metrics_on_training_records_is_marked_too():
    x, y = data()
    t = trainer()
    t.fit((x, y))
    assert "unprotected/validation/loss" in t.record(Items(x, y))
    assert "validation/loss" in t.record((x + 1, y))
    assert any("training records" in note for note in t.statement().caveats)


def test_a_validation_record_that_cannot_be_read_is_named_before_a_step_is_charged():
    x, y = data()

    class Uneven(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, position):
            return (x[position], y[position], 0) if position == 17 else (x[position], y[position])

    one = helpers.trainer()
    with pytest.raises(TypeError):
        one.fit((x, y), validation=Uneven())
    assert one.account.steps == 0
