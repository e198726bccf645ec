"""Coordinates in fresh Gaussian directions, drawn from a seed in tiles and not stored where the model is large."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from gnomon import validate
from gnomon.accounting.sketch import Expansion, LinearSketch, NormalisedSketch
from gnomon.constraints import Constraint
from gnomon.errors import SettingError
from gnomon.subspaces.basis import COORDINATES, Basis, StepContext, in_coordinates
from gnomon.updates import Factored, Indexed, Leaf, Updates, Zero

TILE_NUMBERS = 2**20
"""How many numbers of a sketch exist at a time, unless all of it is kept (or m alone is larger)."""

KEPT_NUMBERS = 2**25
"""A sketch of at most so many numbers (128 MB) is kept for its step; a larger one is drawn again for each use."""


class Rows(Protocol):
    """How many directions a step gets."""

    @property
    def name(self) -> str: ...

    def at(self, step: int, size: int) -> int:
        """For the step (counted from 0) of a model with `size` parameters."""


@dataclass(frozen=True)
class Growing:
    """The published schedule `m_t = min(d, width^2 / beta_t^2)` with `beta_t = 1 / (t + 1)`, t from 1.

    It reaches d after a few dozen steps and then compresses nothing; a constant number is the practical choice.

    >>> from gnomon.constraints import L1Ball
    >>> [Growing(L1Ball(1.0)).at(step, 10_000) for step in (0, 1, 20, 21)]
    [80, 179, 9587, 10000]
    """

    constraint: Constraint

    @property
    def name(self) -> str:
        return f"as many directions as the {self.constraint.name} needs"

    def at(self, step: int, size: int) -> int:
        wanted = (self.constraint.width(size) * (step + 2)) ** 2
        return max(1, min(size, math.ceil(wanted)))


@dataclass(frozen=True)
class GaussianSketch:
    """`Phi g` with m x d independent N(0, 1/m) entries, fresh in every step, from public randomness.

    `rows` is m, or a schedule such as `Growing(constraint)`. With `normalised`, a vector's coordinates are scaled
    to its own length: `|g| Phi g / |Phi g|`. The lift is the transpose, so that on average it undoes the sketch.

    >>> GaussianSketch(200).name
    'Gaussian sketch, 200 directions'
    """

    rows: int | Rows = 200
    normalised: bool = False

    def __post_init__(self) -> None:
        if not hasattr(self.rows, "at"):
            validate.whole("rows", self.rows)

    @property
    def name(self) -> str:
        size = f"{self.rows} directions" if isinstance(self.rows, int) else self.rows.name
        return f"Gaussian sketch, {size}" + (", normalised" if self.normalised else "")

    @property
    def expansion(self) -> Expansion:
        """How far this sketch of a whole sum can stretch what one record changes in it."""
        if not isinstance(self.rows, int):
            raise SettingError("rows", self.rows.name, "a constant number of directions to sketch a sum")
        return NormalisedSketch(self.rows) if self.normalised else LinearSketch(self.rows)

    def key(self, context: StepContext) -> Hashable:
        return context.step

    def basis(self, context: StepContext) -> Basis:
        size = sum(p.numel() for p in context.like.values())
        rows = self.rows if isinstance(self.rows, int) else self.rows.at(context.step, size)
        seed = int(context.randomness.uniform(1).item() * 2**53)
        return SketchBasis(context.like, rows, seed, self.normalised)


@dataclass(frozen=True)
class Tile:
    """Directions for a rectangle of one parameter, seen as rows x columns: whole rows, or a part of one."""

    name: str
    top: int
    bottom: int
    left: int
    right: int
    start: int
    """Where it starts in the vector of all parameters."""
    values: Tensor
    """(m, numbers)"""

    @property
    def blocks(self) -> Tensor:
        """(m, bottom - top, right - left)"""
        return self.values.unflatten(1, (self.bottom - self.top, self.right - self.left))


class SketchBasis:
    """The sketch of one step: `apply` is Phi, `transpose` its transpose, `coordinates` Phi for every sample."""

    def __init__(self, like: Mapping[str, Tensor], rows: int, seed: int, normalised: bool = False) -> None:
        self._parameters, self._seed, self.normalised = dict(like), seed, normalised
        self.rank = rows
        self._first = next(iter(like.values()))
        self.like = {COORDINATES: self._first.new_zeros(rows)}
        self.size = sum(p.numel() for p in like.values())
        self._kept: Tensor | None = None
        if rows * self.size <= KEPT_NUMBERS:
            self._kept = self._all()

    @property
    def largest_stretch(self) -> float:
        """Above the largest singular value of Phi but for a chance of 2e-8."""
        return (math.sqrt(self.size) + math.sqrt(self.rank) + 6) / math.sqrt(self.rank)

    def coordinates(self, updates: Updates) -> Updates:
        total = updates.losses.new_zeros(len(updates), self.rank)
        for tile in self._tiles():
            total += sketched(updates.leaves[tile.name], tile)
        # a product with d terms errs by up to sqrt(d) roundings of the update's length; the release allows 1000
        ceilings = updates.ceilings_by_parameter().square().sum(1) * max(1.0, self.size / 1e5)
        if self.normalised:
            short = torch.linalg.vector_norm(total, dim=1, dtype=torch.float64)
            scale = torch.where(short > 0, updates.norms() / short.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
            total = total * scale[:, None].to(total.dtype)
            ceilings = ceilings * scale.square().clamp_min(1.0)
        return in_coordinates(total, updates.losses, ceilings)

    def apply(self, vector: Tensor) -> Tensor:
        """`Phi v`, (m,), in the precision of v, for a vector of all parameters."""
        if self._kept is not None and self._kept.dtype is vector.dtype:
            return self._kept @ vector
        total = vector.new_zeros(self.rank)
        for tile in self._tiles():
            total += tile.values.to(vector.dtype) @ vector[tile.start : tile.start + tile.values.shape[1]]
        return total

    def transpose(self, coordinates: Tensor) -> Tensor:
        """`Phi^T r`, a vector of all parameters."""
        if self._kept is not None:
            return coordinates @ self._kept
        return torch.cat([coordinates @ tile.values for tile in self._drawn()])

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flat = self.transpose(vector[COORDINATES]).split([p.numel() for p in self._parameters.values()])
        return {name: part.view(p.shape) for (name, p), part in zip(self._parameters.items(), flat, strict=True)}

    def see(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The coordinates of a sum, in float64: what one record changes must not drown in rounding."""
        exact = torch.cat([total[name].double().flatten() for name in self._parameters])
        seen = self.apply(exact)
        if self.normalised:
            short = float(seen.norm())
            seen = seen * (float(exact.norm()) / short) if short > 0 else torch.zeros_like(seen)
        return {COORDINATES: seen}

    projection = None  # a sketch is not orthonormal: it stretches some updates and shrinks others

    def dense(self) -> Tensor:
        """The m x d matrix, for tests and small problems."""
        return torch.cat([tile.values for tile in self._tiles()], 1)

    def _all(self) -> Tensor:
        """The whole matrix; its tiles are drawn in parallel, for numpy lets go of the lock meanwhile."""
        matrix = self._first.new_empty(self.rank, self.size)

        def fill(job: tuple[int, Tile]) -> None:
            number, tile = job
            tile.values.copy_(self._normal(number, tile.values.shape[1]))

        jobs = list(enumerate(self._drawn(matrix)))
        if len(jobs) == 1:
            fill(jobs[0])  # starting threads would take longer
            return matrix
        with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
            list(pool.map(fill, jobs))
        return matrix

    def _tiles(self) -> Iterator[Tile]:
        return self._drawn(self._kept)

    def _drawn(self, kept: Tensor | None = None) -> Iterator[Tile]:
        """Every tile from a stream of its own, so that drawing them again gives the same numbers; or as it was kept."""
        area = max(1, TILE_NUMBERS // self.rank)
        number = start = 0
        for name, p in self._parameters.items():
            rows = p.shape[0] if p.dim() else 1
            columns = p.numel() // max(rows, 1)
            tall, wide = max(1, area // max(columns, 1)), max(1, min(columns, area))
            for top in range(0, rows, tall):
                for left in range(0, columns, wide):
                    bottom, right = min(top + tall, rows), min(left + wide, columns)
                    size = (bottom - top) * (right - left)
                    values = self._normal(number, size) if kept is None else kept[:, start : start + size]
                    yield Tile(name, top, bottom, left, right, start, values)
                    number, start = number + 1, start + size

    def _normal(self, number: int, size: int) -> Tensor:
        stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence([self._seed, number])))
        values = stream.standard_normal((self.rank, size), dtype=np.float32)
        return torch.from_numpy(values).mul_(1 / math.sqrt(self.rank)).to(self._first)


