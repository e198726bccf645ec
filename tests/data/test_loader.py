"""Whatever holds records: what is taken as it is, what is named with its remedy, and how records are recognised."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gnomon.data import CsrRecords, Loader, fingerprint, fingerprints
from gnomon.data.records import Records
from gnomon.errors import DataError
from gnomon.ledger.identity import identity_of_records
from gnomon.training.checks.model import refuse_overlap

X, Y = torch.randn(20, 3), torch.arange(20) % 2


class Dicts(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return {"x": X[i], "label": Y[i]}


@pytest.mark.parametrize("pair", [(X.numpy(), Y.numpy()), [X, Y.numpy()], (X.numpy()[::-1][::-1], Y)])
def test_a_pair_of_arrays_is_inputs_and_targets(pair):
    inputs, targets = Loader(pair).take(torch.tensor([3, 1]))
    assert torch.equal(inputs, X[[3, 1]])
    assert targets.tolist() == Y[[3, 1]].tolist()
    assert list(Loader(pair).fingerprints()) == list(Loader((X, Y)).fingerprints())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (TensorDataset(X, Y, Y), "items of train are tuples of 3: each must be a pair"),
        (Dicts(), "items of train are dicts with x, label: each must be a pair"),
        (TensorDataset(X), "items of train are tuples of 1"),
    ],
)
def test_items_that_are_no_pairs_are_named(data, words):
    with pytest.raises(TypeError, match=words):
        Loader(data).take(torch.tensor([0]))


class Named(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return X[i], "cat" if i % 2 else "dog"


class Frame:
    def to_numpy(self):
        return X.numpy()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader(TensorDataset(X, Y)), "train is a DataLoader: give loader.dataset; its batch size"),
        ("records.npz", "train is a str, not records: read the file first"),
        (Path("records.npz"), "Path, not records: read the file first"),
        ({"x": X, "y": Y}, r"train is a dict: give a pair, \(data\['inputs'\], data\['targets'\]\)"),
        ((X, Y.tolist()), r"train has targets in a list of int: give torch.tensor\(targets\)"),
        ((X.numpy(), tuple(Y.tolist())), "train has targets in a tuple of int"),
        ((X, ["cat", "dog"] * 10), "train has targets in a list of str: give classes as whole numbers"),
        ((X, np.array(["cat", "dog"] * 10)), "train has targets of type <U3: give classes as whole numbers"),
        ((X, np.array(["cat", "dog"] * 10, dtype=object)), "train has targets of type object"),
        ((Frame(), Y), r"train has inputs in a Frame: give inputs.to_numpy\(\)"),
    ],
)
def test_what_people_hold_in_the_place_of_records_is_named_with_its_remedy(data, words):
    with pytest.raises(TypeError, match=words) as caught:
        Loader(data)
    assert "cat" not in str(caught.value)


def test_texts_as_targets_of_items_are_named():
    with pytest.raises(TypeError, match="train has targets of type str: give classes as whole numbers"):
        Loader(Named()).take(torch.tensor([0, 1]))


@pytest.mark.parametrize("data", [(X, Y, Y), (sparse.csr_matrix(X.numpy()), Y)])
def test_tuples_that_are_not_inputs_and_targets_are_named(data):
    with pytest.raises(TypeError, match="give two, inputs and targets"):
        Loader(data)


def test_fingerprints_of_dense_records_are_what_ledgers_store():
    x = torch.tensor([[0.5, -0.0], [2.0, 3.0]])
    plain = [hashlib.blake2b((row + 0.0).numpy().tobytes(), digest_size=16).digest() for row in x]
    assert list(Loader((x, torch.zeros(2))).fingerprints()) == plain == fingerprints(Records(x, torch.zeros(2)))
    both = [hashlib.blake2b(torch.cat([row, row]).add(0.0).numpy().tobytes(), digest_size=16).digest() for row in x]
    assert list(Loader(((x, x.double()), torch.zeros(2))).fingerprints()) == both


def random_rows(count: int, seed: int = 0) -> sparse.csr_matrix:
    return sparse.random(count, 500, density=0.02, format="csr", random_state=seed)


def test_fingerprints_of_a_sparse_record_do_not_depend_on_the_others():
    rows, zeros = random_rows(3000), torch.zeros(3000)
    lengths = np.diff(rows.indptr)
    rest = rows[lengths < lengths.max()]
    whole = identity_of_records(CsrRecords(rows, zeros), b"key")
    part = identity_of_records(CsrRecords(rest, zeros[: rest.shape[0]]), b"key")
    assert len(whole.sketch & part.sketch) > 1000
    order = np.random.default_rng(0).permutation(3000)
    assert identity_of_records(CsrRecords(rows[order], zeros, torch.float64), b"key") == whole


def test_stored_zeros_and_the_order_of_entries_do_not_count_in_sparse_records():
    def hashes(values, columns):
        row = sparse.csr_matrix((values, columns, [0, len(values)]), shape=(1, 9))
        return list(Loader(CsrRecords(row, torch.zeros(1))).fingerprints())

    assert hashes([1.0, 2.0], [3, 7]) == hashes([2.0, 1.0], [7, 3]) == hashes([0.0, 1.0, -0.0, 2.0], [1, 3, 4, 7])
    assert hashes([1.0, 2.0], [3, 7]) != hashes([1.0, 2.0], [3, 8])
    assert hashes([], []) == hashes([0.0], [2])


def test_private_sparse_records_are_found_among_the_public_ones():
    rows, zeros = random_rows(300), torch.zeros(300)
    private = Loader(CsrRecords(rows, zeros))
    with pytest.raises(ValueError, match="50 of 50 public records"):
        refuse_overlap(private, Loader(CsrRecords(rows[:50], zeros[:50])))
    refuse_overlap(private, Loader(CsrRecords(random_rows(50, seed=1), zeros[:50])))


@pytest.mark.parametrize("form", ["entries", "items", "matrix"])
def test_private_sparse_records_are_found_among_public_ones_in_another_form(form):
    rows, zeros = random_rows(300), torch.zeros(300)
    private = CsrRecords(rows, zeros)
    (columns, values), targets = private.take(torch.arange(50))
    public = {
        "entries": ((columns, values), targets),
        "items": [((c, v), t) for c, v, t in zip(columns, values, targets, strict=True)],
        "matrix": (torch.from_numpy(rows[:50].toarray()), targets),
    }[form]
    for one, other in ((private, public), (public, private)):
        with pytest.raises(ValueError, match="public records occur in the private set"):
            refuse_overlap(Loader(one), Loader(other))
    assert Loader(private).without(Loader(public)).left_out == 50
    rest = CsrRecords(rows[50:], zeros[50:])
    refuse_overlap(Loader(rest), Loader(public))


def test_records_that_cannot_be_compared_with_sparse_ones_are_named():
    private = Loader(CsrRecords(random_rows(3), torch.zeros(3)))
    with pytest.raises(DataError, match="inputs of type Tensor cannot be compared with the rows of CsrRecords"):
        refuse_overlap(private, Loader((torch.zeros(3, 2, 2), torch.zeros(3))))


def test_records_are_recognised_in_parts_and_where_they_are(monkeypatch):
    sizes = []

    class Items(Dataset):
        def __len__(self):
            return 10_000

        def __getitem__(self, i):
            return torch.tensor([float(i)]), 0

    loader = Loader(Items(), device=torch.device("meta"))  # what is moved there has no content
    read = Loader._read
    monkeypatch.setattr(Loader, "_read", lambda self, positions: sizes.append(len(positions)) or read(self, positions))
    with pytest.raises(ValueError, match="1 of 1 public"):
        refuse_overlap(loader, Loader((torch.tensor([[7.0]]), torch.zeros(1))))
    assert max(sizes) == fingerprint.CHUNK
