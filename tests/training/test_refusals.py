"""Models in which samples interact are refused before anything is released."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gnomon
from gnomon.training import NotPrivate

PER_SAMPLE = nn.CrossEntropyLoss(reduction="none")


def build(model: nn.Module, loss=PER_SAMPLE, **settings) -> gnomon.Trainer:
    return gnomon.Trainer(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1),
        sample_rate=0.5, expected_batch_size=8, noise_multiplier=1.0, target_delta=1e-3, steps=2,
        progress=False, **settings,
    )  # fmt: skip


def data(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, *shape), torch.randint(0, 2, (16,))


class Wrapped(nn.Module):
    def __init__(self, mix) -> None:
        super().__init__()
        self.layer, self.mix = nn.Linear(4, 2), mix

    def forward(self, x):
        return self.layer(self.mix(x))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        frozen(nn.BatchNorm1d(4)),
        nn.BatchNorm1d(4, affine=False),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.SyncBatchNorm(4),
        nn.BatchNorm1d(4).eval(),
    ],
)
def test_batch_norm_modules_are_refused_at_construction_in_any_form(norm):
    with pytest.raises(NotPrivate, match="mixes the samples"):
        build(nn.Sequential(norm, nn.Linear(4, 2)))


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: x - x.mean(0),
        lambda x: x / x.abs().max(),
        lambda x: x + 0.01 * x.sum(0, keepdim=True),
        lambda x: x * len(x),
        lambda x: x.roll(1, 0),
        lambda x: x.sort(0).values,
    ],
    ids=["functional batch norm", "centred", "scaled", "weak sum", "counted", "shifted", "sorted"],
)
def test_hidden_dependence_is_found_before_the_first_release(mix):
    t = build(Wrapped(mix))
    with pytest.raises(NotPrivate, match="mixes samples"):
        t.fit(data(4))
    assert t.account.steps == 0


def test_dependence_is_found_at_construction_when_an_example_is_given():
    with pytest.raises(NotPrivate):
        build(Wrapped(lambda x: x - x.mean(0)), example=data(4))


def test_a_loss_that_compares_samples_is_refused():
    def ranking(outputs, targets):
        return PER_SAMPLE(outputs, targets) + outputs[:, 0] * outputs[:, 0].mean()

    with pytest.raises(NotPrivate):
        build(nn.Linear(4, 2), ranking).fit(data(4))


def test_buffers_that_a_forward_pass_changes_are_refused():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen += x.detach().sum(0)
            return self.layer(x)

    model = Counting()
    t = build(model)
    with pytest.raises(NotPrivate, match="'seen'"):
        t.fit(data(4))
    assert not model.seen.any()


def test_instance_norm_with_running_statistics_is_refused():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(), nn.Linear(8, 2)
    )
    with pytest.raises(NotPrivate):
        build(model).fit(data(1, 4, 4))


@pytest.mark.parametrize(
    "middle",
    [
        nn.LayerNorm(4),
        nn.Dropout(0.5),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
        nn.PReLU(),
        nn.Identity(),
    ],
)
def test_models_of_independent_samples_pass(middle):
    t = build(nn.Sequential(middle, nn.Linear(4, 2)))
    assert t.fit(data(4)).steps == 2


def test_functional_dropout_passes():
    t = build(Wrapped(lambda x: F.dropout(x, 0.5)))
    assert t.fit(data(4)).steps == 2


def test_the_check_leaves_model_and_random_state_alone():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    model[0].eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x, y = data(4)
    random = torch.get_rng_state()
    build(model, example=(x, y))
    assert torch.equal(random, torch.get_rng_state())
    assert not model[0].training
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_an_optimizer_of_other_parameters_is_refused():
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    settings = {
        "sample_rate": 0.5,
        "expected_batch_size": 8,
        "noise_multiplier": 1.0,
        "target_delta": 1e-3,
        "steps": 2,
    }
    with pytest.raises(ValueError, match="does not hold weight, bias"):
        gnomon.Trainer(model, PER_SAMPLE, torch.optim.SGD(other.parameters(), lr=1), **settings)
    both = [*model.parameters(), *other.parameters()]
    with pytest.raises(ValueError, match="not the model's"):
        gnomon.Trainer(model, PER_SAMPLE, torch.optim.SGD(both, lr=1), **settings)
    with pytest.raises(ValueError, match="nothing to train"):
        gnomon.Trainer(frozen(nn.Linear(4, 2)), PER_SAMPLE, torch.optim.SGD(other.parameters(), lr=1), **settings)
