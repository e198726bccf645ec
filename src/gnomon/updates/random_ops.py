"""Runs of a model whose random numbers repeat: what differs between two of them differs for another reason."""

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


class RepeatableRandomness:
    """The random numbers that torch draws while a model runs, the same in every run.

    Where they come from does not matter: the CPU's generator, a device's, one of the model's own. With `constant` they
    do not depend on the size of a batch either: nothing is dropped out, and all that is drawn is one number.

    >>> model, chance = nn.Dropout(0.5), RepeatableRandomness(nn.Dropout(0.5))
    >>> with chance.repeated() as watch:
    ...     first = model(torch.ones(9))
    >>> with chance.repeated():
    ...     print(watch.drew, torch.equal(first, model(torch.ones(9))))
    True True
    >>> with chance.repeated(constant=True):
    ...     print(model(torch.ones(2)))
    tensor([2., 2.])
    """

    def __init__(self, model: nn.Module) -> None:
        places = {p.device for p in model.parameters() if p.device.type == "cuda"}
        self._devices = {device: torch.cuda.get_rng_state(device) for device in places}
        self._cpu = torch.get_rng_state()

    @contextmanager
    def repeated(self, constant: bool = False) -> Iterator[RandomOpMode]:
        """Random numbers as they would have been when this was made, or constants. The caller puts the state back.

        Every operation goes through Python here, which takes its time.
        """
        self.restore()
        with RandomOpMode(constant) as watch:
            yield watch

    def restore(self) -> None:
        """Puts the generators of torch back, which is enough where no others were used."""
        torch.set_rng_state(self._cpu)
        for device, state in self._devices.items():
            torch.cuda.set_rng_state(state, device)


class RandomOpMode(TorchDispatchMode):
    """Sees every operation of torch, and takes the place of those that draw."""

    supports_higher_order_operators = True

    def __init__(self, constant: bool) -> None:
        super().__init__()
        self.drew = False
        """Whether any random number was drawn so far."""
        self.own = False
        """Whether one came from a generator that is not torch's."""
        self._constant = constant

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        masks, draws = kind = _kind(func)
        if kind is NEITHER:
            return func(*args, **kwargs)
        given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        unused = given.get("dropout_p", given.get("dropout")) == 0
        self.drew = self.drew or (draws and not unused)
        self.own = self.own or given.get("generator") is not None
        changes: dict[str, Any] = {"generator": None}  # a generator of the model's own stays where it is
        if self._constant:
            changes |= {"dropout": 0.0, "dropout_p": 0.0}
            if masks:
                changes["p"] = 1.0 if "_fused_dropout" in func.name() else 0.0
            if "upper" in given:  # a slope between two
                changes["lower"] = changes["upper"] = (given["lower"] + given["upper"]) / 2
        result = func(*_exchanged(func, args, changes), **{k: changes.get(k, v) for k, v in kwargs.items()})
        if self._constant and not masks and "upper" not in given:
            pytree.tree_map_only(Tensor, lambda t: _fill(t, func.name(), given), result)
        return result


@cache
def _kind(func: Any) -> tuple[bool, bool]:
    """Whether an operation masks what it is given, and whether it draws."""
    if not isinstance(func, OpOverload):
        return NEITHER
    names = {argument.name for argument in func._schema.arguments}
    masks = bool(names & {"dropout", "dropout_p"}) or "dropout" in func.name()
    draws = torch.Tag.nondeterministic_seeded in func.tags or "generator" in names
    return (masks, draws) if masks or draws else NEITHER


def _exchanged(func: Any, args: tuple[Any, ...], changes: dict[str, Any]) -> list[Any]:
    return [changes.get(a.name, value) for a, value in zip(func._schema.arguments, args, strict=False)]


def _fill(drawn: Tensor, name: str, given: dict[str, Any]) -> None:
    """A value that could have been drawn, in place of each that was; of positions the last, and the order reversed."""
    if "randperm" in name:
        drawn.copy_(torch.arange(len(drawn) - 1, -1, -1))
    elif "bernoulli" in name or drawn.dtype is torch.bool:
        drawn.fill_(1)
    elif "multinomial" in name:
        drawn.fill_(given["self"].shape[-1] - 1)
    elif "rand" in name and not drawn.is_floating_point():
        high = given.get("high", given.get("to"))
        drawn.fill_(0 if high is None else int(high) - 1)
    elif "uniform" in name:
        drawn.fill_((given.get("from", 0.0) + given.get("to", 1.0)) / 2)
    else:
        drawn.fill_(0.5)
