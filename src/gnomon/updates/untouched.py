"""Run a model for a look at it, and leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Buffers:
    """The buffers of a model as they were."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def changed(self) -> str | None:
        """The name of a buffer that differs now, if any."""
        for name, buffer in self._model.named_buffers():
            if name not in self._before or not torch.equal(buffer, self._before[name]):
                return name
        return None

    @torch.no_grad()
    def restore(self) -> None:
        for name, buffer in self._model.named_buffers():
            if name in self._before and self._before[name].shape == buffer.shape:
                buffer.copy_(self._before[name])


@contextmanager
def untouched(model: nn.Module) -> Iterator[Buffers]:
    """Puts buffers, training modes and the random state back as they were.

    >>> model = nn.BatchNorm1d(2)
    >>> with untouched(model) as buffers:
    ...     _ = model(torch.randn(4, 2))
    ...     print(buffers.changed())
    running_mean
    >>> model.num_batches_tracked.item()
    0
    """
    buffers = Buffers(model)
    modes = {module: module.training for module in model.modules()}
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield buffers
    finally:
        buffers.restore()
        for module, mode in modes.items():
            module.training = mode
