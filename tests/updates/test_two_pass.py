"""Updates under activation checkpointing: the same numbers, without the memory that checkpoints were to save."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnomon.clipping import Flat, PerLayer
from gnomon.release import Door, SeededNoise
from gnomon.updates import gradients
from gnomon.updates.two_pass import TwoPassUpdates

from .zoo import loop, squares

D = torch.float64


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gain = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.down(torch.tanh(self.up(self.norm(x))))


class Stack(nn.Module):
    """Tokens with positions, blocks of which each is a checkpoint, and a head that may be tied to the table."""

    def __init__(self, blocks: int = 3, width: int = 6, tied: bool = False, checkpoints: bool = True) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(11, width), nn.Embedding(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 11, bias=False)
        self.checkpoints = checkpoints
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.checkpoints else block(h)
        return self.head(h)


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def model(request) -> Stack:
    torch.manual_seed(0)
    return Stack(tied=request.param).to(D)


TOKENS = torch.randint(0, 11, (5, 4), generator=torch.Generator().manual_seed(1))


def test_norms_and_sums_equal_a_loop_of_single_samples(model):
    expected, updates = loop(model, squares, TOKENS, None), gradients(model, squares, TOKENS, None)
    assert isinstance(updates, TwoPassUpdates)
    torch.testing.assert_close(updates.norms(), expected.norm(dim=1))
    weights = torch.rand(5, dtype=D)
    summed = torch.cat([value.flatten() for value in updates.weighted_sum(weights).values()])
    torch.testing.assert_close(summed, weights @ expected)
    assert "_full" not in vars(updates), "gradients were kept in full"
    torch.testing.assert_close(updates.dense(), expected)
    assert all(not module._forward_hooks and "forward" not in vars(module) for module in model.modules())


def test_several_views_are_measured_and_summed_without_their_gradients(model):
    tokens = TOKENS.repeat_interleave(2, 0).roll(1, 1).clone()
    tokens[::2] = TOKENS
    expected = loop(model, squares, tokens, None).unflatten(0, (5, 2)).mean(1)
    updates = gradients(model, squares, tokens, None, views=2)
    assert isinstance(updates, TwoPassUpdates)
    assert len(updates) == 5
    torch.testing.assert_close(updates.norms(), expected.norm(dim=1))
    weights = torch.rand(5, dtype=D)
    summed = torch.cat([value.flatten() for value in updates.weighted_sum(weights).values()])
    torch.testing.assert_close(summed, weights @ expected)
    assert "_full" not in vars(updates), "gradients were kept in full"
    torch.testing.assert_close(updates.dense(), expected)
    per_parameter = updates.weighted_sum(weights[:, None].expand(5, len(updates.names)).contiguous())
    torch.testing.assert_close(torch.cat([value.flatten() for value in per_parameter.values()]), weights @ expected)


@pytest.mark.parametrize("rule", [Flat(), PerLayer()])
def test_a_release_is_that_of_the_same_model_without_checkpoints(model, rule):
    plain = copy.deepcopy(model)
    plain.checkpoints = False
    released = []
    for one in (model, plain):
        like = {name: p.detach() for name, p in one.named_parameters()}
        door = Door(like, max_grad_norm=0.1, noise_multiplier=1.0, expected_batch_size=5, noise=SeededNoise(0))
        door.admit(gradients(one, squares, TOKENS, None), rule)
        released.append(torch.cat([value.flatten() for value in door.release().values()]))
    torch.testing.assert_close(released[0], released[1])


def test_a_sample_of_weight_zero_adds_nothing_even_if_it_is_not_finite(model):
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return squares(outputs, None) / targets

    targets = torch.ones(5, dtype=D)
    targets[2] = 0
    updates = gradients(model, loss, TOKENS, targets)
    assert not torch.isfinite(updates.norms()[2])
    summed = updates.weighted_sum(torch.tensor([1.0, 1, 0, 1, 1], dtype=D))
    kept = [0, 1, 3, 4]
    expected = loop(model, squares, TOKENS[kept], None).sum(0)
    torch.testing.assert_close(torch.cat([value.flatten() for value in summed.values()]), expected)


class Masked(nn.Module):
    """Dropout inside a checkpoint, which may draw another mask each time it is recomputed."""

    def __init__(self, share: float, preserve: bool = True) -> None:
        super().__init__()
        self.body, self.head, self.drop, self.preserve = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(share), preserve

    def forward(self, x: Tensor) -> Tensor:
        def masked(v: Tensor) -> Tensor:
            return self.drop(self.body(v))

        return self.head(checkpoint(masked, x, use_reentrant=False, preserve_rng_state=self.preserve))


def noisy_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs + torch.randn_like(outputs)).square().sum(1)


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize(("share", "loss"), [(0.5, squares), (0.0, noisy_squares)])
def test_norms_are_those_of_the_sums_whatever_model_and_loss_draw(share, loss, preserve):
    torch.manual_seed(0)
    model = Masked(share, preserve).train()
    updates = gradients(model, loss, torch.randn(5, 6), torch.randn(5, 3))
    assert isinstance(updates, TwoPassUpdates) == (share == 0)
    norms = updates.norms()
    for one, norm in zip(torch.eye(5), norms, strict=True):
        for weights in (one, one[:, None].expand(-1, len(updates.names))):  # flat, and with a weight per parameter
            length = torch.cat([part.flatten() for part in updates.weighted_sum(weights).values()]).norm()
            assert float(length) == pytest.approx(float(norm), rel=1e-5)
