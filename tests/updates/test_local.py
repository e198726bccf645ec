"""Local steps: equal to training a copy of the model for each sample, without coupling between samples."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from gnomon.errors import SettingError
from gnomon.models import paper_cnn, resnet20
from gnomon.updates import Dense, Factored, forward_rule, gradients, local_sgd, rule
from gnomon.updates import local as local_module

from .zoo import CASES, B, build, cast, relative, squares

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


def copies(model, loss, inputs, targets, steps, lr, momentum=0.0):
    """The (B, p) displacements by a copy of the model for each sample."""
    rows = []
    for i in range(len(pytree.tree_leaves(inputs)[0])):
        own = copy.deepcopy(model)
        moving = [p for p in own.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(moving, lr, momentum=momentum)
        one, target = pytree.tree_map_only(torch.Tensor, lambda t, i=i: t[i : i + 1], (inputs, targets))
        for _ in range(steps):
            optimizer.zero_grad()
            outputs = own(**one) if isinstance(one, dict) else own(*one) if isinstance(one, tuple) else own(one)
            value = loss(outputs, target).sum()
            if value.requires_grad:
                value.backward()
            optimizer.step()
        still = [p for p in model.parameters() if p.requires_grad]
        rows.append(torch.cat([(a - b).detach().flatten() for a, b in zip(moving, still, strict=True)]))
    return torch.stack(rows)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", CASES)
def test_displacements_equal_copies_of_the_model(name, momentum):
    model, inputs = build(name, torch.float64)
    expected = copies(model, squares, inputs, None, 3, 0.01, momentum)
    updates = local_sgd(model, squares, inputs, None, steps=3, lr=0.01, momentum=momentum)
    assert relative(updates.dense(), expected) < 1e-10
    assert relative(updates.norms(), expected.norm(dim=1)) < 1e-10
    assert relative(updates.gram(updates), expected @ expected.T) < 1e-10
    weights = torch.rand(B, dtype=torch.float64)
    summed = torch.cat([v.flatten() for v in updates.weighted_sum(weights).values()])
    assert relative(summed, weights @ expected) < 1e-10


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_displacements_with_half_of_the_parameters_frozen(name, offset):
    model, inputs = build(name, torch.float64)
    for place, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(parameter.requires_grad and place % 2 == offset)
    if not any(p.requires_grad for p in model.parameters()):
        pytest.skip("nothing is left to train")
    expected = copies(model, squares, inputs, None, 3, 0.01)
    assert relative(local_sgd(model, squares, inputs, None, steps=3, lr=0.01).dense(), expected) < 1e-10


class Block(nn.Module):
    """A transformer block whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 13, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.layer(self.embed(x))).mean(1)


def mlp():
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 10))


MODELS = {
    "mlp": (mlp, lambda n: torch.randn(n, 20)),
    "cnn": (lambda: paper_cnn((1, 28, 28), 10), lambda n: torch.randn(n, 1, 28, 28)),
    "resnet-20": (lambda: resnet20((3, 32, 32), 10), lambda n: torch.randn(n, 3, 32, 32)),
    "transformer": (Block, lambda n: torch.randint(0, 13, (n, 6))),
}


