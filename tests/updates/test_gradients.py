"""Per-sample gradients equal a loop of single-sample backward passes."""

from __future__ import annotations

import pytest
import torch

from gnomon.updates import gradients

from .zoo import CASES, B, loop, squares

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def cast(inputs, dtype):
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)


def build(name: str, dtype: torch.dtype, size: int = B):
    torch.manual_seed(0)
    case = CASES[name]
    return case.model().to(dtype), cast(case.inputs(size), dtype)


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
