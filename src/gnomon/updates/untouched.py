"""Run a model for a look at it, and leave no trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Before:
    """The buffers of modules as they were, and their parameters if asked. Names begin with that of the module."""

    def __init__(self, modules: Mapping[str, nn.Module], parameters: bool) -> None:
        self._modules, self._parameters = modules, parameters
        self._kept = {name: value.detach().clone() for name, value in self._now()}

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, module in self._modules.items():
            yield from module.named_buffers(prefix)
            if self._parameters:
                yield from module.named_parameters(prefix)

    def changed(self) -> str | None:
        """The name of what differs now, if anything does."""
        for name, value in self._now():
            if name not in self._kept or not torch.equal(value, self._kept[name]):
                return name
        return None

    @torch.no_grad()
    def restore(self) -> None:
        for name, value in self._now():
            if name in self._kept and self._kept[name].shape == value.shape:
                value.copy_(self._kept[name])


@contextmanager
def untouched(
    model: nn.Module, parameters: bool = False, beside: Mapping[str, nn.Module] | None = None
) -> Iterator[Before]:
    """Puts buffers, training modes, the random state, and parameters if asked, back as they were.

    `beside` are other modules, by a name, of which the same is true.

    >>> model = nn.BatchNorm1d(2)
    >>> with untouched(model) as before:
    ...     _ = model(torch.randn(4, 2))
    ...     print(before.changed())
    running_mean
    >>> model.num_batches_tracked.item()
    0
    """
    held = {"": model} | dict(beside or {})
    before = Before(held, parameters)
    modes = {module: module.training for one in held.values() for module in one.modules()}
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield before
    finally:
        before.restore()
        for module, mode in modes.items():
            module.training = mode
