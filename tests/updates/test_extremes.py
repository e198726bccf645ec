"""A finite update has the norm that it has, however large or small the numbers are that it is made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gnomon.clipping import Flat
from gnomon.release import Door, SeededNoise
from gnomon.updates import gradients, local_sgd
from gnomon.updates.leaves import Convolution, Dense, Factored, Indexed, Leaf, Masked, Residual, Summed

SCALES = [0.0, 1e-45, 1e-40, 1e-30, 1e-23, 1e-19, 1e-13, 1e-6, 1.0, 1e6, 1e13, 1e19, 1e23, 1e30, 3e38]
SMALL = 1e-20
"""Norms below this may be wrong by as much: no clip bound is so small that it would matter."""


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def factored(scale_in: float, scale_out: float, length: int, width: int = 20, groups: int = 1) -> Factored:
    a, b = normal(3, groups, length, width) * scale_in, normal(3, groups, length, width + 1)[..., 1:] * scale_out
    b[0] = 0  # a record whose gradient vanishes, beside others
    return Factored(a, b, torch.Size([groups * width, width]))


def convolution(scale_in: float, scale_out: float, width: int, groups: int = 1) -> Convolution:
    a, b = normal(3, width, 7) * scale_in, normal(3, width, 3) * scale_out
    b[0] = 0
    return Convolution(a, b, torch.Size([width, width // groups, 3]), [2], [1], groups)


def indexed(scale: float, width: int = 8) -> Indexed:
    index = torch.tensor([[0, 1, 1], [2, 2, 2], [3, 4, 5]])
    return Indexed(index, normal(3, 3, width).abs() * scale, torch.Size([6, width]))


def residual(leaf: Leaf) -> Residual:
    public = Dense(normal(4, *leaf.shape) / leaf.shape.numel() ** 0.5)
    return Residual(leaf, public, leaf.double().gram(public.double()).float())


MASK = (torch.arange(400).view(20, 20) % 3 > 0).float()

LEAVES: dict[str, Callable[[float, float], Leaf]] = {
    "one token": lambda a, b: factored(a, b, 1),
    "ghost norms": lambda a, b: factored(a, b, 3),
    "ghost norms in groups": lambda a, b: factored(a, b, 3, width=9, groups=2),
    "many tokens": lambda a, b: factored(a, b, 30),
    "convolution": lambda a, b: convolution(a, b, 4),
    "convolution, ghost norms": lambda a, b: convolution(a, b, 20),
    "convolution in groups": lambda a, b: convolution(a, b, 4, groups=2),
    "embedding": lambda a, b: indexed(b),
    "dense": lambda a, b: Dense(normal(3, 4, 5) * b),
    "used twice": lambda a, b: Summed([Dense(normal(3, 20, 20) * a), factored(a, b, 2)]),
    "tied table": lambda a, b: Summed(
        [indexed(b), Factored(normal(3, 1, 2, 8) * a, normal(3, 1, 2, 6) * b, torch.Size([6, 8]))]
    ),
    "masked": lambda a, b: Masked(factored(a, b, 1), MASK),
    "masked, ghost norms": lambda a, b: Masked(factored(a, b, 3), MASK),
    "residual": lambda a, b: residual(factored(a, b, 3)),
    "dense residual": lambda a, b: residual(Dense(normal(3, 20, 20) * b)),
}


def exact_norms(leaf: Leaf) -> Tensor:
    """By the matrices in float64, scaled so that no square leaves even that; infinite beyond float32."""
    rows = leaf.double().dense().double().flatten(1)
    largest = rows.abs().amax(1).clamp_min(1e-300)
    norms = (rows / largest[:, None]).norm(dim=1) * largest
    return torch.where(largest <= torch.finfo(torch.float32).max, norms, torch.inf)


@pytest.mark.parametrize("kind", LEAVES)
def test_every_finite_update_has_its_norm_and_a_ceiling_above_it(kind):
    for scale_in in SCALES:
        for scale_out in SCALES:
            leaf = LEAVES[kind](scale_in, scale_out)
            exact, norms, ceilings = exact_norms(leaf), leaf.square_norms().sqrt(), leaf.square_ceilings().sqrt()
            within = exact.isfinite()
            torch.testing.assert_close(norms[within], exact[within], rtol=1e-5, atol=SMALL)
            assert ceilings[within].isfinite().all()
            assert (ceilings >= (1 - 1e-5) * exact - SMALL)[within].all()


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_no_update_that_is_not_finite_has_a_finite_norm(kind, bad):
    for scales in ((bad, 1.0), (1.0, bad), (bad, 0.0), (bad, bad)):
        leaf = LEAVES[kind](*scales)
        broken = ~leaf.dense().flatten(1).isfinite().all(1)
        assert not leaf.square_norms()[broken].isfinite().any()


def test_what_a_mask_leaves_has_its_norm_beside_far_larger_numbers_that_it_takes_away():
    a, b = torch.tensor([[1e20, 1e-8]]), torch.tensor([[1e15]])
    leaf = Masked(Factored(a[:, None, None], b[:, None, None], torch.Size([1, 2])), torch.tensor([[0.0, 1.0]]))
    assert leaf.square_norms().sqrt().item() == pytest.approx(1e7, rel=1e-5)


def test_a_cell_that_no_window_reaches_says_nothing_about_the_update():
    x = torch.ones(2, 1, 4)
    x[0, 0, 3] = torch.nan
    leaf = Convolution(x, torch.ones(2, 1, 1), torch.Size([1, 1, 2]), [3], [1], 1)
    assert leaf.square_norms().tolist() == pytest.approx([2.0, 2.0])
    assert leaf.square_ceilings().tolist() == pytest.approx([2.0, 2.0])


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).sum(1)


@pytest.mark.parametrize("scale", [1e-13, 1e-19, 1e19])
def test_a_record_whose_gradient_vanishes_in_one_layer_counts_with_its_others(scale):
    """The second half of the model does not see the first: nothing comes back to it from there."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.used = nn.Linear(20, 20), nn.Linear(20, 20)

        def forward(self, x: Tensor) -> Tensor:
            return 0.0 * self.idle(x) + self.used(torch.ones_like(x))

    model, x = Halves(), torch.full((2, 3, 20), scale)
    updates = gradients(model, squares, x, torch.zeros(2, 3, 20))
    exact = updates.dense().double().norm(dim=1)
    torch.testing.assert_close(updates.norms(), exact, rtol=1e-5, atol=0)
    door = Door({name: p.detach() for name, p in model.named_parameters()}, 1.0, 0.0, 1.0, SeededNoise(0))
    assert (door.admit(updates, Flat()).weights > 0).all()


def test_local_steps_of_huge_inputs_and_tiny_errors_stay_finite():
    """The squares of the inputs are beyond float32, the steps that they make are not."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8, bias=False)
    x, y = torch.full((2, 8), 1e20), torch.zeros(2)
    loss = lambda outputs, targets: 0.1 * (outputs * 1e-20).square().sum(1)
    found = local_sgd(model, loss, x, y, steps=3, lr=0.5)
    exact = local_sgd(model.double(), loss, x.double(), y.double(), steps=3, lr=0.5)
    torch.testing.assert_close(found.dense().double(), exact.dense(), rtol=1e-4, atol=1e-6)


class Chosen(nn.Module):
    """Picks positions by an index, so that the order of samples is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[:, torch.tensor([0, 2, 1])]


@pytest.mark.parametrize("slope", [2.5e38, 3e-45, 1e-42])
def test_no_size_of_a_gradient_is_taken_for_another_order_of_the_samples(slope):
    loss = lambda outputs, targets: slope * outputs.sum(1)
    assert len(gradients(Chosen(), loss, torch.ones(5, 4), torch.zeros(5))) == 5
