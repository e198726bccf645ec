"""The engine of a private step, used without a Trainer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gnomon
from gnomon import methods
from gnomon.release import SeededNoise
from gnomon.sampling import FullBatch
from gnomon.training import Mechanism, NotPrivate, PrivateStep

LOSS = nn.CrossEntropyLoss(reduction="none")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def batch(size: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(size, 4, generator=draw), torch.randint(0, 3, (size,), generator=draw)


def engine(model: nn.Module, method=None, **settings) -> PrivateStep:
    claim = {"max_grad_norm": 0.5, "noise_multiplier": 0.0, "expected_batch_size": 12, "steps": 1, "delta": 1e-5}
    claim |= {name: settings.pop(name) for name in list(settings) if name in claim}
    mechanism = Mechanism(FullBatch(), method=method or methods.dp_sgd(), **claim)
    return PrivateStep(model, LOSS, mechanism, **({"noise": SeededNoise(0)} | settings))


def flat(vector) -> torch.Tensor:
    return torch.cat([value.flatten() for value in vector.values()])


def clipped_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float = 0.5) -> torch.Tensor:
    """The sum that a loop over single samples gives."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for one, target in zip(x, y, strict=True):
        grads = torch.autograd.grad(LOSS(model(one[None]), target[None]).sum(), list(model.parameters()))
        grad = torch.cat([g.flatten() for g in grads])
        total += grad * min(1.0, bound / float(grad.norm()))
    return total


def test_a_step_is_the_clipped_sum_over_the_expected_batch_size():
    model, (x, y) = network(), batch()
    step = engine(model)
    step.accumulate(x, y)
    torch.testing.assert_close(flat(step.release().coordinates) * 12, clipped_sum(model, x, y), rtol=1e-4, atol=1e-5)


def test_physical_batches_give_the_step_of_the_whole_one_and_one_draw_of_noise():
    x, y = batch()
    found = []
    for cuts in ((12,), (5, 0, 7), (1,) * 12):
        charged: list[int] = []
        step = engine(network(), noise_multiplier=1.0, charge=lambda charged=charged: charged.append(1))
        for some, targets in zip(x.split(cuts), y.split(cuts), strict=True):
            step.accumulate(some, targets)
        found.append(flat(step.release().coordinates))
        assert charged == [1]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-5)


def test_a_release_without_records_is_noise_and_is_charged():
    charged: list[int] = []
    step = engine(network(), noise_multiplier=3.0, charge=lambda: charged.append(1))
    released = flat(step.release().coordinates)
    assert charged == [1]
    assert 0.05 < float(released.std()) < 0.4, "standard deviation 3 x 0.5 / 12"


@pytest.mark.parametrize("name", ["dp-sgd", "pcdp", "pdp", "rsdp"])
def test_the_engine_moves_a_model_as_the_trainer_does(name):
    public = batch(10)
    method = methods.METHODS[name](public, rank=3) if name in ("pcdp", "pdp") else methods.METHODS[name]()
    ours, theirs = network(), network()
    step = engine(ours, method, noise_multiplier=1.0, steps=1)
    step.accumulate(*batch())
    step.apply(step.release(), torch.optim.SGD(ours.parameters(), lr=0.5))
    trainer = gnomon.Trainer(
        theirs, LOSS, torch.optim.SGD(theirs.parameters(), lr=0.5), method=method, max_grad_norm=0.5,
        sampler=gnomon.accounting.FullBatch(), expected_batch_size=12, noise_multiplier=1.0, target_delta=1e-5, steps=1,
        noise=SeededNoise(0), progress=False,
    )  # fmt: skip
    x, y = batch()
    trainer.fit((x + 1e-7, y))  # not the public records
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_preview_takes_no_step_and_shows_what_one_would_admit():
    model, (x, y) = network(), batch()
    step = engine(model, noise_multiplier=1.0)
    view = step.preview(x, y)
    assert step.taken == 0
    torch.testing.assert_close(
        flat(view.updates.weighted_sum(view.admitted.weights[:, 0])), clipped_sum(model, x, y), rtol=1e-4, atol=1e-5
    )
    step.accumulate(x, y)
    again = engine(network(), noise_multiplier=1.0)
    again.accumulate(x, y)
    assert torch.equal(flat(step.release().coordinates), flat(again.release().coordinates)), "no noise was used up"


class Remembering(nn.Linear):
    """Keeps the last record that it saw."""

    seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x[-1].detach().clone()
        return super().forward(x)


def test_a_step_that_fails_leaves_nothing_behind_and_the_next_one_begins_anew():
    model = Remembering(4, 3)
    charged: list[int] = []
    step = engine(model, charge=lambda: charged.append(1))
    step.accumulate(*batch())
    with pytest.raises(NotPrivate, match="seen"):
        step.release()
    assert model.seen is None
    assert (charged, step.taken) == ([], 0)
    with pytest.raises(IndexError):
        step.accumulate(batch()[0], torch.full((12,), 7))
    assert model.seen is None


def test_the_state_of_an_engine_is_its_number_of_steps():
    step = engine(network())
    step.release()
    other = engine(network())
    other.load_state_dict(step.state_dict())
    assert other.taken == other.context().step == 1
