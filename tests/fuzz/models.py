"""Random small models of all kinds of layers, in which samples do not interact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 7
CLASSES = 4

Shape = tuple[int, ...]
"""The shape of a record between layers: (width,), (length, width), (channels, length) or (channels, height, width)."""


class Dropout(nn.Dropout):
    """Dropout whose mask is the same for every record and in every call, unless `fresh`.

    A mask that changes with the batch would change the updates of other records, which could then not be compared.
    """

    def __init__(self, p: float, salt: float) -> None:
        super().__init__(p)
        self.salt, self.fresh = salt, False

    def forward(self, x: Tensor) -> Tensor:
        if self.fresh:
            return super().forward(x.contiguous())  # a mask is drawn in the order of memory
        places = torch.arange(x.shape[1:].numel(), dtype=torch.float64).add(self.salt)
        kept = (places.mul(12.9898).sin() * 43758.5453).frac().abs() >= self.p
        return x * kept.to(x.dtype).reshape(x.shape[1:]) / (1 - self.p)


class Residual(nn.Module):
    """`x + f(x)`, for a function f that preserves the shape."""

    def __init__(self, inner: nn.Module, place: str) -> None:
        super().__init__()
        self.inner, self.place = inner, place

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "in place":
            h = self.inner(x)
            return h.add_(x) if h is not x else h + x
        return x + self.inner(x)


class Twice(nn.Module):
    """A layer that is used twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))


class Scale(nn.Module):
    """A module with parameters of its own and without a layer rule."""

    def __init__(self, width: int, channels_first: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width, *[1] * channels_first) + 0.5)
        self.offset = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain + self.offset


