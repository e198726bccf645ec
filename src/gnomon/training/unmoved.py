"""Nothing that a step reads off records stays in the model or the loss without noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

SMALL = 2**14
"""Buffers up to this size are compared by value in every step: some operations write without leaving a sign."""


class Kept(NamedTuple):
    """A buffer, the count of writes to it, and what it held."""

    tensor: Tensor
    version: int
    copy: Tensor


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
        self._buffers: dict[str, Kept] = {}
        self._parameters: dict[str, tuple[int, int]] = {}

    def note(self) -> None:
        """Everything as it is now."""
        kept, self._buffers = self._buffers, {}
        for name, value in self._named_buffers():
            old = kept.get(name)
            if old is None or _written(old, value) or value.numel() <= SMALL:
                old = Kept(value, _version(value), value.detach().clone())
            self._buffers[name] = old
        self._parameters = {name: (id(p), _version(p)) for name, p in self._named_parameters()}

    def changed(self) -> str | None:
        """The name of what differs now, if anything does."""
        for name, value in self._named_buffers():
            if name not in self._buffers or _differs(self._buffers[name], value):
                return name
        for name, p in self._named_parameters():
            if self._parameters.get(name) != (id(p), _version(p)):
                return name
        return None

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the buffers back."""
        for name, value in self._named_buffers():
            if name in self._buffers and self._buffers[name].copy.shape == value.shape:
                value.copy_(self._buffers[name].copy)

    def _named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, module in self.modules.items():
            yield from module.named_buffers(prefix)

    def _named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, module in self.modules.items():
            yield from module.named_parameters(prefix)


def _version(value: Tensor) -> int:
    return -1 if value.is_inference() else value._version


def _written(kept: Kept, value: Tensor) -> bool:
    return kept.tensor is not value or kept.version != _version(value)


def _differs(kept: Kept, value: Tensor) -> bool:
    if not _written(kept, value) and value.numel() > SMALL:
        return False
    return kept.copy.dtype is not value.dtype or not torch.equal(kept.copy, value)
