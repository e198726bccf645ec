"""Nothing that a step reads off records stays in the model or the loss without noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnomon.updates.untouched import Place, buffers, parameters_of, same

SMALL = 2**14
"""Tensors up to this size are compared by value in every step: some operations write without leaving a sign."""


class Kept(NamedTuple):
    """A tensor, the count of writes to it, and what it held: a copy, or of a large parameter two sums."""

    tensor: Tensor
    version: int
    held: Tensor


class Unmoved:
    """The buffers and parameters of modules in a step, as they were before it saw records.

    A buffer may be written to if it holds the same afterwards, as in the check before training; a parameter may not.

    >>> model = nn.BatchNorm1d(2)
    >>> unmoved = Unmoved({"": model})
    >>> unmoved.note()
    >>> _ = model(torch.randn(4, 2))
    >>> unmoved.changed()
    'running_mean'
    >>> unmoved.restore()
    >>> unmoved.changed() is None
    True
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.modules = dict(modules)
        self._buffers: dict[Place, Kept] = {}
        self._parameters: dict[Place, Kept] = {}

    def note(self) -> None:
        """Everything as it is now."""
        kept, self._buffers = self._buffers, {}
        for place, value in buffers(self.modules):
            old = kept.get(place)
            if old is None or _written(old, value) or value.numel() <= SMALL:
                old = Kept(value, _version(value), value.detach().clone())
            self._buffers[place] = old
        self._parameters = {place: Kept(p, _version(p), _trace(p)) for place, p in parameters_of(self.modules)}

    def changed(self) -> str | None:
        """The name of what differs now, if anything does."""
        for place, value in buffers(self.modules):
            if place not in self._buffers or _differs(self._buffers[place], value):
                return str(place)
        for place, p in parameters_of(self.modules):
            old = self._parameters.get(place)
            if old is None or _written(old, p) or not same(old.held, _trace(p)):
                return str(place)
        return None

    @torch.no_grad()
    def restore(self) -> None:
        """Puts back the buffers, and the parameters that were copied."""
        for place, value in buffers(self.modules):
            if place in self._buffers and self._buffers[place].held.shape == value.shape:
                value.copy_(self._buffers[place].held)
        for place, p in parameters_of(self.modules):
            old = self._parameters.get(place)
            if old is not None and p.numel() <= SMALL and not same(old.held, p):
                p.copy_(old.held)


def _trace(parameter: Tensor) -> Tensor:
    """A copy of a small parameter; of a large one its sum and that of its squares."""
    value = parameter.detach()
    if value.numel() <= SMALL:
        return value.clone()
    value = torch.view_as_real(value) if value.is_complex() else value
    total = value.sum(dtype=torch.float64)
    squares = torch.linalg.vector_norm(value, dtype=torch.float64) if value.is_floating_point() else total
    return torch.stack([total, squares])


def _version(value: Tensor) -> int:
    return -1 if value.is_inference() else value._version


def _written(kept: Kept, value: Tensor) -> bool:
    return kept.tensor is not value or kept.version != _version(value)


def _differs(kept: Kept, value: Tensor) -> bool:
    if not _written(kept, value) and value.numel() > SMALL:
        return False
    return not same(kept.held, value)
