"""A random subspace of given rank, orthonormal and never stored."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from gnomon import validate
from gnomon.randomness import NoiseSource
from gnomon.sampling.draws import shuffle
from gnomon.subspaces.basis import COORDINATES, AmbientBasis, Basis, StepContext, in_coordinates
from gnomon.updates import Updates

V = TypeVar("V")


@dataclass(frozen=True)
class RandomProjection:
    """`rank` random directions: random signs, then random real Fourier coefficients.

    The directions are exactly orthonormal and cost O(p log p), where a Gaussian matrix with QR costs
    O(p rank^2). They are drawn from public randomness, anew each step or, with `redraw=False`, once.
    `start` is the first epoch that projects, counted from 0. With `per_tensor` every parameter tensor has `rank`
    directions of its own, and tensors no larger than that stay whole.

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
        return TensorParts(
            {
                name: AmbientBasis(like) if like[name].numel() <= self.rank else self._drawn(like, context.randomness)
                for name, like in alone.items()
            }
        )

    def _drawn(self, like: Mapping[str, Tensor], randomness: NoiseSource) -> FourierBasis:
        """A basis for these parameters together."""
        size = sum(p.numel() for p in like.values())
        signs = torch.where(randomness.uniform(size) < 0.5, -1.0, 1.0)
        return FourierBasis(like, signs, distinct(min(self.rank, size), size, randomness))


class FourierBasis:
    """Coordinates are some real Fourier coefficients of the sign-flipped vector."""

    def __init__(self, shapes: Mapping[str, Tensor], signs: Tensor, chosen: Tensor) -> None:
        first = next(iter(shapes.values()))
        self._shapes = {name: value.shape for name, value in shapes.items()}
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


class TensorParts:
    """A basis for each parameter tensor, side by side."""

    def __init__(self, parts: Mapping[str, Basis]) -> None:
        self._parts = parts
        self.like = {name: _only(part.like) for name, part in parts.items()}

    def coordinates(self, updates: Updates) -> Updates:
        seen = {
            name: part.coordinates(Updates({name: updates.leaves[name]}, updates.losses))
            for name, part in self._parts.items()
        }
        return Updates({name: _only(one.leaves) for name, one in seen.items()}, updates.losses)

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        lifted: dict[str, Tensor] = {}
        for name, part in self._parts.items():
            lifted |= part.lift({next(iter(part.like)): vector[name]})
        return lifted


def _only(values: Mapping[str, V]) -> V:
    (one,) = values.values()
    return one


def distinct(count: int, size: int, randomness: NoiseSource) -> Tensor:
    """`count` different positions below `size`, each set of them equally likely.

    >>> from gnomon.release import SeededNoise
    >>> sorted(distinct(3, 3, SeededNoise(0)).tolist())
    [0, 1, 2]
    """
    if 4 * count > size:
        return shuffle(size, randomness)[:count]
    found = torch.empty(0, dtype=torch.long)
    while len(found) < count:
        more = (randomness.uniform(2 * count) * size).long()
        found = torch.cat([found, more]).unique()
    return found[shuffle(len(found), randomness)[:count]]


def fourier(rows: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The real Fourier transform of each row as an orthogonal map: p numbers in, p numbers out, or the chosen ones.

    >>> x = torch.randn(2, 5, dtype=torch.float64)
    >>> torch.allclose(fourier(x).norm(dim=1), x.norm(dim=1)), torch.allclose(inverse_fourier(fourier(x)), x)
    (True, True)
    >>> torch.equal(fourier(x, torch.tensor([3, 0])), fourier(x)[:, [3, 0]])
    True
    """
    size = rows.shape[1]
    places = torch.arange(size, device=rows.device) if chosen is None else chosen
    if not len(rows):  # some FFT libraries refuse to transform nothing
        return rows.new_zeros(0, len(places))
    ends, count = 2 - size % 2, (size - 1) // 2  # the first and, of an even number, the middle one are real
    inner = (places - ends) % max(count, 1) + 1
    frequency = torch.where(places < ends, places * (size // 2), inner)
    imaginary = places >= ends + count
    parts = torch.view_as_real(torch.fft.rfft(rows, norm="ortho")).flatten(1)
    weights = rows.new_tensor([1.0, 2**0.5])[(places >= ends).long()]
    return parts[:, 2 * frequency + imaginary] * weights


def inverse_fourier(rows: Tensor) -> Tensor:
    """Undoes `fourier`."""
    size = rows.shape[1]
    ends, count = 2 - size % 2, (size - 1) // 2
    ends = min(ends, size)
    inner = torch.complex(rows[:, ends : ends + count], rows[:, ends + count :]) / 2**0.5
    parts = [rows[:, :1] + 0j, inner] + ([rows[:, 1:2] + 0j] if ends == 2 else [])
    return torch.fft.irfft(torch.cat(parts, 1), n=size, norm="ortho")
