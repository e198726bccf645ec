"""Small models, each with something that per-sample gradients can get wrong, and the loop they must equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from gnomon.models import StandardisedConv2d


def squares(outputs: Any, targets: Any) -> Tensor:
    """A loss of one number a sample on any outputs, batch first."""
    flat = [t.flatten(1) for t in pytree.tree_leaves(outputs)]
    return sum(((t - 0.3) ** 2 * torch.linspace(0.5, 1.5, t.shape[1], dtype=t.dtype)).sum(1) for t in flat)


def loop(model: nn.Module, loss: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> Tensor:
    """The (B, p) matrix of gradients by one backward pass a sample."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    size = len(pytree.tree_leaves(inputs)[0])
    rows = []
    for i in range(size):
        one = pytree.tree_map(lambda t, i=i: t[i : i + 1], inputs)
        target = None if targets is None else pytree.tree_map(lambda t, i=i: t[i : i + 1], targets)
        if isinstance(one, dict):
            outputs = model(**one)
        elif isinstance(one, tuple):
            outputs = model(*one)
        else:
            outputs = model(one)
        grads = torch.autograd.grad(loss(outputs, target).sum(), parameters, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)]
        rows.append(torch.cat([g.reshape(-1) for g in filled]))
    return torch.stack(rows)


@dataclass
class Case:
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Any]


def images(channels: int = 3, *space: int) -> Callable[[int], Tensor]:
    return lambda size: torch.randn(size, channels, *space)


def sequences(length: int, width: int) -> Callable[[int], Tensor]:
    return lambda size: torch.randn(size, length, width)


def tokens(length: int, vocabulary: int) -> Callable[[int], Tensor]:
    return lambda size: torch.randint(0, vocabulary, (size, length))


class Twice(nn.Module):
    """One module called twice, on inputs of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)[:, :2]).sum(1))


class TwiceConvolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x))[:, :, ::2])


class TiedLanguageModel(nn.Module):
    """Embedding and head share one table, through a module."""

    def __init__(self, padding: int | None = None, vocabulary: int = 11) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 6, padding_idx=padding)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(x))))


class FunctionallyTied(nn.Module):
    """The head reads the table without calling its module: hooks alone would miss it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.mix(self.embed(x))) @ self.embed.weight.T


class Positions(nn.Module):
    """Positions have no batch dimension; the sequence is as long as the batch in the tests."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 6), nn.Embedding(length, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.tokens(x) + self.positions(torch.arange(x.shape[1]))))


class OwnParameters(nn.Module):
    """Parameters of its own beside a child that has a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, 4))
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(torch.cat([self.first.expand(len(x), -1, -1), x], 1))


class Inner(nn.Module):
    """An unruled block that reads a child's weight behind the child's back."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.layer(x) + F.linear(x, self.layer.weight)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Named(nn.Module):
    """Nested outputs, keyword inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": self.left(a) + self.right(b["x"]), "left": self.left(a * 2)}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(4, 2, 3)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(a, b), a.sum(1, keepdim=True)


class Attention(nn.Module):
    def __init__(self, cross: bool = False, batch_first: bool = True, weights: bool = True, **settings: Any) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=batch_first, **settings)
        self.cross, self.weights, self.batch_first = cross, weights, batch_first
        self.memory = nn.Linear(8, settings.get("kdim", 8))

    def forward(self, x: Tensor) -> Tensor:
        other = self.memory(x.flip(1)) if self.cross else x
        if not self.batch_first:
            x, other = x.transpose(0, 1), other.transpose(0, 1) if self.cross else x.transpose(0, 1)
        other = other if self.cross else x
        out = self.attend(x, other, other, need_weights=self.weights)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        padding = x[..., 0] > 1.0
        padding[:, 0] = False
        return self.attend(x, x, x, attn_mask=causal, key_padding_mask=padding)[0]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.layer = kind(4, 5, **settings)
        self.batch_first = settings.get("batch_first", False)

    def forward(self, x: Tensor) -> Any:
        output, last = self.layer(x if self.batch_first else x.transpose(0, 1))
        last = last[0] if isinstance(last, tuple) else last
        return (output if self.batch_first else output.transpose(0, 1)), last.transpose(0, 1)


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name, p in model.named_parameters():
        p.requires_grad_(name not in names)
    return model


