"""Run a model for a look at it, and leave no trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Place(NamedTuple):
    """Where a buffer or parameter is: the module by its name among several, and the name within it.

    >>> str(Place("", "0.weight")), str(Place("loss", "weight"))
    ('0.weight', 'loss.weight')
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.module else self.name


def buffers(modules: Mapping[str, nn.Module]) -> Iterator[tuple[Place, Tensor]]:
    """The buffers of several modules. A part of one may have the name of another, so places are pairs.

    >>> [str(place) for place, _ in buffers({"loss": nn.BatchNorm1d(2)})][:2]
    ['loss.running_mean', 'loss.running_var']
    """
    for prefix, module in modules.items():
        yield from ((Place(prefix, name), value) for name, value in module.named_buffers())


def parameters_of(modules: Mapping[str, nn.Module]) -> Iterator[tuple[Place, Tensor]]:
    """The parameters of several modules.

    >>> [str(place) for place, _ in parameters_of({"": nn.Linear(1, 1)})]
    ['weight', 'bias']
    """
    for prefix, module in modules.items():
        yield from ((Place(prefix, name), value) for name, value in module.named_parameters())


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same, NaN in the same places included.

    >>> same(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]))
    True
    """
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


class Before:
    """The buffers of modules as they were, and their parameters if asked."""

    def __init__(self, modules: Mapping[str, nn.Module], parameters: bool) -> None:
        self._modules, self._parameters = modules, parameters
        self._kept = {name: value.detach().clone() for name, value in self._now()}

    def _now(self) -> Iterator[tuple[Place, Tensor]]:
        yield from buffers(self._modules)
        if self._parameters:
            yield from parameters_of(self._modules)

    def changed(self) -> str | None:
        """The name of what differs now, if anything does."""
        for place, value in self._now():
            if place not in self._kept or not same(value, self._kept[place]):
                return str(place)
        return None

    @torch.no_grad()
    def restore(self) -> None:
        for place, value in self._now():
            if place in self._kept and self._kept[place].shape == value.shape:
                value.copy_(self._kept[place])


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
