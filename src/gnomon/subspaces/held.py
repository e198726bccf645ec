"""A basis that somebody has made already, held fixed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from gnomon.subspaces.basis import Basis, StepContext


@dataclass(frozen=True, eq=False)
class Held:
    """Always the same basis, for example that of a round. `public` are the records that it was made of, if any.

    >>> import torch
    >>> from gnomon.subspaces.basis import AmbientBasis
    >>> Held(AmbientBasis({"weight": torch.zeros(2)}), "all of it").name
    'all of it'
    """

    held: Basis
    name: str
    public: Any = None

    def key(self, context: StepContext) -> Hashable:
        return self  # the object, not its id: an id can come back

    def basis(self, context: StepContext) -> Basis:
        return self.held
