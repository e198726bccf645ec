"""Models that are not in the zoo: right, or refused with a reason, never silently wrong.

Samples that interact inside the model are not for `gradients` to find: the Trainer refuses them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from gnomon.errors import SettingError
from gnomon.updates import Layouts, gradients
from gnomon.updates.layouts import find_layout

from .zoo import loop, squares

B = 5
D = torch.float64


def normal(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, dtype=D)


def tokens() -> Tensor:
    return torch.randint(0, 11, (B, 4))


def model_of(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """A module with these parts and this forward pass."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return forward(self, *args, **kwargs)

    return Model()


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def hooked(module: nn.Module, before: bool = False, after: bool = False) -> nn.Module:
    if before:
        module.register_forward_pre_hook(lambda m, args: (args[0] * 2 + 1, *args[1:]))
    if after:
        triple = lambda out: (out[0] * 3, *out[1:]) if isinstance(out, tuple) else out * 3
        module.register_forward_hook(lambda m, args, out: triple(out))
    return module


def quietly(make: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Held:
    value: Tensor


class Gpt(nn.Module):
    """Tied table, learned positions, causal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions, self.norm = nn.Embedding(11, 8), nn.Embedding(4, 8), nn.LayerNorm(8)
        block = lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([block(), block()])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(h.dtype)
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h))


class Pass(nn.Module):
    """Holds a parameter and hands its input on."""

    def __init__(self, pair: bool = False) -> None:
        super().__init__()
        self.scale, self.pair = parameter(4), pair

    def forward(self, x: Tensor) -> Any:
        return (x, x * self.scale) if self.pair else x


class Scale(nn.Module):
    """No rule; `chain` makes one output depend on another."""

    def __init__(self, chain: bool = False) -> None:
        super().__init__()
        self.scale, self.chain = parameter(4), chain

    def forward(self, x: Tensor) -> Any:
        h = x * self.scale
        return (h, torch.tanh(h) * 2) if self.chain else h


class Extended(nn.Linear):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(inside, outside)
        self.scale = parameter(outside)


def cells(kind: type[nn.Module]) -> Callable[[], nn.Module]:
    def forward(self: Any, x: Tensor) -> Tensor:
        zeros = x.new_zeros(len(x), 5)
        state: Any = (zeros, zeros) if kind is nn.LSTMCell else zeros
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state

    return lambda: model_of(forward, cell=kind(4, 5))


def shared_layers() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    forward = lambda s, x: s.all[1](torch.tanh(s.all[0](x))).sum(1) + s.all[2](x)[:, 0]
    return model_of(forward, all=nn.ModuleList([first, second, first]))


def tied_by_three() -> nn.Module:
    forward = lambda s, x: s.table(s.pick(x.mT).argmax(1)) + s.head(s.pick(x.mT).mT)
    model = model_of(forward, pick=nn.Conv1d(4, 4, 1), table=nn.Embedding(4, 4), head=nn.Linear(4, 4))
    model.head.weight = model.table.weight
    return model


def nested_reuse() -> nn.Module:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    return nn.Sequential(inner, nn.Sequential(inner, nn.Linear(4, 4)), inner)


def tensor_hook(self: Any, x: Tensor) -> Tensor:
    h = self.first(x)
    h.register_hook(lambda grad: grad * 2)
    return self.second(h)


def backward_hook() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[2].register_full_backward_hook(lambda m, grad_in, grad_out: (grad_in[0] * 2,))
    return model


def checkpointed(*layers: nn.Module) -> nn.Module:
    forward = lambda s, x: s.head(checkpoint(s.body, x, use_reentrant=False))
    return model_of(forward, body=nn.Sequential(*layers), head=nn.Linear(4, 2))


def chained(h: Tensor) -> tuple[Tensor, Tensor]:
    return h, torch.tanh(h) * 2


def two() -> tuple[nn.Linear, nn.Linear]:
    return nn.Linear(4, 4), nn.Linear(4, 3)


RIGHT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "embedding bag": (lambda: nn.EmbeddingBag(11, 3, mode="sum"), tokens),
    "embedding bag, mean": (lambda: nn.Sequential(nn.EmbeddingBag(11, 3), nn.Linear(3, 2)), tokens),
    "gru cell": (cells(nn.GRUCell), normal(B, 3, 4)),
    "rnn cell": (cells(nn.RNNCell), normal(B, 3, 4)),
    "layers that share a weight": (shared_layers, normal(B, 3, 4)),
    "embedding and linear that share a weight": (tied_by_three, normal(B, 3, 4)),
    "nested reuse": (nested_reuse, normal(B, 4)),
    "named tuple": (
        lambda: model_of(lambda s, x: Pair(s.a(x), s.b(x) * 2), a=nn.Linear(4, 3), b=nn.PReLU()),
        normal(B, 4),
    ),
    "dataclass inside": (
        lambda: model_of(lambda s, x: s.inner(x).value, inner=model_of(lambda s, x: Held(x * s.p), p=parameter(4))),
        normal(B, 4),
    ),
    "dictionary with other things": (
        lambda: model_of(lambda s, x: {"h": s.layer(x)}, layer=nn.Linear(4, 3)),
        normal(B, 4),
    ),
    "weight used in and around its layer": (
        lambda: model_of(lambda s, x: F.linear(x, s.layer.weight) + s.layer(x), layer=nn.Linear(4, 4)),
        normal(B, 4),
    ),
    "normed convolution": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.Tanh()),
        normal(B, 3, 6, 6),
    ),
    "spectral norm, not training": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), nn.Tanh()).eval(),
        normal(B, 3, 6, 6),
    ),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(4, 4)), normal(B, 4)),
    "hook before a layer": (lambda: nn.Sequential(hooked(nn.Linear(4, 4), before=True)), normal(B, 4)),
    "hook after a layer": (
        lambda: nn.Sequential(hooked(nn.Linear(4, 4), after=True), nn.Tanh(), nn.Linear(4, 2)),
        normal(B, 4),
    ),
    "hooks around a recurrent layer": (
        lambda: model_of(lambda s, x: s.r(x)[0], r=hooked(nn.GRU(4, 5, batch_first=True), True, True)),
        normal(B, 3, 4),
    ),
    "hook after attention": (
        lambda: model_of(
            lambda s, x: s.r(x, x, x)[0], r=hooked(nn.MultiheadAttention(4, 2, batch_first=True), after=True)
        ),
        normal(B, 3, 4),
    ),
    "hook on a tensor": (
        lambda: model_of(tensor_hook, first=nn.Linear(4, 4), second=nn.Linear(4, 2)),
        normal(B, 4),
    ),
    "backward hook": (backward_hook, normal(B, 4)),
    "dropout, not training": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)).eval(),
        normal(B, 4),
    ),
    "batch norm, not training": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(),
        normal(B, 3, 6, 6),
    ),
    "inputs that require gradients": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 2)),
        lambda: torch.randn(B, 4, dtype=D, requires_grad=True),
    ),
    "transposed memory": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()),
        lambda: torch.randn(B, 6, 3, 6, dtype=D).transpose(1, 2),
    ),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, groups=2)).to(
            memory_format=torch.channels_last
        ),
        lambda: torch.randn(B, 3, 6, 6, dtype=D).to(memory_format=torch.channels_last),
    ),
    "one sample, expanded": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(144, 2)),
        lambda: torch.randn(1, 3, 6, 6, dtype=D).expand(B, -1, -1, -1),
    ),
    "strided and flipped memory": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Flatten(), nn.Linear(16, 2)),
        lambda: torch.randn(2 * B, 3, 12, 6, dtype=D)[::2, :, ::2].flip(0),
    ),
    "detached branch": (
        lambda: model_of(lambda s, x: s.b(s.a(x).detach()) + s.a(x), a=nn.Linear(4, 3), b=nn.Linear(3, 3)),
        normal(B, 4),
    ),
    "nested dictionaries": (
        lambda: model_of(lambda s, a: s.x(a["x"]) + s.y(a["y"][0]), x=nn.Linear(4, 3), y=nn.PReLU()),
        lambda: {"a": {"x": torch.randn(B, 4, dtype=D), "y": [torch.randn(B, 3, dtype=D)]}},
    ),
    "whole numbers beside fractions": (
        lambda: model_of(lambda s, ids, w: (s.e(ids) * w[..., None]).sum(1), e=nn.Embedding(11, 4)),
        lambda: {"ids": tokens(), "w": torch.rand(B, 4, dtype=D)},
    ),
    "checkpointed": (lambda: checkpointed(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), normal(B, 4)),
    "checkpointed without a rule": (
        lambda: checkpointed(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, 4)),
        normal(B, 4),
    ),
    "hands its input on": (
        lambda: model_of(lambda s, x: s.q(torch.tanh(s.e(x)) @ s.e.weight[:4].T), e=nn.Embedding(11, 4), q=Pass()),
        tokens,
    ),
    "hands its input on, in a pair": (
        lambda: model_of(
            lambda s, x: sum(s.q(torch.tanh(s.e(x)) @ s.e.weight[:4].T)), e=nn.Embedding(11, 4), q=Pass(True)
        ),
        tokens,
    ),
    "two outputs, one of the other": (
        lambda: model_of(lambda s, x: chained(s.layer(x)), layer=nn.Linear(4, 3)),
        normal(B, 4),
    ),
    "twice the batch": (
        lambda: model_of(lambda s, a, b: torch.cat(s.l(torch.cat([a, b])).chunk(2), 1), l=nn.Linear(4, 3)),
        lambda: (torch.randn(B, 4, dtype=D), torch.randn(B, 4, dtype=D)),
    ),
    "time first, as long as the batch": (
        lambda: model_of(lambda s, x: s.l(x.transpose(0, 1)).transpose(0, 1), l=nn.Linear(4, 3)),
        normal(B, B, 4),
    ),
    "batch as the positions of a convolution": (
        lambda: model_of(lambda s, x: s.l(x.permute(1, 2, 0)).permute(2, 0, 1), l=nn.Conv1d(4, 3, 1)),
        normal(B, 5, 4),
    ),
    "a layer with one more parameter": (
        lambda: model_of(lambda s, x: s.l.scale * s.l(x), l=Extended(4, 3)),
        normal(B, 4),
    ),
    "constant inputs": (
        lambda: model_of(
            lambda s, x: s.l(x) * s.k(torch.eye(4, dtype=x.dtype)).sum(), l=nn.Linear(4, 3), k=nn.Linear(4, 3)
        ),
        normal(B, 4),
    ),
    "an input and its transpose": (
        lambda: model_of(lambda s, x: s.l(x) + s.l(x.mT).mT, l=nn.Linear(4, 4)),
        normal(B, 4, 4),
    ),
    "language model": (Gpt, tokens),
    "language model, not training": (lambda: Gpt().eval(), tokens),
    "compiled": (
        lambda: torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), backend="eager"),
        normal(B, 4),
    ),
}


def shared_with_parent(inner: nn.Module, around: bool) -> nn.Module:
    forward = lambda s, x: s.inner(x) + (x @ s.w if around else s.w * x)
    parent = model_of(forward, inner=inner)
    parent.w = inner.weight
    return nn.Sequential(nn.Linear(4, 4), parent)


def pruned() -> nn.Module:
    layer = nn.Linear(4, 3)
    prune.l1_unstructured(layer, "weight", 0.3)
    return nn.Sequential(layer, nn.Tanh())


class Assigned(nn.Module):
    """A layer whose weight is computed from a parameter that lives elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.store = nn.Linear(4, 3), nn.ParameterList([parameter(3, 4)])
        del self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight = self.store[0] * 2
        return self.layer(x)


def patched() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.forward = lambda x: F.linear(x, layer.weight * 2, layer.bias)  # type: ignore[method-assign]
    return nn.Sequential(layer)


def parameter_hook() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.weight.register_hook(lambda grad: grad * 0)
    return nn.Sequential(layer)


CHAINED = "a gradient at one output already holds what came through the other"
REPLAYED = "the second run of the module goes through its hooks again"
COVERED = "a mark counts as covering parameters that its rule does not build"
TWICE_SHARED = "functional_call ties the child's weight to the parent's: counted twice"

TRICKY: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], Any]]] = {
    "lstm cell": (CHAINED, cells(nn.LSTMCell), normal(B, 3, 4)),
    "chained outputs, no rule": (
        CHAINED,
        lambda: nn.Sequential(nn.Linear(4, 4), Scale(chain=True)),
        normal(B, 4),
    ),
    "chained outputs, functional": (
        CHAINED,
        lambda: model_of(lambda s, x: chained(F.linear(x, s.l.weight)), l=nn.Linear(4, 3)),
        normal(B, 4),
    ),
    "weight shared with the parent": (
        TWICE_SHARED,
        lambda: shared_with_parent(nn.Linear(4, 4), True),
        normal(B, 4),
    ),
    "weight shared with the parent, no rule": (
        TWICE_SHARED,
        lambda: shared_with_parent(nn.PReLU(4), False),
        normal(B, 4),
    ),
    "weight norm by hooks": (
        COVERED,
        lambda: quietly(lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)), nn.Tanh())),
        normal(B, 4),
    ),
    "spectral norm by hooks": (
        COVERED,
        lambda: quietly(lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3)), nn.Tanh()).eval()),
        normal(B, 4),
    ),
    "pruned": (COVERED, pruned, normal(B, 4)),
    "weight computed elsewhere": (COVERED, Assigned, normal(B, 4)),
    "forward replaced on the object": ("find_rule looks at the type only", patched, normal(B, 4)),
    "hook before, no rule": (REPLAYED, lambda: nn.Sequential(hooked(nn.PReLU(4), before=True)), normal(B, 4)),
    "hook after, no rule": (REPLAYED, lambda: nn.Sequential(hooked(nn.PReLU(4), after=True)), normal(B, 4)),
    "hook on a parameter": ("hooks on parameters do not run", parameter_hook, normal(B, 4)),
}


