"""Repeatable randomness: runs of a model that draw the same random numbers, so that their results can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NEITHER = (False, False)
"""The classification of an operation that neither masks nor draws."""


class RepeatableRandomness:
    """Make torch draw the same random numbers in every run of a model.

    This covers the CPU's generator, the generators of devices, and generators of the model's own. In constant mode the
    numbers do not depend on the batch size either: dropout keeps everything, and every draw returns a fixed value.

    >>> model, randomness = nn.Dropout(0.5), RepeatableRandomness(nn.Dropout(0.5))
    >>> with randomness.repeated() as watch:
    ...     first = model(torch.ones(9))
    >>> with randomness.repeated():
    ...     print(watch.drew, torch.equal(first, model(torch.ones(9))))
    True True
    >>> with randomness.repeated(constant=True):
    ...     print(model(torch.ones(2)))
    tensor([2., 2.])
    """

    def __init__(self, model: nn.Module) -> None:
        devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
        self._device_states = {device: torch.cuda.get_rng_state(device) for device in devices}
        self._cpu_state = torch.get_rng_state()

    @contextmanager
    def repeated(self, constant: bool = False) -> Iterator[RandomOpMode]:
        """Draw the numbers that followed when this object was created, or constants, in the enclosed code.

        Torch's generators are not restored on exit. Every operation is dispatched through Python, which is slow.
        """
        self.restore()
        with RandomOpMode(constant) as watch:
            yield watch

    def restore(self) -> None:
        """Reset torch's own generators, which suffices for a model that uses no others."""
        torch.set_rng_state(self._cpu_state)
        for device, state in self._device_states.items():
            torch.cuda.set_rng_state(state, device)


class RandomOpMode(TorchDispatchMode):
    """Intercept every operation of torch, and redirect those that draw random numbers."""

    supports_higher_order_operators = True

    def __init__(self, constant: bool) -> None:
        super().__init__()
        self.drew = False
        """Whether a random number was drawn."""
        self.own_generator = False
        """Whether a random number was drawn from a generator other than torch's default ones."""
        self._constant = constant

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        masks, draws = kind = _kind(func)
        if kind is NEITHER:
            return func(*args, **kwargs)
        arguments = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        inactive = arguments.get("dropout_p", arguments.get("dropout")) == 0
        self.drew = self.drew or (draws and not inactive)
        self.own_generator = self.own_generator or arguments.get("generator") is not None
        changes: dict[str, Any] = {"generator": None}  # a generator of the model's own does not advance
        if self._constant:
            changes |= {"dropout": 0.0, "dropout_p": 0.0}
            if masks:
                changes["p"] = 1.0 if "_fused_dropout" in func.name() else 0.0
            if "upper" in arguments:  # the random slope of RReLU becomes the mean of its bounds
                changes["lower"] = changes["upper"] = (arguments["lower"] + arguments["upper"]) / 2
        result = func(*_replaced(func, args, changes), **{k: changes.get(k, v) for k, v in kwargs.items()})
        if self._constant and not masks and "upper" not in arguments:
            pytree.tree_map_only(Tensor, lambda t: _fill(t, func.name(), arguments), result)
        return result


@cache
def _kind(func: Any) -> tuple[bool, bool]:
    """Return whether an operation masks its input (dropout), and whether it draws random numbers."""
    if not isinstance(func, OpOverload):
        return NEITHER
    names = {argument.name for argument in func._schema.arguments}
    masks = bool(names & {"dropout", "dropout_p"}) or "dropout" in func.name()
    draws = torch.Tag.nondeterministic_seeded in func.tags or "generator" in names
    return (masks, draws) if masks or draws else NEITHER


def _replaced(func: Any, args: tuple[Any, ...], changes: dict[str, Any]) -> list[Any]:
    """Return the positional arguments of an operation with some replaced by name."""
    return [changes.get(a.name, value) for a, value in zip(func._schema.arguments, args, strict=False)]


def _fill(drawn: Tensor, name: str, arguments: dict[str, Any]) -> None:
    """Overwrite drawn values by one possible value: the last index, the reversed permutation, or a central number."""
    if "randperm" in name:
        drawn.copy_(torch.arange(len(drawn) - 1, -1, -1))
    elif "bernoulli" in name or drawn.dtype is torch.bool:
        drawn.fill_(1)
    elif "multinomial" in name:
        drawn.fill_(arguments["self"].shape[-1] - 1)
    elif "rand" in name and not drawn.is_floating_point():
        high = arguments.get("high", arguments.get("to"))
        drawn.fill_(0 if high is None else int(high) - 1)
    elif "uniform" in name:
        drawn.fill_((arguments.get("from", 0.0) + arguments.get("to", 1.0)) / 2)
    else:
        drawn.fill_(0.5)
