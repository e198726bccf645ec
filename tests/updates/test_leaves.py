"""Every leaf, in whatever form it holds its updates, equals the dense matrices it stands for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gnomon.updates.leaves import (
    Convolution,
    Dense,
    Factored,
    Indexed,
    Leaf,
    Masked,
    Residual,
    RowProjected,
    Summed,
    Zero,
    add,
)

few = settings(max_examples=40, deadline=None, derandomize=True)
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Maker:
    """Random leaves of one parameter, with the (B, *shape) matrix that each must equal."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def dense(self, size: int, shape: tuple[int, ...]) -> tuple[Leaf, Tensor]:
        values = self.normal(size, *shape)
        return Dense(values), values

    def zero(self, size: int, shape: tuple[int, ...]) -> tuple[Leaf, Tensor]:
        return Zero(size, torch.Size(shape), self.normal(1)), torch.zeros(size, *shape, dtype=torch.float64)

    def factored(self, size: int, shape: tuple[int, ...], groups: int = 1) -> tuple[Leaf, Tensor]:
        length, rows, columns = (
            self.draw(st.integers(1, 5)),
            shape[0] // groups,
            torch.Size(shape[1:]).numel(),
        )
        a, b = self.normal(size, groups, length, columns), self.normal(size, groups, length, rows)
        return Factored(a, b, torch.Size(shape)), torch.einsum("ihtr,ihtc->ihrc", b, a).reshape(size, *shape)

    def indexed(self, size: int, shape: tuple[int, ...]) -> tuple[Leaf, Tensor]:
        length = self.draw(st.integers(1, 6))
        index = torch.randint(0, shape[0], (size, length), generator=self.generator)
        values, expected = self.normal(size, length, shape[1]), torch.zeros(size, *shape, dtype=torch.float64)
        for i in range(size):
            for t in range(length):
                expected[i, index[i, t]] += values[i, t]
        return Indexed(index, values, torch.Size(shape)), expected

    def summed(self, size: int, shape: tuple[int, ...]) -> tuple[Leaf, Tensor]:
        kinds = self.draw(st.lists(st.sampled_from(["dense", "factored", "indexed"]), min_size=2, max_size=4))
        parts = [getattr(self, kind)(size, shape) for kind in kinds]
        leaves = [leaf for leaf, _ in parts]
        leaf = add(leaves) if self.draw(st.booleans()) else Summed(leaves)
        return leaf, torch.stack([matrix for _, matrix in parts]).sum(0)


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[Leaf, Tensor]]:
    """Two leaves of one parameter, of the same or of different kinds and sizes."""
    maker = Maker(draw)
    shape = (draw(st.sampled_from([1, 3, 30])), draw(st.sampled_from([1, 4, 30])))
    kinds = st.sampled_from(["dense", "zero", "factored", "indexed", "summed"])
    return [getattr(maker, draw(kinds))(draw(st.integers(1, 4)), shape) for _ in range(2)]


@st.composite
def grouped(draw: st.DrawFn) -> list[tuple[Leaf, Tensor]]:
    maker, groups = Maker(draw), draw(st.sampled_from([2, 3]))
    shape = (groups * draw(st.sampled_from([1, 2, 20])), draw(st.sampled_from([1, 20])))
    return [maker.factored(draw(st.integers(1, 4)), shape, groups) for _ in range(2)]


