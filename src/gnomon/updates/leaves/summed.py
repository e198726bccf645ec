"""The updates of a parameter that is used more than once, such as tied weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from gnomon.updates.leaves.dense import Dense
from gnomon.updates.leaves.factored import Factored, exact_where_cancelled
from gnomon.updates.leaves.indexed import Indexed
from gnomon.updates.leaves.leaf import Leaf


class Summed(Leaf):
    """The sum of several leaves of one parameter; its norm includes the cross terms."""

    def __init__(self, parts: Sequence[Leaf]) -> None:
        self.parts = tuple(parts)
        self.shape = parts[0].shape

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def like(self) -> Tensor:
        return self.parts[0].like

    def block(self, start: int, stop: int) -> Tensor:
        return torch.stack([part.block(start, stop) for part in self.parts]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.stack([part.weighted_sum(weights) for part in self.parts]).sum(0)

    def square_norms(self) -> Tensor:
        return self._measured[0]

    def square_spreads(self) -> Tensor:
        return self._measured[1]

    @cached_property
    def _measured(self) -> tuple[Tensor, Tensor]:
        """The square norms and the spread of their terms."""
        cross_terms = [a.inner_with_spread(b) for a, b in combinations(self.parts, 2)]
        squares = [part.square_norms() for part in self.parts] + [2 * cross for cross, _ in cross_terms]
        spreads = [part.square_spreads() for part in self.parts] + [2 * spread for _, spread in cross_terms]
        spread = torch.stack(spreads).sum(0)
        return exact_where_cancelled(self, torch.stack(squares).sum(0), self.square_ceilings(), spread), spread

    def square_ceilings(self) -> Tensor:
        return torch.stack([part.square_ceilings().sqrt() for part in self.parts]).sum(0).square()

    def gram(self, other: Leaf) -> Tensor:
        return torch.stack([part.gram(other) for part in self.parts]).sum(0)

    def select(self, index: Tensor) -> Summed:
        return Summed([part.select(index) for part in self.parts])

    def times(self, x: Tensor) -> Tensor:
        return torch.stack([part.times(x) for part in self.parts]).sum(0)

    def rows_at(self, index: Tensor) -> Tensor:
        return torch.stack([part.rows_at(index) for part in self.parts]).sum(0)

    def double(self) -> Summed:
        return Summed([part.double() for part in self.parts])

    def merged(self, views: int) -> Summed:
        return Summed([part.merged(views) for part in self.parts])


def add(leaves: Sequence[Leaf]) -> Leaf:
    """Return the sum of leaves of one parameter as one leaf, in the simplest form.

    >>> add([Dense(torch.ones(2, 3)), Dense(torch.ones(2, 3))]).dense().sum().item()
    12.0
    """
    if len(leaves) == 1:
        return leaves[0]
    factored = [leaf for leaf in leaves if isinstance(leaf, Factored)]
    indexed = [leaf for leaf in leaves if isinstance(leaf, Indexed)]
    dense = [leaf for leaf in leaves if isinstance(leaf, Dense)]
    others = [leaf for leaf in leaves if not isinstance(leaf, Factored | Indexed | Dense)]
    merged: list[Leaf] = list(others)
    if dense:
        merged.append(Dense(torch.stack([leaf.values for leaf in dense]).sum(0)))
    if indexed:
        index = torch.cat([leaf.index for leaf in indexed], 1)
        merged.append(Indexed(index, torch.cat([leaf.values for leaf in indexed], 1), indexed[0].shape))
    if factored:
        inputs = torch.cat([leaf.inputs for leaf in factored], 2)
        outputs = torch.cat([leaf.outputs for leaf in factored], 2)
        merged.append(Factored(inputs, outputs, factored[0].shape))
    # Indexed.inner has a cheap way for factored leaves, so indexed leaves come first
    merged.sort(key=lambda leaf: not isinstance(leaf, Indexed))
    return merged[0] if len(merged) == 1 else Summed(merged)