def smooth(model):
    """Where an activation rounds to the other side of zero, float32 results of any two ways differ by 1e-4."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Tanh())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_real_architectures_equal_copies(name, steps, dtype, tolerance):
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model, inputs, targets = make().to(dtype), cast(draw(4), dtype), torch.randint(0, 10, (4,))
    if name == "resnet-20" and dtype is torch.float32:
        smooth(model)
    updates = local_sgd(model, CROSS_ENTROPY, inputs, targets, steps=steps, lr=0.02)
    # the reference rounds at the size of the weights, not of their change: compare with a float64 one
    exact = copies(model.double(), CROSS_ENTROPY, cast(inputs, torch.float64), targets, steps, 0.02)
    assert relative(updates.dense().double(), exact) < tolerance


def test_one_step_is_the_gradient_times_the_step_size():
    model, inputs = build("linear", torch.float32) if "linear" in CASES else (mlp(), torch.randn(B, 20))
    one = local_sgd(model, squares, inputs, None, steps=1, lr=0.25, momentum=0.5)
    assert torch.equal(one.dense(), gradients(model, squares, inputs, None).dense() * -0.25)


def test_losses_are_those_before_the_first_step():
    model, x = mlp(), torch.randn(5, 20)
    before = gradients(model, squares, x, None).losses
    assert torch.equal(local_sgd(model, squares, x, None, steps=3, lr=0.1).losses, before)


@pytest.mark.parametrize("name", MODELS)
def test_other_samples_change_nothing(name):
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model, inputs = make().double(), cast(draw(6), torch.float64)
    targets = torch.randint(0, 10, (6,))
    whole = local_sgd(model, CROSS_ENTROPY, inputs, targets, steps=4, lr=0.05, momentum=0.5).dense()
    for order in (torch.tensor([3, 1, 5, 0]), torch.tensor([2]), torch.tensor([5, 4, 3, 2, 1, 0])):
        some = local_sgd(model, CROSS_ENTROPY, inputs[order], targets[order], steps=4, lr=0.05, momentum=0.5).dense()
        assert relative(some, whole[order]) < 1e-12


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_broken_sample_does_not_reach_the_others(name):
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model, inputs, targets = make(), draw(4), torch.randint(0, 10, (4,))
    clean = local_sgd(model, CROSS_ENTROPY, inputs, targets, steps=3, lr=0.05)
    broken = inputs.clone()
    broken[1] = torch.nan
    dirty = local_sgd(model, CROSS_ENTROPY, broken, targets, steps=3, lr=0.05)
    others = torch.tensor([0, 2, 3])
    assert torch.allclose(dirty.dense()[others], clean.dense()[others], rtol=1e-5)
    assert not bool(torch.isfinite(dirty.norms()[1]))


def test_the_model_is_left_as_it_was():
    model, x = paper_cnn((1, 28, 28), 10), torch.randn(3, 1, 28, 28)
    before = copy.deepcopy(model.state_dict())
    local_sgd(model, CROSS_ENTROPY, x, torch.tensor([0, 1, 2]), steps=3, lr=0.5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    for module in model.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks


def test_wide_layers_stay_low_rank_and_first_layers_do_not_grow():
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(7, 64)
    updates = local_sgd(model, squares, x, None, steps=10, lr=0.01)
    first, second = updates.leaves["0.weight"], updates.leaves["2.weight"]
    assert isinstance(first, Factored)
    assert isinstance(second, Factored)
    assert first.length == 1  # it saw the same record ten times
    assert second.length == 10


def test_many_rows_are_written_out():
    model, x = nn.Linear(4, 3), torch.randn(2, 50, 4)
    assert isinstance(local_sgd(model, squares, x, None, steps=3, lr=0.01).leaves["weight"], Dense)


class Curved(nn.Module):
    """Not linear in its parameter, with rules that read its value."""

    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.Parameter(torch.rand(4))

    def forward(self, x):
        return torch.sin(self.angle * x)


class CurvedToo(Curved):
    def forward(self, x):
        return torch.sin(self.angle * x) + 0


@rule(Curved)
def curved(module, inputs, grad):
    return {"angle": Dense(grad * inputs * torch.cos(module.angle.detach() * inputs))}


@forward_rule(CurvedToo)
def curved_too(module, tap, x):
    angle = module.angle.detach()
    return tap(
        x, torch.sin(module.angle * x), lambda inputs, grad: {"angle": Dense(grad * inputs * torch.cos(angle * inputs))}
    )


@pytest.mark.parametrize("kind", [Curved, CurvedToo])
def test_rules_that_say_nothing_of_local_steps_are_still_right(kind):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), kind(), nn.Linear(4, 2)).double(), torch.randn(5, 4).double()
    expected = copies(model, squares, x, None, 4, 0.1)
    assert relative(local_sgd(model, squares, x, None, steps=4, lr=0.1).dense(), expected) < 1e-10


def test_copies_are_made_in_parts(monkeypatch):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.place, self.out = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(torch.tanh(x + self.place).mean(1))

    monkeypatch.setattr(local_module, "COPY_BYTES", 1)
    model, x = Own().double(), torch.randn(5, 3, 4).double()
    expected = copies(model, squares, x, None, 3, 0.1, 0.5)
    assert relative(local_sgd(model, squares, x, None, steps=3, lr=0.1, momentum=0.5).dense(), expected) < 1e-10


def test_nobody_came():
    updates = local_sgd(mlp(), squares, torch.zeros(0, 20), None, steps=3, lr=0.1)
    assert len(updates) == 0
    assert all(not value.any() for value in updates.weighted_sum(torch.zeros(0)).values())


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"steps": 0, "lr": 0.1}, "local-steps"),
        ({"steps": 2, "lr": 0.0}, "local-lr"),
        ({"steps": 2, "lr": float("nan")}, "local-lr"),
        ({"steps": 2, "lr": 0.1, "momentum": 1.0}, "local-momentum"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, name):
    with pytest.raises(SettingError, match=name):
        local_sgd(mlp(), squares, torch.randn(2, 20), None, **settings)


def test_a_path_that_turns_during_local_steps_is_refused():
    class Turning(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.a(x) if self.calls < 4 else F.relu(self.b(x))

    with pytest.raises(ValueError, match=r"another path|some local steps"):
        local_sgd(Turning(), squares, torch.randn(3, 2), None, steps=4, lr=0.1)