@st.composite
def convolutions(draw: st.DrawFn) -> list[tuple[Leaf, Tensor]]:
    maker, dims, groups = Maker(draw), draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2]))
    small = lambda least, most: tuple(draw(st.integers(least, most)) for _ in range(dims))
    kernel, stride, dilation = small(1, 3), small(1, 3), small(1, 2)
    inside, outside = groups * draw(st.sampled_from([1, 3])), groups * draw(st.sampled_from([1, 2, 12]))
    space = tuple((k - 1) * d + 1 + draw(st.integers(0, 4)) for k, d in zip(kernel, dilation, strict=True))
    shape = (outside, inside // groups, *kernel)
    made = []
    for _ in range(2):
        size = draw(st.integers(1, 3))
        x = maker.normal(size, inside, *space)
        if draw(st.booleans()):  # the same numbers in another memory order
            x = x.transpose(1, -1).contiguous().transpose(1, -1)
        weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        outputs = [
            CONVOLVE[dims](x[i : i + 1], weight, stride=stride, dilation=dilation, groups=groups) for i in range(size)
        ]
        cotangents = [maker.normal(*out.shape) for out in outputs]
        expected = [torch.autograd.grad(o, weight, c)[0] for o, c in zip(outputs, cotangents, strict=True)]
        leaf = Convolution(x, torch.cat(cotangents), torch.Size(shape), stride, dilation, groups)
        made.append((leaf, torch.stack(expected)))
    return made


def check(made: list[tuple[Leaf, Tensor]]) -> None:
    (leaf, matrix), (other, theirs) = made
    size = len(leaf)
    flat, flat_theirs = matrix.reshape(size, -1), theirs.reshape(len(other), -1)
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert size == len(matrix)
    close(leaf.dense(), matrix)
    close(leaf.square_norms(), flat.square().sum(1))
    close(leaf.gram(other), flat @ flat_theirs.T)
    close(other.gram(leaf), flat_theirs @ flat.T)
    close(leaf.gram(leaf), flat @ flat.T)
    close(leaf.self_gram(), flat @ flat.T)
    square, products = leaf.grams(other)
    close(square, flat @ flat.T)
    close(products, flat_theirs @ flat.T)
    assert torch.equal(leaf.grams()[0], square), "the first Gram matrix depends on the other leaf"
    same = min(size, len(other))
    index = torch.arange(same)
    close(leaf.select(index).inner(other.select(index)), (flat[:same] * flat_theirs[:same]).sum(1))
    weights = torch.linspace(-1, 2, size, dtype=torch.float64)
    close(leaf.weighted_sum(weights), torch.tensordot(weights, matrix, 1))
    chosen = torch.tensor([size - 1, 0, size - 1])
    close(leaf.select(chosen).dense(), matrix[chosen])
    close(leaf.select(chosen).square_norms(), flat[chosen].square().sum(1))
    none = leaf.select(chosen[:0])
    assert len(none) == 0
    assert not none.weighted_sum(weights[:0]).any()
    assert leaf.double().like.dtype is torch.float64
    close(leaf.double().dense(), matrix)
    if leaf.rows > 1:
        close(leaf.block(1, leaf.rows), matrix.reshape(size, leaf.rows, -1)[:, 1:])


@few
@given(made=pairs())
def test_leaves_of_any_two_kinds_equal_their_dense_form(made):
    check(made)


@few
@given(made=grouped())
def test_grouped_factors_equal_their_dense_form(made):
    check(made)


@few
@given(made=convolutions())
def test_convolutions_equal_their_dense_form(made):
    check(made)


@few
@given(made=grouped() | convolutions())
def test_ceilings_from_the_factors_alone_are_those_with_norms_or_above_them(made):
    leaf, matrix = made[0]
    quick = leaf.factor_ceilings()
    assert (quick >= (1 - 1e-10) * leaf.square_ceilings()).all()
    assert (quick >= (1 - 1e-10) * matrix.flatten(1).square().sum(1)).all()


@settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate])
@given(made=grouped() | convolutions())
def test_nobody_has_no_norms(made):
    none = made[0][0].select(torch.zeros(0, dtype=torch.long))
    assert none.square_norms().shape == (0,)
    assert none.dense().shape == (0, *none.shape)


@pytest.mark.parametrize("chunk", [1, 64, 4096])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(made=pairs() | grouped() | convolutions())
def test_working_in_small_chunks_changes_nothing(chunk, made):
    from gnomon.updates.leaves import convolution, factored, indexed, leaf

    with pytest.MonkeyPatch.context() as patch:
        for module in (factored, indexed, leaf):
            patch.setattr(module, "CHUNK_BYTES", chunk)
        patch.setattr(factored, "GHOST_BYTES", chunk)
        patch.setattr(convolution, "WINDOW_BYTES", chunk)
        check(made)


def cancelling(kind: str, ratio: float) -> Leaf:
    """Float32 terms that are `ratio` times as large as the update they leave."""
    generator = torch.Generator().manual_seed(0)
    token, step, error = torch.randn(3, 1, 60, generator=generator)
    big = token * ratio
    a, b = torch.stack([big, big + step], 1), torch.stack([-error, error], 1)
    if kind == "factored":
        return Factored(a[:, None], b[:, None], torch.Size([60, 60]))
    if kind == "indexed":
        return Indexed(torch.tensor([[3, 3]]), a * torch.tensor([1.0, -1.0])[:, None], torch.Size([5, 60]))
    if kind == "convolution":
        return Convolution(a.mT.contiguous(), b.mT.contiguous(), torch.Size([60, 60, 1]), [1], [1], 1)
    parts = [Factored(a[:, None, t : t + 1], b[:, None, t : t + 1], torch.Size([60, 60])) for t in range(2)]
    return Summed(parts)


@pytest.mark.parametrize("kind", ["factored", "indexed", "convolution", "summed"])
@pytest.mark.parametrize("ratio", [1.0, 1e2, 1e3, 1e4, 1e5, 1e6])
def test_norms_are_right_also_when_large_terms_nearly_cancel(kind, ratio):
    leaf = cancelling(kind, ratio)
    exact = leaf.double().dense().norm().item()
    assert leaf.square_norms().sqrt().item() == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("kind", ["factored", "indexed", "summed"])
