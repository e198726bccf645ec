"""A random projection onto orthonormal directions that are never stored as a matrix."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from gnomon import validate
from gnomon.randomness import NoiseSource
from gnomon.sampling.draws import shuffle
from gnomon.subspaces.basis import COORDINATES, AmbientBasis, Basis, StepContext, Subspace, in_coordinates
from gnomon.updates import Updates

Value = TypeVar("Value")


@dataclass(frozen=True)
class RandomProjection(Subspace):
    """A projection onto random directions: random signs, then a random choice of real Fourier coefficients.

    The directions are orthonormal and cost O(p log p), where a Gaussian matrix with a QR decomposition costs
    O(p rank^2). They are drawn from public randomness.

    Args:
        rank: the number of directions.
        redraw: draw new directions in each step (default), instead of once for the run.
        start: the first epoch that projects, counted from 0. Earlier epochs use all parameters.
        per_tensor: give every parameter tensor `rank` directions of its own. Tensors no larger than that stay whole.

    >>> RandomProjection(800, per_tensor=True).name
    'random projection, rank 800, per tensor'
    """

    rank: int = 800
    redraw: bool = True
    start: int = 0
    per_tensor: bool = False

    def __post_init__(self) -> None:
        validate.whole("rank", self.rank)
        validate.whole("start", self.start, least=0)

    @property
    def name(self) -> str:
        extra = (", per tensor" if self.per_tensor else "") + ("" if self.redraw else ", fixed")
        return f"random projection, rank {self.rank}{extra}" + (f", from epoch {self.start}" if self.start else "")

    def key(self, context: StepContext) -> Hashable:
        if context.step < self.start * context.steps_per_epoch:
            return "ambient"
        return context.step if self.redraw else 0

    def basis(self, context: StepContext) -> Basis:
        if context.step < self.start * context.steps_per_epoch:
            return AmbientBasis(context.like)
        if not self.per_tensor:
            return self._drawn(context.like, context.randomness)
        alone = {name: {name: p} for name, p in context.like.items()}
        return SeparateBases(
            {
                name: AmbientBasis(like) if like[name].numel() <= self.rank else self._drawn(like, context.randomness)
                for name, like in alone.items()
            }
        )

    def _drawn(self, like: Mapping[str, Tensor], randomness: NoiseSource) -> FourierBasis:
        """Draw a basis for these parameters together."""
        size = sum(p.numel() for p in like.values())
        signs = torch.where(randomness.uniform(size) < 0.5, -1.0, 1.0)
        return FourierBasis(like, signs, distinct(min(self.rank, size), size, randomness))


class FourierBasis(Basis):
    """The basis whose coordinates are some real Fourier coefficients of the update with random signs.

    Args:
        parameters: the trainable parameters.
        signs: 1 or -1 for each parameter, (p,).
        chosen: the positions of the coefficients, (k,).
    """

    def __init__(self, parameters: Mapping[str, Tensor], signs: Tensor, chosen: Tensor) -> None:
        first = next(iter(parameters.values()))
        self._shapes = {name: value.shape for name, value in parameters.items()}
        self._signs, self._chosen = signs.to(first), chosen.to(first.device)
        self.like = {COORDINATES: first.new_zeros(len(chosen))}

    def coordinates(self, updates: Updates) -> Updates:
        values = fourier(updates.dense() * self._signs, self._chosen)
        return in_coordinates(values, updates.losses, updates.ceilings_by_parameter().square().sum(1))

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        full = vector[COORDINATES].new_zeros(1, len(self._signs))
        full[0, self._chosen] = vector[COORDINATES]
        flat = inverse_fourier(full)[0] * self._signs
        parts = flat.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


class SeparateBases(Basis):
    """The basis that consists of one basis for each parameter tensor."""

    def __init__(self, parts: Mapping[str, Basis]) -> None:
        self._parts = parts
        self.like = {name: _only(part.like) for name, part in parts.items()}

    def coordinates(self, updates: Updates) -> Updates:
        leaves = {
            name: _only(part.coordinates(Updates({name: updates.leaves[name]}, updates.losses)).leaves)
            for name, part in self._parts.items()
        }
        return Updates(leaves, updates.losses)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        lifted: dict[str, Tensor] = {}
        for name, part in self._parts.items():
            lifted |= part.lift({next(iter(part.like)): vector[name]})
        return lifted


def _only(values: Mapping[str, Value]) -> Value:
    """Return the value of a mapping that has exactly one entry."""
    (value,) = values.values()
    return value


def distinct(count: int, size: int, randomness: NoiseSource) -> Tensor:
    """Draw `count` distinct positions below `size`; all sets of positions are equally likely.

    >>> from gnomon.randomness import SeededNoise
    >>> sorted(distinct(3, 3, SeededNoise(0)).tolist())
    [0, 1, 2]
    """
    if 4 * count > size:
        return shuffle(size, randomness)[:count]
    positions = torch.empty(0, dtype=torch.long)
    while len(positions) < count:
        more = (randomness.uniform(2 * count) * size).long()
        positions = torch.cat([positions, more]).unique()
    return positions[shuffle(len(positions), randomness)[:count]]


def fourier(rows: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Return the real Fourier transform of each row as an orthogonal map, (B, p), or some of its coefficients.

    Args:
        rows: (B, p).
        chosen: the positions of the coefficients to return (default: all).

    >>> x = torch.randn(2, 5, dtype=torch.float64)
    >>> torch.allclose(fourier(x).norm(dim=1), x.norm(dim=1)), torch.allclose(inverse_fourier(fourier(x)), x)
    (True, True)
    >>> torch.equal(fourier(x, torch.tensor([3, 0])), fourier(x)[:, [3, 0]])
    True
    """
    size = rows.shape[1]
    places = torch.arange(size, device=rows.device) if chosen is None else chosen
    if not len(rows):  # some FFT libraries refuse an empty batch
        return rows.new_zeros(0, len(places))
    ends, count = 2 - size % 2, (size - 1) // 2  # real coefficients: the first and, for an even size, the middle one
    inner = (places - ends) % max(count, 1) + 1
    frequency = torch.where(places < ends, places * (size // 2), inner)
    imaginary = places >= ends + count
    parts = torch.view_as_real(torch.fft.rfft(rows, norm="ortho")).flatten(1)
    weights = rows.new_tensor([1.0, 2**0.5])[(places >= ends).long()]
    return parts[:, 2 * frequency + imaginary] * weights


def inverse_fourier(rows: Tensor) -> Tensor:
    """Return the inverse of `fourier` for all coefficients of each row, (B, p)."""
    size = rows.shape[1]
    ends, count = 2 - size % 2, (size - 1) // 2
    ends = min(ends, size)
    inner = torch.complex(rows[:, ends : ends + count], rows[:, ends + count :]) / 2**0.5
    parts = [rows[:, :1] + 0j, inner] + ([rows[:, 1:2] + 0j] if ends == 2 else [])
    return torch.fft.irfft(torch.cat(parts, 1), n=size, norm="ortho")
