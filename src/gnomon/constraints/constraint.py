"""What a constraint set is."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    """A convex set C of vectors with `size` entries: all trainable parameters of a model, one after the other."""

    @property
    def name(self) -> str:
        """For statements and logs."""

    def check(self, size: int) -> None:
        """An error if no vector of this size can be in the set."""

    def project(self, vector: Tensor) -> Tensor:
        """The point of C nearest to the vector."""

    def lowest(self, direction: Tensor) -> Tensor:
        """A point of C with the smallest inner product with `direction`: the linear oracle."""

    def width(self, size: int) -> float:
        """The Gaussian width `E sup over C of <g, x>`, or a bound on it from above that is close for large sizes."""

    def diameter(self, size: int) -> float:
        """The largest distance between two points of C."""
