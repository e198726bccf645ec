"""PublicEigenspace: the basis is public, orthonormal, and solved for together with the first coordinates."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from gnomon.errors import DataError
from gnomon.methods import gep, pcdp
from gnomon.subspaces import eigenspace
from gnomon.subspaces.eigenspace import SharedBasis, mixing, quick_mixing, shared_basis, tensor_bases
from gnomon.updates import Dense, Updates, gradients
from tests import helpers
from tests.helpers import LOSS


class Tokens(nn.Module):
    """A model with leaves of every kind: an embedding, a wide layer on a sequence, a convolution and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.wide = nn.Embedding(11, 24), nn.Linear(24, 40)
        self.mix, self.head = nn.Conv1d(40, 6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.wide(self.embed(x)).tanh()
        return self.head(self.mix(hidden.mT).mean(2))


def model() -> Tokens:
    torch.manual_seed(0)
    return Tokens()


def updates(size: int, seed: int) -> Updates:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randint(0, 11, (size, 9), generator=generator), torch.randint(0, 3, (size,), generator=generator)
    return gradients(model(), LOSS, x, y)


def orthonormality(basis: SharedBasis) -> float:
    """Return how far the Gram matrix of the basis vectors is from the identity."""
    vectors = basis.public.dense().double().T @ basis.mixing.double()
    return float((vectors.T @ vectors - torch.eye(basis.rank, dtype=torch.float64)).abs().max())


@pytest.mark.parametrize("make", [shared_basis, tensor_bases])
@pytest.mark.parametrize("sizes", [(8, 5), (3, 20)])
def test_coordinates_that_are_computed_with_the_basis_equal_those_computed_after_it(make, sizes):
    public, private = updates(sizes[0], 1), updates(sizes[1], 2)
    together, afterwards = make(public, 3), make(public, 3)
    assert sorted(afterwards.like) == sorted(together.coordinates(private).leaves)
    torch.testing.assert_close(together.coordinates(private).dense(), afterwards.coordinates(private).dense())
    torch.testing.assert_close(make(public, 3).coordinates(private).dense(), afterwards.coordinates(private).dense())


def test_the_basis_does_not_depend_on_the_private_batch_with_which_it_is_computed():
    public = updates(8, 1)
    alone = shared_basis(public, 5).mixing
    tensors = tensor_bases(public, 5).mixings
    for size, seed in ((1, 2), (7, 3), (40, 4)):
        shared, separate = shared_basis(public, 5), tensor_bases(public, 5)
        shared.coordinates(updates(size, seed))
        separate.coordinates(updates(size, seed))
        assert torch.equal(shared.mixing, alone)
        assert all(
            mixing is tensors[name] is None or torch.equal(mixing, tensors[name])
            for name, mixing in separate.mixings.items()
        )
    assert not torch.equal(shared_basis(updates(8, 5), 5).mixing, alone), "positive control: other public records"


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-3, 1e-5, 0.0])
def test_basis_vectors_are_orthonormal_even_if_public_gradients_almost_agree(apart):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 400, generator=generator) + apart * torch.randn(6, 400, generator=generator)
    public = Updates({"weight": Dense(rows)}, torch.zeros(6))
    basis = shared_basis(public, 6)
    assert basis.rank == (6 if apart > 1e-4 else 1), "directions below the rounding of float32 are dropped"
    assert orthonormality(basis) < 1e-3


def test_a_rounded_gram_matrix_is_refused_where_it_would_tilt_the_basis():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 400, generator=generator) + 1e-3 * torch.randn(6, 400, generator=generator)
    rounded = (rows @ rows.T).double()
    assert quick_mixing(rounded, 6, torch.float32) is None
    assert quick_mixing(rounded, 1, torch.float32) is not None, "the first direction is accurate"
    tilted = SharedBasis(Updates({"weight": Dense(rows)}, torch.zeros(6)), mixing(rounded, 6, torch.float32))
    assert orthonormality(tilted) > 1e-2, "positive control: the rounded matrix is not enough"


@pytest.mark.parametrize("size", [1e-17, 1e-11, 1.0, 1e17])
def test_the_length_of_public_gradients_does_not_matter(size):
    rows = torch.randn(5, 60, generator=torch.Generator().manual_seed(0))
    make = lambda factor: shared_basis(Updates({"weight": Dense(factor * rows)}, torch.zeros(5)), 5)
    assert make(size).rank == 5
    torch.testing.assert_close(make(size).mixing * size, make(1.0).mixing, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [shared_basis, tensor_bases])
def test_public_gradients_that_are_not_finite_are_left_out(make):
    rows = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    other = torch.randn(6, 20, generator=torch.Generator().manual_seed(1))
    rows[2, 3], other[4, 0] = torch.nan, torch.inf
    both = lambda chosen: Updates({"a": Dense(rows[chosen]), "b": Dense(other[chosen])}, torch.zeros(len(chosen)))
    private = Updates({name: Dense(torch.ones(2, 20)) for name in "ab"}, torch.zeros(2))
    found, expected = make(both([0, 1, 2, 3, 4, 5]), 3), make(both([0, 1, 3, 5]), 3)
    torch.testing.assert_close(found.coordinates(private).dense(), expected.coordinates(private).dense())
    with pytest.raises(DataError, match="no record with a finite gradient"):
        make(both([2, 4]), 3).coordinates(private)


@pytest.mark.parametrize("make", [pcdp, gep])
def test_the_last_basis_is_freed_before_the_next_one_is_computed(make, monkeypatch):
    torch.manual_seed(0)
    public = torch.randn(10, 4), torch.randint(0, 3, (10,))
    private = helpers.trainer(nn.Linear(4, 3), method=make(public, rank=3), steps=4)
    alive: list[weakref.ref[Updates]] = []
    counts: list[int] = []

    def watched(*args, **kwargs):
        gc.collect()
        counts.append(sum(reference() is not None for reference in alive))
        found = gradients(*args, **kwargs)
        alive.append(weakref.ref(found))
        return found

    monkeypatch.setattr(eigenspace, "gradients", watched)
    private.fit((torch.randn(20, 4), torch.randint(0, 3, (20,))))
    assert len(counts) >= 4
    assert not any(counts[1:])
    assert alive[-1]() is not None, "positive control: the current basis is alive"