@pytest.mark.parametrize("width", [48, 300])
def test_norms_of_terms_that_cancel_in_part_are_right_to_a_few_parts_in_a_hundred_thousand(kind, width):
    """Thousands of samples that are between 1 and 60 times shorter than their terms: the worst of them counts."""
    draw = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=draw)
    size, rows = 2000, 16
    short = torch.logspace(0, -1.8, size)[:, None]
    a, b = normal(size, width), normal(size, rows)
    tokens = torch.stack([a, a + short * normal(size, width)], 1)
    errors = torch.stack([b, short * normal(size, rows) - b], 1)
    if kind == "factored":
        leaf: Leaf = Factored(tokens[:, None], errors[:, None], torch.Size([rows, width]))
    elif kind == "indexed":
        signs = torch.tensor([1.0, -1.0])[None, :, None]
        leaf = Indexed(torch.ones(size, 2, dtype=torch.long), tokens * signs, torch.Size([5, width]))
    else:
        shape = torch.Size([rows, width])
        leaf = Summed([Factored(tokens[:, None, t : t + 1], errors[:, None, t : t + 1], shape) for t in range(2)])
    exact = leaf.double().dense().flatten(1).norm(dim=1)
    torch.testing.assert_close(leaf.square_norms().sqrt(), exact, rtol=2e-5, atol=0)


@pytest.mark.parametrize("kind", ["factored", "indexed", "convolution", "summed"])
@pytest.mark.parametrize("ratio", [1.0, 1e2, 1e4])
def test_sums_are_right_also_when_large_terms_nearly_cancel(kind, ratio):
    leaf = cancelling(kind, ratio)
    exact = leaf.double().dense()[0]
    found = leaf.weighted_sum(torch.ones(1)).double()
    assert ((found - exact).norm() / exact.norm()).item() < 1e-2


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize(("scale_in", "scale_out"), [(1e-18, 1e-18), (1e18, 1e-18), (1e-16, 1e16), (1e8, 1e8)])
def test_norms_are_right_for_very_small_and_very_large_factors(length, scale_in, scale_out):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 1, length, 30, generator=generator) * scale_in
    b = torch.randn(3, 1, length, 30, generator=generator) * scale_out
    leaf = Factored(a, b, torch.Size([30, 30]))
    exact = leaf.double().dense().flatten(1).norm(dim=1)
    torch.testing.assert_close(leaf.square_norms().sqrt(), exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("scale_in", "scale_out"), [(2e-23, 1e17), (1e-22, 1e18), (1e20, 1e-20)])
def test_factors_whose_squares_leave_float32_still_have_a_norm(scale_in, scale_out):
    leaf = Factored(torch.full((1, 1, 4, 30), scale_in), torch.full((1, 1, 4, 30), scale_out), torch.Size([30, 30]))
    exact = leaf.double().dense().norm().item()
    assert leaf.square_norms().sqrt().item() == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("kind", ["factored", "indexed"])
def test_sequences_of_no_length_are_zero_updates(kind):
    none = torch.zeros(2, 0, 4)
    leaf = (
        Factored(none[:, None], none[:, None], torch.Size([4, 4]))
        if kind == "factored"
        else Indexed(torch.zeros(2, 0, dtype=torch.long), none, torch.Size([5, 4]))
    )
    assert not leaf.square_norms().any()
    assert not leaf.gram(leaf).any()


@st.composite
def derived(draw: st.DrawFn) -> list[tuple[Leaf, Tensor]]:
    """Leaves with a mask, minus a projection, or with projected rows, around leaves of any kind."""
    maker, made = Maker(draw), []
    for leaf, matrix in draw(pairs()):
        shape, size = leaf.shape, len(leaf)
        kind = draw(st.sampled_from(["masked", "residual", "projected"]))
        if kind == "masked":
            mask = (maker.normal(*shape) > 0).double()
            made.append((Masked(leaf, mask), matrix * mask))
        elif kind == "residual":
            vectors, coefficients = maker.normal(2, *shape), maker.normal(size, 2)
            taken = torch.tensordot(coefficients, vectors, 1)
            made.append((Residual(leaf, Dense(vectors), coefficients), matrix - taken))
        else:
            directions, scales = F.normalize(maker.normal(shape[0], 1, shape[1]), dim=2), maker.normal(shape[0])
            shares = torch.einsum("brc,rmc->br", matrix, directions)[:, :, None]
            made.append(
                (RowProjected(leaf, directions, scales), (matrix - shares * directions[:, 0]) * scales[:, None])
            )
    return made


@few
@given(made=derived())
def test_leaves_around_leaves_equal_their_dense_form(made):
    check(made)


@few
@given(made=pairs() | grouped() | convolutions() | derived(), views=st.integers(2, 3), records=st.integers(1, 3))
def test_merged_leaves_equal_the_mean_of_the_dense_updates_of_each_record(made, views, records):
    (leaf, matrix), other = made
    samples = torch.arange(views * records) % len(leaf)
    samples[-1] = 0
    merged = leaf.select(samples).merged(views)
    check([(merged, matrix[samples].unflatten(0, (records, views)).mean(1)), other])
    assert (merged.square_ceilings() >= (1 - 1e-10) * merged.square_norms()).all()
    twice = leaf.select(samples.repeat_interleave(2)).merged(2).merged(views)
    assert len(twice) == records
    torch.testing.assert_close(twice.dense().sum(0), matrix[samples].sum(0) / views, rtol=1e-10, atol=1e-10)