def sequential_first(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *layers)


B = 5

CASES: dict[str, Case] = {
    "linear": Case(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), lambda b: torch.randn(b, 4)),
    "linear without bias": Case(lambda: nn.Linear(4, 3, bias=False), lambda b: torch.randn(b, 4)),
    "linear on sequences": Case(lambda: sequential_first(nn.Linear(6, 3)), sequences(3, 4)),
    "linear on long sequences": Case(lambda: sequential_first(nn.Linear(6, 3)), sequences(40, 4)),
    "linear on grids": Case(lambda: sequential_first(nn.Linear(6, 3)), lambda b: torch.randn(b, 2, 3, 4)),
    "wide linear on sequences": Case(lambda: nn.Linear(40, 50), sequences(3, 40)),
    "sequence as long as the batch": Case(lambda: sequential_first(nn.Linear(6, 3)), sequences(B, 4)),
    "conv1d": Case(lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), images(3, 9)),
    "conv2d": Case(lambda: nn.Conv2d(3, 4, 3), images(3, 7, 6)),
    "conv2d all settings": Case(
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        images(4, 8, 9),
    ),
    "conv2d same": Case(lambda: nn.Conv2d(3, 4, (4, 3), padding="same", dilation=(1, 2)), images(3, 7, 8)),
    "conv2d valid": Case(lambda: nn.Conv2d(3, 4, 3, padding="valid"), images(3, 7, 6)),
    "conv2d reflect": Case(lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), images(3, 7, 6)),
    "conv2d circular": Case(lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), images(3, 5, 6)),
    "conv2d depthwise": Case(lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False), images(4, 6, 6)),
    "conv2d few positions": Case(lambda: nn.Conv2d(8, 16, 3), images(8, 4, 4)),
    "conv2d many channels": Case(lambda: nn.Conv2d(16, 32, 3, padding=1), images(16, 3, 3)),
    "conv2d uneven stride": Case(lambda: nn.Conv2d(2, 3, 2, stride=3), images(2, 9, 10)),
    "standardised convolution": Case(
        lambda: nn.Sequential(StandardisedConv2d(3, 4, 3, stride=2, padding=1), nn.Tanh(), StandardisedConv2d(4, 6, 2)),
        images(3, 7, 6),
    ),
    "conv3d": Case(lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1), padding=1, groups=2), images(2, 4, 5, 4)),
    "embedding": Case(lambda: nn.Embedding(11, 6), tokens(4, 11)),
    "embedding with padding": Case(lambda: nn.Embedding(5, 6, padding_idx=2), tokens(8, 5)),
    "embedding of one token": Case(lambda: nn.Embedding(11, 6), lambda b: torch.randint(0, 11, (b,))),
    "layer norm": Case(lambda: sequential_first(nn.LayerNorm(6)), lambda b: torch.randn(b, 4)),
    "layer norm on sequences": Case(lambda: nn.LayerNorm((3, 4)), lambda b: torch.randn(b, 2, 3, 4)),
    "layer norm without bias": Case(lambda: nn.LayerNorm(4, bias=False), sequences(3, 4)),
    "group norm": Case(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), images(3, 6, 5)),
    "group norm on vectors": Case(lambda: nn.GroupNorm(2, 4), lambda b: torch.randn(b, 4)),
    "instance norm": Case(lambda: nn.InstanceNorm2d(3, affine=True), images(3, 6, 5)),
    "rms norm": Case(lambda: nn.RMSNorm(4), sequences(3, 4)),
    "self attention": Case(lambda: Attention(), sequences(3, 8)),
    "fast attention": Case(lambda: Attention(weights=False, bias=False), sequences(3, 8)),
    "cross attention": Case(lambda: Attention(cross=True), sequences(3, 8)),
    "attention with other keys": Case(lambda: Attention(cross=True, kdim=6, vdim=6), sequences(3, 8)),
    "attention, time first": Case(lambda: Attention(batch_first=False), sequences(3, 8)),
    "attention, time first, as long as the batch": Case(lambda: Attention(batch_first=False), sequences(B, 8)),
    "attention with added keys": Case(lambda: Attention(add_bias_kv=True), sequences(3, 8)),
    "masked attention": Case(Masked, sequences(4, 8)),
    "transformer layer": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), sequences(4, 8)
    ),
    "transformer": Case(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        ),
        sequences(4, 8),
    ),
    "decoder layer": Case(lambda: _Decoder(), sequences(3, 8)),
    "lstm": Case(lambda: Recurrent(nn.LSTM), sequences(4, 4)),
    "lstm deep, two directions": Case(
        lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True), sequences(4, 4)
    ),
    "lstm with projection": Case(lambda: Recurrent(nn.LSTM, proj_size=3), sequences(4, 4)),
    "gru": Case(lambda: Recurrent(nn.GRU, batch_first=True, num_layers=2), sequences(4, 4)),
    "gru without bias": Case(lambda: Recurrent(nn.GRU, bias=False, bidirectional=True), sequences(B, 4)),
    "rnn": Case(lambda: Recurrent(nn.RNN, nonlinearity="relu"), sequences(4, 4)),
    "no rule": Case(lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), nn.Linear(6, 2)), lambda b: torch.randn(b, 4)),
    "no rule, transposed convolution": Case(lambda: nn.ConvTranspose2d(2, 3, 2), images(2, 4, 4)),
    "two inputs": Case(Two, lambda b: (torch.randn(b, 4), torch.randn(b, 2))),
    "nested inputs": Case(Named, lambda b: {"a": torch.randn(b, 4), "b": {"x": torch.randn(b, 2)}}),
    "own parameters": Case(OwnParameters, sequences(3, 4)),
    "own parameters, hidden use": Case(lambda: nn.Sequential(nn.Linear(4, 4), Inner()), lambda b: torch.randn(b, 4)),
    "called twice": Case(Twice, sequences(4, 4)),
    "convolved twice": Case(TwiceConvolved, images(3, 6, 5)),
    "tied": Case(TiedLanguageModel, tokens(4, 11)),
    "tied with padding": Case(lambda: TiedLanguageModel(padding=3), tokens(6, 11)),
    "tied behind the module's back": Case(FunctionallyTied, tokens(4, 11)),
    "positions": Case(lambda: Positions(4), tokens(4, 11)),
    "as many positions as samples": Case(lambda: Positions(B), tokens(B, 11)),
    "unused": Case(Unused, lambda b: torch.randn(b, 4)),
    "frozen": Case(
        lambda: frozen(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), "0.weight", "2.bias"),
        lambda b: torch.randn(b, 4),
    ),
    "in place": Case(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3), nn.ReLU(inplace=True)),
        lambda b: torch.randn(b, 4),
    ),
    "in place on sequences": Case(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3), nn.SiLU(inplace=True)),
        sequences(3, 4),
    ),
    "in place on images": Case(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.ReLU(inplace=True),
            nn.GroupNorm(2, 4),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(4 * 4 * 3, 2),
        ),
        images(3, 6, 5),
    ),
    "weight norm": Case(
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh()),
        lambda b: torch.randn(b, 4),
    ),
    "flattened sequences": Case(lambda: _Flattened(), sequences(3, 4)),
}


class _Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, torch.tanh(x))


def build(name: str, dtype: torch.dtype, size: int = B) -> tuple[nn.Module, Any]:
    """Return the model and the inputs of a case, seeded and in the given precision."""
    torch.manual_seed(0)
    case = CASES[name]
    return case.model().to(dtype), cast(case.inputs(size), dtype)


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Return inputs with their floating-point tensors in another precision."""
    return pytree.tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)


def relative(a: Tensor, b: Tensor) -> float:
    """Return the norm of the difference, relative to the norm of `b`."""
    return float((a - b).norm() / b.norm().clamp_min(1e-30))