def built(make: Callable[[], nn.Module], inputs: Callable[[], Any]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return make().to(D), inputs()


def right(model: nn.Module, inputs: Any, loss: Any = squares) -> bool:
    expected, updates = loop(model, loss, inputs, None), gradients(model, loss, inputs, None)
    scale = expected.norm().clamp_min(1e-30)
    summed = torch.cat([v.flatten() for v in updates.weighted_sum(torch.ones(len(updates))).values()])
    return (
        bool((updates.dense() - expected).norm() < 1e-9 * scale)
        and bool((updates.norms() - expected.norm(dim=1)).norm() < 1e-9 * scale)
        and bool((summed - expected.sum(0)).norm() < 1e-9 * scale)
    )


@pytest.mark.parametrize("name", RIGHT)
def test_updates_equal_a_loop_of_single_samples(name):
    assert right(*built(*RIGHT[name]))


@pytest.mark.parametrize("name", TRICKY)
def test_updates_equal_the_loop_or_the_model_is_refused(name):
    model, inputs = built(*TRICKY[name][1:])
    with contextlib.suppress(ValueError):  # a refusal would do
        assert right(model, inputs)


def test_an_output_without_samples_counts_once_a_sample_or_is_refused():
    model, inputs = built(
        lambda: model_of(lambda s, x: (s.l(x), s.l.weight.square().sum()), l=nn.Linear(4, 3)), normal(B, 4)
    )
    with contextlib.suppress(ValueError):
        assert right(model, inputs, lambda out, targets: squares(out[0], targets) + out[1])


@pytest.mark.parametrize("kind", ["module", "functional", "lstm"])
def test_dropout_uses_one_mask_for_outputs_and_updates(kind):
    torch.manual_seed(0)
    make = {
        "module": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        "functional": lambda: model_of(lambda s, x: s.b(F.dropout(s.a(x))), a=nn.Linear(4, 8), b=nn.Linear(8, 2)),
        "lstm": lambda: model_of(
            lambda s, x: s.b(s.a(x)[0]), a=nn.LSTM(4, 8, 2, dropout=0.5, batch_first=True), b=nn.Linear(8, 2)
        ),
    }
    model, inputs = make[kind]().to(D), torch.randn(B, 3, 4, dtype=D)
    torch.manual_seed(7)
    updates = gradients(model, squares, inputs, None)
    torch.manual_seed(7)
    losses, parameters = squares(model(inputs), None), list(model.parameters())
    rows = [torch.autograd.grad(losses[i], parameters, retain_graph=True) for i in range(B)]
    expected = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    torch.testing.assert_close(updates.losses, losses.detach())
    torch.testing.assert_close(updates.dense(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused(dtype):
    with pytest.raises(SettingError, match="float32 or float64"):
        gradients(nn.Linear(4, 2).to(dtype), squares, torch.randn(B, 4, dtype=dtype), None)
    with pytest.raises(SettingError, match="autocast"), torch.autocast("cpu"):
        gradients(nn.Linear(4, 2), squares, torch.randn(B, 4), None)


def refused(model: nn.Module, inputs: Any, message: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=message):
        gradients(model, squares, inputs, None)
    for module in model.modules():
        assert not module._forward_hooks
        assert "forward" not in module.__dict__


def test_an_input_changed_in_place_after_use_is_refused_by_name():
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.clone()
        h = self.layer(x)
        x.add_(1)
        return h

    refused(model_of(forward, layer=nn.Linear(4, 3)), torch.randn(B, 4), "input of module 'layer'", RuntimeError)


def test_random_numbers_in_a_module_that_needs_vmap_are_refused_by_name():
    model = model_of(lambda s, x: F.dropout(F.linear(x, s.p)), p=parameter(4, 4))
    refused(model, torch.randn(B, 4), "has the parameters p but no rule.*draws random numbers", RuntimeError)


EXPANDED: dict[str, tuple[nn.Module, Tensor, set[str]]] = {
    "class token and positions": (
        model_of(
            lambda s, x: s.head(torch.cat([s.token.expand(len(x), -1, -1), x], 1) + s.place),
            token=parameter(1, 1, 4), place=parameter(1, 6, 4), head=nn.Linear(4, 2),
        ),
        torch.randn(B, 5, 4),
        {"token", "place"},
    ),
    "gain over two dimensions": (model_of(lambda s, x: x.cos() * s.p, p=parameter(4)), torch.randn(B, 5, 4), {"p"}),
    "scalar": (model_of(lambda s, x: x.cos() * s.p, p=parameter(1)), torch.randn(B, 5, 4), {"p"}),
    "dropout after a gain": (model_of(lambda s, x: F.dropout(x * s.p, 0.0), p=parameter(4)), torch.randn(B, 4), {"p"}),
    "positions through two layers": (
        model_of(
            lambda s, x: (x + s.two(s.one(s.grid).tanh())).cos(),
            grid=nn.Parameter(torch.randn(1, 5, 3), requires_grad=False), one=nn.Linear(3, 6), two=nn.Linear(6, 4),
        ),
        torch.randn(B, 5, 4),
        {"one.weight", "two.weight"},
    ),
    "positions without a batch dimension": (
        model_of(lambda s, x: (x + s.places(torch.arange(5))).cos(), places=nn.Embedding(5, 4)),
        torch.randn(B, 5, 4),
        {"places.weight"},
    ),
    "relative positions of every head": (
        model_of(
            lambda s, x: (x @ x.mT + s.table(torch.arange(5)[:, None] - torch.arange(5) + 4).squeeze(-1)).cos(),
            table=nn.Embedding(9, 1),
        ),
        torch.randn(B, 5, 4),
        {"table.weight"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPANDED)
def test_values_without_a_batch_dimension_are_expanded_instead_of_run_under_vmap(name):
    model, inputs, parameters = EXPANDED[name]
    layout = find_layout(model, inputs)
    assert not layout.uncovered
    expanded = {f"{key[0]}.weight" for key in layout.expansions.outputs} | {
        own for _, own in layout.expansions.parameters
    }
    assert expanded >= parameters - {"two.weight"}  # the second layer gets its batch from the first
    assert right(model.to(D), inputs.to(D))


MIXES = {
    "mean over the batch": lambda s, x: x.cos() + s.p.mean(0),
    "first row": lambda s, x: x.cos() + s.p[0],
    "last row": lambda s, x: x.cos() + s.p[-1],
    "rows in reverse": lambda s, x: x.cos() + s.p.flip(0),
    "scaled by the number of rows": lambda s, x: x.cos() * s.p * len(s.p),
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("shape", [(1, 4), (1, 1, 4)])
def test_an_expansion_that_would_mix_samples_is_not_used(name, shape):
    model, inputs = model_of(MIXES[name], p=parameter(*shape)), torch.randn(B, *shape[1:])
    assert not find_layout(model, inputs).expansions
    assert right(model.to(D), inputs.to(D))
    copies = inputs[:1].expand(B, *inputs.shape[1:]).clone()  # copies of one sample cannot hide it
    assert not find_layout(model, copies.to(D)).expansions


def test_a_gradient_of_zero_proves_no_expansion_right():
    gated = model_of(lambda s, x: x + s.gate.detach() * s.p.mean(0), p=parameter(1, 4), gate=parameter(4))
    nn.init.zeros_(gated.gate)
    assert not find_layout(gated, torch.randn(B, 4)).expansions


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_a_trainable_batch_norm_is_refused(kind):
    refused(nn.Sequential(nn.Linear(4, 4), kind(4)), torch.randn(B, 4), "BatchNorm", (RuntimeError, ValueError))


def test_scripted_models_are_refused():
    for model in (torch.jit.script(nn.Linear(4, 3)), nn.Sequential(torch.jit.script(nn.Linear(4, 3)))):
        with pytest.raises(RuntimeError, match="ScriptModules"):
            gradients(model, squares, torch.randn(B, 4), None)


def test_an_option_that_couples_samples_is_refused_by_name():
    refused(nn.Embedding(11, 3, max_norm=1.0), tokens(), "build it without max_norm", ValueError)
    refused(nn.Embedding(11, 3, scale_grad_by_freq=True), tokens(), "scale_grad_by_freq", ValueError)


def test_tensors_of_different_batch_sizes_are_refused():
    model = model_of(lambda s, a, b: s.layer(a), layer=nn.Linear(4, 3))
    refused(model, (torch.randn(5, 4), torch.randn(4, 4)), r"\[4, 5\] samples", ValueError)


def test_an_error_in_forward_comes_through_and_leaves_no_trace():
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.recurrent(self.layer(x))[0]
        if len(x) > 3:
            raise KeyError("boom")
        return h

    model = model_of(forward, layer=nn.Linear(4, 4), recurrent=nn.GRU(4, 4, batch_first=True), spare=nn.PReLU())
    refused(model, torch.randn(B, 3, 4), "boom", KeyError)


def switching(self: Any, x: Tensor, functional: bool = False) -> Tensor:
    h = torch.tanh(self.table(x))
    return h @ self.table.weight.T if functional or self.functional else self.head(h)


@pytest.mark.parametrize("how", ["attribute", "argument"])
def test_a_model_that_changes_its_path_is_followed_or_refused(how):
    torch.manual_seed(0)
    model = model_of(switching, table=nn.Embedding(11, 4), head=nn.Linear(4, 11), functional=False).to(D)
    ids = tokens()
    before, after = ((ids, False), (ids, True)) if how == "argument" else (ids, ids)
    layouts = Layouts()
    gradients(model, squares, before, None, layouts=layouts)
    model.functional = True
    expected = loop(model, squares, ids, None)
    model.functional = how == "attribute"
    with contextlib.suppress(ValueError):
        torch.testing.assert_close(gradients(model, squares, after, None, layouts=layouts).dense(), expected)
    # a refusal drops the layout that no longer fits, so that the next call works out the new one
    torch.testing.assert_close(gradients(model, squares, after, None, layouts=layouts).dense(), expected)


def test_a_layer_that_runs_without_gradients_has_none():
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.teacher(x)
        return self.student(h)

    teacher, student = two()
    assert right(model_of(forward, teacher=teacher, student=student).to(D), torch.randn(B, 4, dtype=D))


def test_a_parameter_beside_a_recurrent_layer_works():
    model = model_of(lambda s, x: s.r(x + s.p)[0], r=nn.GRU(4, 5, batch_first=True), p=parameter(3, 4))
    assert right(model.to(D), torch.randn(B, 3, 4, dtype=D))


# -- order, precision, and what hides them ---------------------------------------------------------


class Sorted(nn.Module):
    """Sorts its batch by length for a recurrent layer, and puts it back."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gru, self.head = nn.Embedding(9, 3), nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = (x != 0).sum(1).argsort(descending=True, stable=True)
        seen, _ = self.gru(self.table(x)[order])
        return self.head(seen[:, -1][order.argsort()])


def test_a_model_that_reorders_its_batch_is_refused_where_it_does():
    tokens = torch.randint(1, 9, (6, 5), generator=torch.Generator().manual_seed(0))
    model = Sorted()
    whole = gradients(model, squares, tokens, None)  # all of one length: nothing moves
    torch.testing.assert_close(whole.dense(), loop(model, squares, tokens, None))
    tokens[1, 3:] = 0
    with pytest.raises(ValueError, match=r"module '\w+' has the samples of a batch in another order"):
        gradients(model, squares, tokens, None)


class Last(nn.Module):
    """The state at each sequence's own end: an index that keeps the order."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        seen, _ = self.gru(x)
        return self.head(seen[torch.arange(len(x)), lengths - 1])


def test_an_index_that_keeps_the_order_of_samples_is_fine():
    torch.manual_seed(0)
    inputs = (torch.randn(6, 5, 3), torch.tensor([5, 3, 1, 5, 2, 4]))
    model = Last()
    torch.testing.assert_close(gradients(model, squares, inputs, None).dense(), loop(model, squares, inputs, None))


class Coarse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = self.layer(x)
        return found.float()


def test_autocast_inside_a_model_is_refused():
    with pytest.raises(SettingError, match=r"module 'layer' computes in bfloat16.*autocast"):
        gradients(Coarse(), squares, torch.randn(4, 3), None)


class Standardised(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std((1, 2, 3), keepdim=True)
        return super()._conv_forward(input, weight, bias)


def test_a_convolution_that_changes_its_weight_on_the_way_has_the_gradient_of_its_own():
    torch.manual_seed(0)
    model, x = nn.Sequential(Standardised(2, 3, 3), nn.Flatten()).double(), torch.randn(4, 2, 5, 5, dtype=D)
    torch.testing.assert_close(gradients(model, squares, x, None).dense(), loop(model, squares, x, None))


def test_outputs_in_which_no_tensor_can_be_found_are_named():
    @dataclasses.dataclass
    class Out:
        logits: torch.Tensor

    class Wrapped(nn.Linear):
        def forward(self, input):
            return Out(super().forward(input))

    with pytest.raises(SettingError, match="returns a Out, in which no tensor can be found"):
        gradients(Wrapped(3, 2), lambda out, _: out.logits.sum(1), torch.randn(4, 3), None)


def test_products_are_exact_whatever_the_user_has_set():
    seen = []

    class Looking(nn.Linear):
        def forward(self, input):
            seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
            return super().forward(input)

    torch.set_float32_matmul_precision("medium")
    try:
        gradients(Looking(3, 2), squares, torch.randn(4, 3), None)
        assert set(seen) == {("highest", False)}
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("medium", True)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-5])
def test_samples_in_another_order_are_refused_also_where_their_gradients_are_short(scale):
    """A layer whose gradients are far shorter than another's still shows whose they are."""

    def forward(self: Any, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(descending=True)
        return scale * self.first(x[order])[order.argsort()] + self.second(x)

    torch.manual_seed(0)
    model = model_of(forward, first=nn.Linear(4, 3), second=nn.Linear(4, 3))
    with pytest.raises(ValueError, match="another order than the losses"):
        gradients(model, squares, torch.randn(B, 4), None)