def sketched(leaf: Leaf, tile: Tile) -> Tensor:
    """What one tile adds to the coordinates of every sample, (B, m).

    For a linear layer `Phi (b a^T)` is `b` times one matrix product with all inputs; no update is written out.

    >>> from gnomon.updates import Dense
    >>> tile = Tile("weight", 0, 1, 0, 2, 0, torch.ones(3, 2))
    >>> sketched(Dense(torch.tensor([[[1.0, 2.0]]])), tile)
    tensor([[3., 3., 3.]])
    """
    values = tile.blocks
    if isinstance(leaf, Zero):
        return leaf.like.new_zeros(len(leaf), len(values))
    if isinstance(leaf, Factored) and leaf.length == 1 and leaf.inputs.shape[1] == 1:
        inputs = leaf.inputs[:, 0, 0, tile.left : tile.right]
        outputs = leaf.outputs[:, 0, 0]
        total = leaf.like.new_zeros(len(leaf), len(values))
        for row in range(tile.top, tile.bottom):
            total.addcmul_(outputs[:, row, None], inputs @ values[:, row - tile.top].T)
        return total
    if isinstance(leaf, Indexed) and tile.right - tile.left == leaf.columns:
        return _indexed(leaf, tile)
    rows = leaf.block(tile.top, tile.bottom)[:, :, tile.left : tile.right]
    return rows.flatten(1) @ values.flatten(1).T


def _indexed(leaf: Indexed, tile: Tile) -> Tensor:
    """Samples that touch a few rows of a table: a sparse matrix times the tile, for each column."""
    inside = (leaf.index >= tile.top) & (leaf.index < tile.bottom)
    starts = torch.cat([inside.new_zeros(1, dtype=torch.long), inside.sum(1).cumsum(0)])
    where, values = (leaf.index - tile.top)[inside], leaf.values[inside]
    total = leaf.like.new_zeros(len(leaf), len(tile.values))
    for column in range(leaf.columns if len(where) else 0):
        table = tile.blocks[:, :, column].T.contiguous()
        weights = values[:, column].contiguous()
        total += embedding_bag(where, table, starts[:-1], mode="sum", per_sample_weights=weights)
    return total
