"""Whoever chooses the weights of a model learns nothing from whether a step succeeds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gnomon
from gnomon.accounting import FullBatch
from gnomon.updates import gradients
from tests import helpers
from tests.helpers import LOSS


class AtEnd(nn.Module):
    """Reads the state at each sequence's own end, by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        ends = (x[:, :, 0] != 0).sum(1) - 1
        return self.head(self.body(x)[torch.arange(len(x)), ends])


class Choking(nn.Module):
    """Fails on what its weights make of a record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        if bool((out > 1e4).any()):
            raise ValueError("out of range")
        return out


def trainer(model: nn.Module, example: tuple[Tensor, Tensor], **settings) -> gnomon.Trainer:
    return helpers.trainer(
        model, seed=None, sampler=FullBatch(), expected_batch_size=1, noise_multiplier=0.0, target_delta=1e-5, steps=1,
        untrusted_weights=True, example=example, **settings,
    )  # fmt: skip


def moved(model: nn.Module, data: tuple[Tensor, Tensor], example: tuple[Tensor, Tensor]) -> Tensor:
    """Where one step without noise moves the weights."""
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    own = trainer(model, example)
    own.fit(data)
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


@pytest.mark.parametrize("size", [1e30, 3e38])
def test_a_record_whose_gradient_overflows_does_not_end_the_step(size):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(9, 5, 3, generator=draw) + 0.5, torch.arange(9) % 2
    example = torch.rand(8, 5, 3, generator=draw) + 0.5, torch.arange(8) % 2
    model = AtEnd()
    with torch.no_grad():
        model.head.weight.mul_(1e9)
    x[4] *= size / 1e9
    moved(model, (x, y), example)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_the_check_of_the_order_of_samples_does_not_depend_on_weights_that_cancel():
    draw = torch.Generator().manual_seed(1)
    model = AtEnd()
    with torch.no_grad():  # rows of the head that nearly cancel, a million times larger than what is left of them
        model.head.weight[0] = 1e6 * torch.randn(4, generator=draw)
        model.head.weight[1] = model.head.weight[0] * (1 + 1e-7)
    gradients(model, LOSS, 1e3 * torch.rand(50, 5, 3, generator=draw), torch.arange(50) % 2)


def test_a_record_on_which_the_model_fails_adds_nothing_and_tells_nothing():
    draw = torch.Generator().manual_seed(2)
    x, y = torch.rand(9, 3, generator=draw), torch.arange(9) % 2
    example = torch.rand(8, 3, generator=draw), torch.arange(8) % 2
    bad = x.clone()
    bad[4] = 1e8
    models = [Choking() for _ in range(2)]
    for model in models:
        with torch.no_grad():
            model.layer.weight.fill_(0.5)
            model.layer.bias.zero_()
    others = torch.arange(9) != 4
    with_it = moved(models[0], (bad, y), example)
    without = moved(models[1], (x[others], y[others]), example)
    torch.testing.assert_close(with_it, without, rtol=1e-5, atol=1e-6)


def test_a_step_of_ones_own_still_ends_with_the_error_of_the_model():
    model = Choking()
    with torch.no_grad():
        model.layer.weight.fill_(0.5)
    x, y = torch.rand(20, 3), torch.arange(20) % 2
    own = trainer(model, (x[:8], y[:8]))
    own.engine.untrusted_weights = False
    x[10] = 1e8
    with pytest.raises(ValueError, match="out of range"):
        own.fit((x, y))