class Behind(nn.Module):
    """Uses the weight of a layer outside the layer as well."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) - 0.5 * F.linear(x, self.layer.weight)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, batch_first: bool, causal: bool, weights: bool, own: bool) -> None:
        super().__init__()
        settings: dict[str, Any] = {"kdim": width + 1, "vdim": width + 2} if own else {}
        self.inner = nn.MultiheadAttention(width, heads, batch_first=batch_first, **settings)
        self.batch_first, self.causal, self.weights, self.own = batch_first, causal, weights, own

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.batch_first else x.transpose(0, 1)
        key, value = (F.pad(h, (0, 1)), F.pad(h, (0, 2))) if self.own else (h, h)
        mask = torch.full((x.shape[1],) * 2, float("-inf"), dtype=x.dtype).triu(1) if self.causal else None
        out = self.inner(h, key, value, attn_mask=mask, need_weights=self.weights)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Recurrent(nn.Module):
    def __init__(self, kind: str, width: int, hidden: int, layers: int, both: bool, batch_first: bool) -> None:
        super().__init__()
        self.inner = getattr(nn, kind)(width, hidden, layers, batch_first=batch_first, bidirectional=both)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_first:
            return self.inner(x)[0]
        return self.inner(x.transpose(0, 1))[0].transpose(0, 1)


class Positions(nn.Module):
    """Learned position embeddings, which do not depend on the record."""

    def __init__(self, length: int, width: int, table: bool) -> None:
        super().__init__()
        if table:
            self.table = nn.Embedding(length, width)
        else:
            self.own = nn.Parameter(torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.own if hasattr(self, "own") else self.table(torch.arange(x.shape[1])))


class Apply(nn.Module):
    """A function of one tensor, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Across(nn.Module):
    """Applies a channels-first layer to a sequence."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Tied(nn.Module):
    """Scores from the token embedding: as the weight of a module, or by a product outside any module."""

    def __init__(self, table: nn.Embedding, as_module: bool) -> None:
        super().__init__()
        self.table = table
        self.head: nn.Linear | None = None
        if as_module:
            self.head = nn.Linear(table.embedding_dim, table.num_embeddings, bias=False)
            self.head.weight = table.weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table.weight.T if self.head is None else self.head(x)


class Net(nn.Module):
    """A branch for each input, their concatenation, and a head; inputs are positional or named."""

    def __init__(self, branches: Mapping[str, nn.Module], head: nn.Module, outputs: str) -> None:
        super().__init__()
        self.branches, self.head, self.outputs = nn.ModuleDict(branches), head, outputs

    def forward(self, *args: Tensor, **named: Tensor) -> Any:
        given = named or dict(zip(self.branches, args, strict=True))
        parts = [branch(given[name]) for name, branch in self.branches.items()]
        scores = self.head(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
        if self.outputs == "dict":
            return {"scores": scores, "features": parts[0]}
        return (scores, parts[-1]) if self.outputs == "tuple" else scores


@dataclass(frozen=True)
class Built:
    """A model, and the shapes of its inputs and scores."""

    model: Net
    inputs: dict[str, Shape | str]
    """The shape of each input of one record; "tokens:T" for T tokens."""
    by_name: bool
    scores: Shape
    """(classes,), or (length, classes) for scores at every position."""


class Builder:
    """Draws a model. Weights come from torch's global generator, which the caller seeds."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def model(self) -> Built:
        rng = self.rng
        count = 1 if rng.random() < 0.75 else 2
        per_position = count == 1 and rng.random() < 0.25
        branches: dict[str, nn.Module] = {}
        inputs: dict[str, Shape | str] = {}
        width, tied, shape = 0, None, ()
        for name in ("first", "second")[:count]:
            kinds = ["sequence", "tokens"] if per_position else ["vector", "sequence", "tokens", "image", "signal"]
            inputs[name], branches[name], shape, table = self.branch(rng.choice(kinds), per_position)
            width, tied = width + shape[-1], table
        if per_position and tied is not None and shape[-1] == tied.embedding_dim and rng.random() < 0.6:
            head: nn.Module = Tied(tied, as_module=rng.random() < 0.5)
            scores: Shape = (*shape[:-1], VOCABULARY)
        else:
            head, scores = nn.Linear(width, CLASSES, bias=rng.random() < 0.8), (*shape[:-1], CLASSES)
        model = Net(branches, head, rng.choice(["plain", "plain", "plain", "dict", "tuple"]))
        if rng.random() < 0.2:
            model.spare = nn.Linear(2, 3)
        if rng.random() < 0.15:
            for p in rng.sample(list(model.parameters()), 1):
                p.requires_grad_(False)
        if not any(p.requires_grad for name, p in model.named_parameters() if not name.startswith("spare")):
            model.requires_grad_(True)
        return Built(model, inputs, by_name=rng.random() < 0.25, scores=scores)

    def branch(self, kind: str, per_position: bool) -> tuple[Shape | str, nn.Module, Shape, nn.Embedding | None]:
        rng, layers = self.rng, nn.Sequential()
        given: Shape | str
        table: nn.Embedding | None = None
        if kind == "vector":
            given = shape = (rng.choice([1, 3, 5, 18]),)
        elif kind == "sequence":
            given = shape = (rng.choice([1, 2, 4]), rng.choice([2, 3, 6]))
        elif kind == "tokens":
            length, width = rng.choice([1, 3, 5]), rng.choice([2, 3, 6])
            table = nn.Embedding(VOCABULARY, width, padding_idx=rng.choice([None, None, 0]))
            layers.append(table)
            given, shape = f"tokens:{length}", (length, width)
            if rng.random() < 0.4:
                layers.append(Positions(length, width, table=rng.random() < 0.5))
        elif kind == "image":
            given = shape = (rng.choice([1, 2, 4]), rng.choice([4, 5, 7]), rng.choice([4, 6]))
        else:
            given = shape = (rng.choice([1, 2, 4]), rng.choice([5, 8]))
        sequence = kind in ("sequence", "tokens")
        for _ in range(rng.choice([0, 1, 1, 2, 2, 3])):
            shape = self.block(layers, shape, sequence)
        return given, *self.end(layers, shape, sequence, per_position), table

    def end(self, layers: nn.Sequential, shape: Shape, sequence: bool, per_position: bool) -> tuple[nn.Module, Shape]:
        """Reduce to one vector for each record, or one for each position."""
        rng = self.rng
        if per_position:
            return layers, shape
        if sequence:
            layers.append(Apply(rng.choice([lambda x: x.mean(1), lambda x: x[:, -1], lambda x: x.sum(1)])))
            return layers, shape[-1:]
        if len(shape) > 1:
            if rng.random() < 0.5:
                layers.append(nn.Flatten())
                return layers, (torch.Size(shape).numel(),)
            layers.append(Apply(lambda x: x.flatten(2).mean(2)))
            return layers, shape[:1]
        return layers, shape

    def block(self, layers: nn.Sequential, shape: Shape, sequence: bool) -> Shape:
        """Add a layer, possibly followed by a normalisation and an activation."""
        rng = self.rng
        before = shape
        layer, shape = self.layer(shape, sequence)
        overwritten = not isinstance(layer, Recurrent)  # torch's own recurrent kernels need their output as it was
        if shape == before and rng.random() < 0.3:
            layer = Residual(layer, "in place" if overwritten and rng.random() < 0.3 else "outside")
            overwritten = True
        layers.append(layer)
        if rng.random() < 0.4:
            layers.append(self.norm(shape, sequence))
            overwritten = True
        if rng.random() < 0.7:
            layers.append(self.activation(overwritten))
        if rng.random() < 0.15:
            layers.append(Dropout(rng.choice([0.1, 0.5]), rng.random()))
        if rng.random() < 0.1 and shape[0] > 1:
            order = torch.tensor(rng.sample(range(shape[0]), shape[0]))
            layers.append(Apply(lambda x: x[:, order]))
        return shape

    def layer(self, shape: Shape, sequence: bool) -> tuple[nn.Module, Shape]:  # noqa: PLR0911
        rng = self.rng
        if len(shape) == 1 or sequence:
            width = shape[-1]
            kinds = ["linear", "linear", "twice", "scale", "behind"]
            kinds += ["attention", "recurrent", "convolution"] if sequence else []
            kind = rng.choice(kinds)
            if kind == "linear":
                out = rng.choice([1, 3, 6, 17])
                return nn.Linear(width, out, bias=rng.random() < 0.8), (*shape[:-1], out)
            if kind == "attention":
                heads = rng.choice([h for h in (1, 2, 3) if width % h == 0])
                first, causal, weights, own = (rng.random() < 0.5 for _ in range(4))
                return Attention(width, heads, first, causal, weights, own), shape
            if kind == "recurrent":
                name, hidden, both = rng.choice(["RNN", "LSTM", "GRU"]), rng.choice([2, 3]), rng.random() < 0.3
                inner = Recurrent(name, width, hidden, rng.choice([1, 1, 2]), both, rng.random() < 0.5)
                return inner, (*shape[:-1], hidden * (1 + both))
            if kind == "convolution":
                inner, turned = self.convolution((width, shape[0]))
                return Across(inner), (turned[1], turned[0])
            made = {
                "twice": lambda: Twice(nn.Linear(width, width)),
                "scale": lambda: Scale(width, 0),
                "behind": lambda: Behind(width),
            }
            return made[kind](), shape
        if rng.random() < 0.15:
            return Scale(shape[0], len(shape) - 1), shape
        return self.convolution(shape)

    def convolution(self, shape: Shape) -> tuple[nn.Module, Shape]:
        """Return a convolution with random groups, stride, dilation and padding that the size allows."""
        rng, (channels, *space) = self.rng, shape
        groups = rng.choice([g for g in (1, 1, 2, 4) if channels % g == 0])
        out = groups * rng.choice([1, 2, 3])
        kernel = tuple(rng.choice([k for k in (1, 2, 3) if k <= size]) for size in space)
        dilation = tuple(
            rng.choice([d for d in (1, 1, 2) if d * (k - 1) < s and (k > 1 or d == 1)])
            for k, s in zip(kernel, space, strict=True)
        )
        mode = rng.choice(["zeros", "zeros", "reflect", "replicate", "circular"])
        most = min(space) - 1 if mode == "reflect" else min(space)
        stride: tuple[int, ...] = tuple(rng.choice([1, 1, 2, 3]) for _ in space)
        padding: Any = tuple(rng.choice([p for p in (0, 0, 1, 2) if p <= most]) for _ in space)
        if rng.random() < 0.15 and mode == "zeros":
            padding, stride = "same", (1,) * len(space)
        kind = {1: nn.Conv1d, 2: nn.Conv2d}[len(space)]
        inner = kind(
            channels, out, kernel, stride, padding, dilation, groups, bias=rng.random() < 0.8, padding_mode=mode
        )
        with torch.no_grad():
            found = inner(torch.zeros(1, *shape))
        return inner, tuple(found.shape[1:])

    def norm(self, shape: Shape, sequence: bool) -> nn.Module:
        rng = self.rng
        if len(shape) == 1 or sequence:
            width = shape[-1]
            kinds = [nn.LayerNorm(width), nn.RMSNorm(width), nn.LayerNorm(width, elementwise_affine=False)]
            if not sequence and width > 1:
                kinds.append(nn.GroupNorm(rng.choice([g for g in (1, 2, 3) if width % g == 0 and g < width]), width))
            return rng.choice(kinds)
        groups = rng.choice([g for g in (1, 2, 3) if shape[0] % g == 0])
        kinds: list[nn.Module] = [nn.LayerNorm(list(shape))]
        if torch.Size(shape).numel() > groups:
            kinds.append(nn.GroupNorm(groups, shape[0]))
        if torch.Size(shape[1:]).numel() > 1:
            kinds.append((nn.InstanceNorm1d if len(shape) == 2 else nn.InstanceNorm2d)(shape[0], affine=True))
        return rng.choice(kinds)

    def activation(self, overwritten: bool) -> nn.Module:
        rng, inplace = self.rng, overwritten and self.rng.random() < 0.5
        kinds: list[nn.Module] = [
            nn.ReLU(inplace), nn.Tanh(), nn.GELU(), nn.SiLU(inplace), nn.LeakyReLU(inplace=inplace),
            nn.ELU(inplace=inplace), nn.Softplus(), nn.PReLU(), nn.Sigmoid(),
        ]  # fmt: skip
        return rng.choice(kinds)
