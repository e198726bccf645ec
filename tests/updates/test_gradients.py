"""Per-sample gradients equal a loop of single-sample backward passes."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from itertools import permutations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gnomon.updates import Layouts, gradients, local_sgd
from gnomon.updates.graph import make_gradients_contiguous, node

from .zoo import CASES, B, build, cast, loop, relative, squares

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_updates_equal_a_loop_of_single_samples(name, dtype):
    model, inputs = build(name, dtype)
    expected = loop(model, squares, inputs, None)
    updates = gradients(model, squares, inputs, None)
    tolerance = TOLERANCE[dtype]
    assert len(updates) == B
    assert updates.names == tuple(n for n, p in model.named_parameters() if p.requires_grad)
    assert relative(updates.dense(), expected) < tolerance
    assert relative(updates.norms(), expected.double().norm(dim=1)) < tolerance
    assert relative(updates.gram(updates), expected @ expected.T) < tolerance
    weights = torch.rand(B, dtype=dtype)
    summed = torch.cat([v.flatten() for v in updates.weighted_sum(weights).values()])
    assert relative(summed, weights @ expected) < tolerance
    assert all(
        p.shape == s.shape
        for p, s in zip(
            (p for p in model.parameters() if p.requires_grad),
            updates.weighted_sum(weights).values(),
            strict=True,
        )
    )


@pytest.mark.parametrize("name", CASES)
def test_updates_of_several_views_are_the_means_of_their_gradients(name):
    model, inputs = build(name, torch.float64, 6)
    expected = loop(model, squares, inputs, None).unflatten(0, (3, 2)).mean(1)
    for updates in (
        gradients(model, squares, inputs, None, views=2),
        gradients(model, squares, inputs, None).merged(2),
    ):
        assert len(updates) == 3
        assert relative(updates.dense(), expected) < 1e-10
        assert relative(updates.norms(), expected.norm(dim=1)) < 1e-10
        assert bool((updates.ceilings_by_parameter() >= (1 - 1e-10) * updates.norms_by_parameter()).all())
        weights = torch.rand(3, dtype=torch.float64)
        summed = torch.cat([v.flatten() for v in updates.weighted_sum(weights).values()])
        assert relative(summed, weights @ expected) < 1e-10


@pytest.mark.parametrize("name", CASES)
def test_gram_with_another_batch_equals_the_dense_product(name):
    model, inputs = build(name, torch.float64)
    other = cast(CASES[name].inputs(3), torch.float64)
    mine, theirs = gradients(model, squares, inputs, None), gradients(model, squares, other, None)
    assert relative(mine.gram(theirs), mine.dense() @ theirs.dense().T) < 1e-10


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [0, 1])
def test_empty_and_single_batches_work(name, size):
    model, inputs = build(name, torch.float64, size)
    updates = gradients(model, squares, inputs, None)
    assert updates.norms().shape == (size,)
    assert updates.dense().shape == (size, sum(p.numel() for p in model.parameters() if p.requires_grad))
    assert all(torch.isfinite(v).all() for v in updates.weighted_sum(torch.ones(size)).values())


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_left_as_it_was(name):
    model, inputs = build(name, torch.float64)
    before = [dict(m.__dict__) for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    gradients(model, squares, inputs, None)
    assert torch.equal(random, torch.get_rng_state())
    for module, attributes in zip(model.modules(), before, strict=True):
        assert module.__dict__.keys() == attributes.keys()
        assert not module._forward_hooks
        assert "forward" not in module.__dict__
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    for p in model.parameters():
        assert p.grad is None
        assert not vars(p)
        assert not p._backward_hooks


class Shared(nn.Module):
    """A module with two names, whose weight is read outside of it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.again = nn.ModuleList([self.table])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x).tanh() @ self.again[0].weight.T


@pytest.mark.parametrize("update", [gradients, partial(local_sgd, steps=2, lr=0.1)])
def test_a_parameter_whose_module_has_two_names_stays_in_its_place(update):
    model, tokens = Shared(), torch.randint(0, 5, (3, 2))
    before = model.table.weight
    first = update(model, squares, tokens, None).dense()
    assert model.table.weight is model.again[0].weight is before
    assert torch.equal(update(model, squares, tokens, None).dense(), first)


def instances() -> nn.Module:
    layers = (nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, affine=True), nn.Softplus(), nn.Conv2d(2, 2, 1), nn.Tanh())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 4))


@pytest.mark.parametrize("update", [gradients, partial(local_sgd, steps=3, lr=0.1)])
def test_a_broken_record_does_not_reach_others_through_instance_normalisation(update):
    torch.manual_seed(0)
    model, x = instances(), torch.randn(4, 1, 3, 4)
    alone = update(model, squares, x[:2], None).dense()
    x[2:] = torch.nan
    torch.testing.assert_close(update(model, squares, x, None).dense()[:2], alone, rtol=1e-4, atol=1e-5)


def test_instance_normalisation_is_right_whatever_the_order_of_a_gradient_in_memory():
    torch.manual_seed(0)
    x = torch.randn(3, 2, 1, 2, dtype=torch.float64, requires_grad=True)
    mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), unbiased=False, keepdim=True)
    by_hand = (x - mean) / (variance + 1e-5).sqrt()
    for order in permutations(range(4)):
        back = [order.index(dim) for dim in range(4)]
        slope = torch.randn([x.shape[dim] for dim in order], dtype=torch.float64).permute(back)
        output = F.instance_norm(x)
        make_gradients_contiguous([node(output)])
        (found,) = torch.autograd.grad(output, x, slope)
        (expected,) = torch.autograd.grad(by_hand, x, slope, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


class Turned(nn.Module):
    """Positions by an index, so that the order of the samples is looked at."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, torch.arange(x.shape[1] - 1, -1, -1)]


def test_rounding_is_not_taken_for_another_order_of_the_samples():
    """A norm of two numbers gives 1 and -1 whatever they are: what comes back is rounding."""
    torch.manual_seed(0)
    for _ in range(50):
        layers = (nn.Embedding(7, 2), nn.Linear(2, 2), nn.LayerNorm(2, elementwise_affine=False), nn.Linear(2, 9))
        model = nn.Sequential(*layers, nn.Sigmoid(), Turned(), nn.Linear(9, 3))
        assert len(gradients(model, squares, torch.randint(0, 7, (6, 5)), None)) == 6


def test_a_cache_of_layouts_saves_forward_passes_and_changes_no_number():
    calls = []
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model.register_forward_hook(lambda *arguments: calls.append(1))
    loss = lambda outputs, targets: outputs.square().sum(1)
    x, layouts = torch.randn(5, 4), Layouts()
    alone = gradients(model, loss, x, None).dense()
    assert len(calls) == 3, "two to work out the layout, and the one that counts"
    first, again = (gradients(model, loss, x, None, layouts=layouts).dense() for _ in range(2))
    assert len(calls) == 3 + 3 + 1
    assert torch.equal(alone, first)
    assert torch.equal(alone, again)


def test_a_cache_of_layouts_does_not_keep_a_model_alive():
    model, layouts = nn.Linear(4, 3), Layouts()
    gradients(model, lambda outputs, targets: outputs.sum(1), torch.randn(5, 4), None, layouts=layouts)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
