"""Gaussian sketches: coordinates in random directions that are drawn anew in every step.

The sketch is drawn from a seed in tiles. A large sketch is never stored: its tiles are drawn again for each use.
"""

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
from gnomon.constraints import Constraint, nearest_fit
from gnomon.errors import SettingError
from gnomon.subspaces.basis import COORDINATES, Basis, StepContext, Subspace, in_coordinates
from gnomon.updates import Factored, Indexed, Leaf, Updates, Zero

TILE_NUMBERS = 2**20
"""The number of entries in a tile: the largest part of a sketch that is in memory unless all of it is stored (or the
number of directions alone is larger)."""

STORED_NUMBERS = 2**25
"""The largest number of entries (128 MB) of a sketch that is stored for its step."""


class Rows(Protocol):
    """A schedule for the number of directions."""

    @property
    def name(self) -> str:
        """The text used in statements and logs."""

    def at(self, step: int, size: int) -> int:
        """Return the number of directions of a step, counted from 0, for a model with `size` parameters."""


@dataclass(frozen=True)
class Growing:
    """The published schedule `m_t = min(d, width^2 / beta_t^2)` with `beta_t = 1 / (t + 1)`, t from 1.

    The width is the Gaussian width of the constraint. The schedule reaches d after a few dozen steps, after which the
    sketch compresses nothing; a constant number of directions is the practical choice.

    >>> from gnomon.constraints import L1Ball
    >>> [Growing(L1Ball(1.0)).at(step, 10_000) for step in (0, 1, 20, 21)]
    [80, 179, 9587, 10000]
    """

    constraint: Constraint

    @property
    def name(self) -> str:
        return f"as many directions as the {self.constraint.name} needs"

    def at(self, step: int, size: int) -> int:
        directions = (self.constraint.width(size) * (step + 2)) ** 2
        return max(1, min(size, math.ceil(directions)))


@dataclass(frozen=True)
class GaussianSketch(Subspace):
    """The sketch `Phi g` with m x d independent N(0, 1/m) entries, drawn anew in every step from public randomness.

    The lift is the transpose of Phi, whose product with Phi is the identity on average.

    Args:
        rows: the number of directions m, or a schedule such as `Growing(constraint)`.
        normalised: scale the coordinates of a vector to its own length, `|g| Phi g / |Phi g|`.

    >>> GaussianSketch(200).name
    'Gaussian sketch, 200 directions'
    """

    rows: int | Rows = 200
    normalised: bool = False

    supports_constraints = True
    sketches_sums = True

    def __post_init__(self) -> None:
        if not hasattr(self.rows, "at"):
            validate.whole("rows", self.rows)

    @property
    def name(self) -> str:
        size = f"{self.rows} directions" if isinstance(self.rows, int) else self.rows.name
        return f"Gaussian sketch, {size}" + (", normalised" if self.normalised else "")

    @property
    def expansion(self) -> Expansion:
        """The bound on how far the sketch of a sum stretches the change that one record makes.

        Raises:
            SettingError: the number of directions follows a schedule, for which no accounting is available.
        """
        if not isinstance(self.rows, int):
            raise SettingError("rows", self.rows.name, "a constant number of directions to sketch a sum privately")
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
    """The entries of a sketch for a rectangle of one parameter: some whole rows of its matrix, or a part of a row.

    Attributes:
        name: the parameter.
        top: the first row of the rectangle.
        bottom: the row after its last.
        left: its first column.
        right: the column after its last.
        start: the position of its first entry in the vector of all parameters.
        values: the entries, (m, rows * columns).
    """

    name: str
    top: int
    bottom: int
    left: int
    right: int
    start: int
    values: Tensor

    @property
    def blocks(self) -> Tensor:
        """The entries by row and column, (m, bottom - top, right - left)."""
        return self.values.unflatten(1, (self.bottom - self.top, self.right - self.left))


