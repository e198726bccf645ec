"""Fingerprints are computed once for data in memory, and every change of the data is noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import TensorDataset

import gnomon
from gnomon.accounting import Account, FullBatch
from gnomon.data import CsrRecords, FingerprintCache, Loader, Records
from gnomon.data.fingerprint import content_digest
from gnomon.errors import DataError
from gnomon.ledger import Ledger, LedgerStateError
from gnomon.ledger.session import LedgerSession


@pytest.fixture
def hashed(monkeypatch):
    """The number of records of each pass over the private records that computes fingerprints."""
    counts = []
    compute = Loader._hashes

    def counted(self, positions, sparse):
        if self._name == "train" and len(positions) > 1:
            counts.append(len(positions))
        return compute(self, positions, sparse)

    monkeypatch.setattr(Loader, "_hashes", counted)
    return counts


def private(n: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def trainer(ledger: Ledger | None = None, **settings) -> gnomon.Trainer:
    model = nn.Linear(4, 2)
    defaults = {
        "loss": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "method": gnomon.methods.pcdp(public=private(20, seed=1), rank=3),
        "sample_rate": 1.0,
        "expected_batch_size": 60,
        "noise_multiplier": 40.0,
        "target_delta": 1e-5,
        "steps": 2,
        "progress": False,
        "ledger": ledger,
    }
    return gnomon.Trainer(model, **(defaults | settings))


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


def test_check_and_fit_hash_records_in_memory_once(ledger, hashed):
    data = private()
    t = trainer(ledger)
    t.check(data)
    t.fit(data, validation=private(30, seed=2))
    t.record(private(30, seed=3))
    assert hashed == [60]


def test_the_items_of_a_dataset_are_hashed_each_time(hashed):
    t = trainer()
    for _ in range(2):
        t.check(TensorDataset(*private()))
    assert hashed == [60, 60]


IN_PLACE = {
    "tensor operation": lambda x, value: x[7].copy_(value),
    "data attribute": lambda x, value: x.data[7].copy_(value),
    "NumPy view": lambda x, value: np.copyto(x.numpy()[7], value.numpy()),
}


@pytest.mark.parametrize("change", IN_PLACE)
def test_a_public_record_that_is_written_into_the_private_ones_after_the_check_is_noticed(change):
    data = private()
    t = trainer()
    t.check(data)
    IN_PLACE[change](data[0], private(20, seed=1)[0][3])
    with pytest.raises(DataError, match="1 of 20 public records occur in the private set"):
        t.fit(data)
    assert t.account.steps == 0


def test_an_array_that_is_changed_after_the_check_is_noticed():
    x, y = (part.numpy() for part in private())
    t = trainer()
    t.check((x, y))
    x[7] = private(20, seed=1)[0][3]
    with pytest.raises(DataError, match="1 of 20 public records"):
        t.fit((x, y))


def test_a_list_whose_inputs_are_exchanged_after_the_check_is_noticed():
    data = list(private())
    t = trainer()
    t.check(data)
    data[0] = torch.cat([private(20, seed=1)[0][:1], data[0][1:]])
    with pytest.raises(DataError, match="1 of 20 public records"):
        t.fit(data)


def test_a_run_does_not_continue_on_records_that_were_overwritten_in_place(ledger):
    data = private()
    t = trainer(ledger, steps=4)
    batches = t.batches(data)
    t.step(*next(batches))
    np.copyto(data[0].numpy(), private(seed=5)[0].numpy())
    with pytest.raises(LedgerStateError, match="started on other records"):
        t.check(data)


def test_sparse_rows_that_are_changed_in_place_have_new_fingerprints():
    matrix = sparse.random(50, 30, density=0.2, format="csr", random_state=0, dtype=np.float32)
    rows = CsrRecords(matrix, torch.zeros(50))
    loader = Loader(rows, cache=FingerprintCache())
    before, digest = list(loader.fingerprints()), loader.digest()
    assert list(loader.fingerprints()) == before == list(Loader(rows).fingerprints())
    matrix.data[3] += 1.0
    assert loader.digest() != digest
    assert list(loader.fingerprints()) == list(Loader(rows).fingerprints()) != before


def test_dense_and_sparse_fingerprints_of_one_data_set_are_cached_apart():
    loader = Loader((torch.eye(5), torch.zeros(5)), cache=FingerprintCache())
    plain = Loader((torch.eye(5), torch.zeros(5)))
    for _ in range(2):
        for form in (False, True):
            assert list(loader.fingerprints(sparse=form)) == list(plain.fingerprints(sparse=form))


def test_records_that_are_left_out_are_left_out_of_the_cached_fingerprints_too():
    x = torch.eye(5)
    loader = Loader((x, torch.zeros(5)), cache=FingerprintCache())
    every = list(loader.fingerprints())
    rest = loader.without(Loader((x[1:3], torch.zeros(2))))
    assert list(rest.fingerprints()) == [every[0], *every[3:]]
    assert list(loader.fingerprints()) == every
    assert rest.digest() != loader.digest()


def test_one_cache_serves_loaders_of_different_data_one_after_the_other():
    cache = FingerprintCache()
    for data in (private(), private(seed=1), private(), Records(*private(30))):
        assert list(Loader(data, cache=cache).fingerprints()) == list(Loader(data).fingerprints())


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(3, 2, dtype=torch.bfloat16),
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(3, 0),
        torch.zeros(0, 2),
        torch.zeros(3, 2, requires_grad=True),
        torch.arange(12).reshape(3, 4).T,
        torch.zeros(1, 2).expand(3, 2),
    ],
)
def test_a_digest_covers_every_type_and_layout(x):
    digest = content_digest([x])
    assert digest == content_digest([x.detach().clone()])
    assert digest != content_digest([x, x])
    assert content_digest([x], "other") != digest


def test_shape_and_type_are_part_of_a_digest():
    x = torch.zeros(4, 2)
    variants = [x, x.reshape(2, 4), x.view(torch.int32), x.flatten()]
    assert len({content_digest([one]) for one in variants}) == 4


def test_a_tensor_that_is_not_plain_has_no_digest():
    assert content_digest([torch.zeros(3, 2).to_sparse()]) is None


def test_a_ledger_session_hashes_unchanged_records_once(ledger, hashed):
    session, data = LedgerSession(ledger, Account(FullBatch(), 40.0), 5), private()
    for _ in range(3):  # as a federated client does, once for each round
        session.admit(data)
    assert hashed == [60]
    data[0].numpy()[0] = 9.0
    session.admit(data)
    assert hashed == [60, 60]
