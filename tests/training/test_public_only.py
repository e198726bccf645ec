"""Training on public records alone: convergence, repeatability and the choice of the solver."""

import math

import pytest
import torch
from torch import nn

from gnomon.data import DataError
from gnomon.errors import SettingError
from gnomon.training import FullBatchAdam, FullBatchLBFGS, train_on_public
from tests.helpers import LOSS

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=GENERATOR)
PUBLIC = X, (X[:, 0] + 0.5 * torch.randn(40, generator=GENERATOR) > 0).long()


def made(*layers):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 2)) if layers else nn.Linear(6, 2)


def objective(model, weight_decay):
    penalty = sum(p.square().sum() for p in model.parameters())
    return LOSS(model(PUBLIC[0]), PUBLIC[1]).mean() + weight_decay / 2 * penalty


def test_a_convex_problem_is_solved_to_its_optimum_from_anywhere():
    results = []
    for start in (0.0, 3.0):
        model = made()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(start)
        train_on_public(model, LOSS, PUBLIC, weight_decay=0.01)
        gradients = torch.autograd.grad(objective(model, 0.01), list(model.parameters()))
        assert max(float(g.abs().max()) for g in gradients) < 1e-4
        results.append(model.weight.detach())
    torch.testing.assert_close(results[0], results[1], atol=1e-3, rtol=1e-2)


def test_adam_comes_to_the_optimum_of_the_other_solver():
    values = []
    for solver in (FullBatchLBFGS(), FullBatchAdam(max_steps=5000, lr=0.01, tolerance=1e-4)):
        model = made()
        train_on_public(model, LOSS, PUBLIC, weight_decay=0.01, solver=solver)
        values.append(float(objective(model, 0.01).detach()))
    assert values[1] == pytest.approx(values[0], rel=0.02)


def test_weight_decay_bounds_the_weights_of_separable_records():
    x = torch.tensor([[-1.0], [1.0]])
    lengths = []
    for weight_decay in (0.1, 0.001):
        model = nn.Linear(1, 2)
        train_on_public(model, LOSS, (x, torch.tensor([0, 1])), weight_decay=weight_decay)
        lengths.append(float(model.weight.detach().norm()))
    assert lengths[0] < lengths[1] < 20


@pytest.mark.parametrize("layers", [(nn.ReLU(),), (nn.Dropout(0.5),)], ids=["relu", "dropout"])
def test_a_seed_gives_the_same_weights_and_the_global_generator_does_not_move(layers):
    state = torch.random.get_rng_state()
    weights = []
    for seed in (0, 0, 1):
        model = made(*layers)
        train_on_public(model, LOSS, PUBLIC, seed=seed)
        weights.append(model[0].weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2]) == isinstance(layers[0], nn.ReLU)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_augmentation_draws_from_the_given_generator():
    drawn = []

    def jittered(inputs, targets, generator):
        noise = torch.randn(inputs.shape, generator=generator)
        drawn.append(noise)
        return inputs + 0.1 * noise, targets

    weights = []
    for _ in range(2):
        model = made()
        train_on_public(model, LOSS, PUBLIC, augment=jittered, solver=FullBatchAdam(max_steps=5))
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)
    assert not torch.equal(drawn[0], drawn[1])


def test_frozen_parameters_stay_and_no_gradient_is_left():
    model = made(nn.ReLU())
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    train_on_public(model, LOSS, PUBLIC)
    assert torch.equal(model[0].weight, before)
    assert all(p.grad is None for p in model.parameters())


def test_adam_stops_when_the_objective_stops_falling():
    weight = nn.Parameter(torch.ones(1))
    assert FullBatchAdam(max_steps=1000, patience=10).minimise(lambda: 0 * weight.sum() + 1, [weight]) == 11


def test_records_with_an_infinite_loss_are_refused_and_the_model_stays():
    model = made()
    before = model.weight.detach().clone()
    x = PUBLIC[0].clone()
    x[3] = math.nan
    with pytest.raises(DataError, match="the public records have a mean loss of nan"):
        train_on_public(model, LOSS, (x, PUBLIC[1]))
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    "call",
    [
        lambda: FullBatchAdam(max_steps=0),
        lambda: FullBatchAdam(lr=-1.0),
        lambda: FullBatchLBFGS(tolerance=0.0),
        lambda: FullBatchLBFGS(max_iterations=0),
        lambda: train_on_public(made(), LOSS, PUBLIC, weight_decay=-1.0),
        lambda: train_on_public(made(), LOSS, PUBLIC, seed=-1),
    ],
)
def test_settings_out_of_range_are_refused(call):
    with pytest.raises(SettingError, match="is invalid"):
        call()