class SketchBasis(Basis):
    """The sketch of one step: `apply` multiplies by Phi, `transpose` by its transpose.

    Args:
        like: the trainable parameters.
        rows: the number of directions m.
        seed: determines Phi.
        normalised: scale the coordinates of a vector to its own length.
    """

    def __init__(self, like: Mapping[str, Tensor], rows: int, seed: int, normalised: bool = False) -> None:
        self._parameters, self._rows, self._seed, self.normalised = dict(like), rows, seed, normalised
        self._first = next(iter(like.values()))
        self.like = {COORDINATES: self._first.new_zeros(rows)}
        self.size = sum(p.numel() for p in like.values())
        self._stored: Tensor | None = None
        if rows * self.size <= STORED_NUMBERS:
            self._stored = self._matrix()

    @property
    def rank(self) -> int:
        """The number of directions."""
        return self._rows

    @property
    def largest_stretch(self) -> float:
        """An upper bound on the largest singular value of Phi that fails with probability at most 2e-8."""
        return (math.sqrt(self.size) + math.sqrt(self.rank) + 6) / math.sqrt(self.rank)

    def coordinates(self, updates: Updates) -> Updates:
        values = updates.losses.new_zeros(len(updates), self.rank)
        for tile in self._tiles():
            values += sketched(updates.leaves[tile.name], tile)
        # an inner product with d terms errs by up to sqrt(d) roundings of the update's length; the release allows 1000
        ceilings = updates.ceilings_by_parameter().square().sum(1) * max(1.0, self.size / 1e5)
        if self.normalised:
            norms = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64)
            scale = torch.where(norms > 0, updates.norms() / norms.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
            values = values * scale[:, None].to(values.dtype)
            ceilings = ceilings * scale.square().clamp_min(1.0)
        return in_coordinates(values, updates.losses, ceilings)

    def apply(self, vector: Tensor) -> Tensor:
        """Return `Phi v`, (m,), in the precision of v, for a vector v of all parameters."""
        if self._stored is not None and self._stored.dtype is vector.dtype:
            return self._stored @ vector
        total = vector.new_zeros(self.rank)
        for tile in self._tiles():
            total += tile.values.to(vector.dtype) @ vector[tile.start : tile.start + tile.values.shape[1]]
        return total

    def transpose(self, coordinates: Tensor) -> Tensor:
        """Return `Phi^T r`, a vector of all parameters, for a vector r of coordinates."""
        if self._stored is not None:
            return coordinates @ self._stored
        return torch.cat([coordinates @ tile.values for tile in self._drawn()])

    def lift(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flat = self.transpose(vector[COORDINATES]).split([p.numel() for p in self._parameters.values()])
        return {name: part.view(p.shape) for (name, p), part in zip(self._parameters.items(), flat, strict=True)}

    def sketch_sum(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the coordinates of a sum, in float64, so that rounding cannot hide or enlarge a record's change."""
        exact = torch.cat([total[name].double().flatten() for name in self._parameters])
        coordinates = self.apply(exact)
        if self.normalised:
            norm = float(coordinates.norm())
            coordinates = coordinates * (float(exact.norm()) / norm) if norm > 0 else torch.zeros_like(coordinates)
        return {COORDINATES: coordinates}

    def constrained_point(
        self,
        constraint: Constraint,
        weights: Tensor,
        displacement: Mapping[str, Tensor],
        accuracy: float,
        max_iterations: int,
    ) -> Tensor:
        """Return the fit of `nearest_fit`: among several minimisers, the one nearest to the weights."""
        return nearest_fit(
            self.apply,
            self.transpose,
            self.largest_stretch,
            constraint,
            weights,
            displacement[COORDINATES],
            accuracy,
            max_iterations,
        ).point

    def dense(self) -> Tensor:
        """Return the m x d matrix Phi, for tests and small problems."""
        return torch.cat([tile.values for tile in self._tiles()], 1)

    def _matrix(self) -> Tensor:
        """Draw the whole matrix. Tiles are drawn in parallel: numpy releases the interpreter lock while it draws."""
        matrix = self._first.new_empty(self.rank, self.size)

        def fill(job: tuple[int, Tile]) -> None:
            number, tile = job
            tile.values.copy_(self._normal(number, tile.values.shape[1]))

        jobs = list(enumerate(self._drawn(matrix)))
        if len(jobs) == 1:
            fill(jobs[0])  # starting threads would take longer than drawing
            return matrix
        with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
            list(pool.map(fill, jobs))
        return matrix

    def _tiles(self) -> Iterator[Tile]:
        return self._drawn(self._stored)

    def _drawn(self, stored: Tensor | None = None) -> Iterator[Tile]:
        """Yield all tiles, as views of the stored matrix or newly drawn.

        Each tile has a random stream of its own, so drawing it again gives the same entries.
        """
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
                    values = self._normal(number, size) if stored is None else stored[:, start : start + size]
                    yield Tile(name, top, bottom, left, right, start, values)
                    number, start = number + 1, start + size

    def _normal(self, number: int, size: int) -> Tensor:
        """Draw the entries of the tile with this number, (m, size)."""
        stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence([self._seed, number])))
        values = stream.standard_normal((self.rank, size), dtype=np.float32)
        return torch.from_numpy(values).mul_(1 / math.sqrt(self.rank)).to(self._first)


def sketched(leaf: Leaf, tile: Tile) -> Tensor:
    """Return the part of each sample's coordinates that comes from one tile, (B, m).

    For a linear layer, `Phi (b a^T)` is `b` times one matrix product with all inputs, so no update is materialised.

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
    """Sketch updates that touch a few rows of an embedding table: for each column, a sparse matrix times the tile."""
    inside = (leaf.index >= tile.top) & (leaf.index < tile.bottom)
    starts = torch.cat([inside.new_zeros(1, dtype=torch.long), inside.sum(1).cumsum(0)])
    where, values = (leaf.index - tile.top)[inside], leaf.values[inside]
    total = leaf.like.new_zeros(len(leaf), len(tile.values))
    for column in range(leaf.columns if len(where) else 0):
        table = tile.blocks[:, :, column].T.contiguous()
        weights = values[:, column].contiguous()
        total += embedding_bag(where, table, starts[:-1], mode="sum", per_sample_weights=weights)
    return total
