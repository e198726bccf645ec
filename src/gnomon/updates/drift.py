"""How far local steps have moved the parameters of every sample, in the form that is cheapest to hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.updates.leaves import Dense, Factored, Indexed, Leaf, Summed, Zero, add
from gnomon.updates.trees import same_memory


@dataclass(frozen=True)
class LocalDescent:
    """K steps of size lr, with a momentum that starts at zero.

    >>> LocalDescent(0, 0.1)
    Traceback (most recent call last):
    gnomon.errors.SettingError: local-steps = 0 is invalid; expected a whole number, 1 or above
    """

    steps: int
    lr: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validate.whole("local-steps", self.steps)
        validate.positive("local-lr", self.lr)
        allowed = "at least 0 and below 1"
        if not 0 <= validate.number("local-momentum", self.momentum, allowed) < 1:
            raise SettingError("local-momentum", self.momentum, allowed)


class Drift:
    """`-lr * (sum of velocities)` of one parameter, fed with one gradient a step.

    A gradient is seen as a carrier (what went into a layer) and a payload that the momentum acts on. Where the
    carrier stays the same from step to step (the first layer sees the same record again) payloads add up; where it
    changes, a step's rows join those of the steps before. A written-out gradient has no carrier.

    >>> import torch
    >>> drift = Drift(LocalDescent(steps=2, lr=0.5, momentum=0.0), Dense(torch.ones(1, 3)))
    >>> drift.take(Dense(torch.ones(1, 3)))
    >>> drift.leaf.dense()
    tensor([[-1., -1., -1.]])
    """

    def __init__(self, descent: LocalDescent, first: Leaf) -> None:
        self.descent, self.shape = descent, first.shape
        self.written = not _stays_low_rank(first, descent.steps)
        carrier, payload = self._apart(first)
        self.carrier = self.last = carrier
        self.velocity = payload.clone() if descent.momentum else None
        self.payload = payload * -descent.lr
        self.rows = 0 if carrier is None else carrier.shape[1]  # so many of the buffers are in use

    def take(self, gradient: Leaf) -> None:
        """One more step."""
        carrier, payload = self._apart(gradient)
        place = self._place(carrier)
        if self.velocity is None:
            self._part(self.payload, place).sub_(payload, alpha=self.descent.lr)
            return
        every = slice(0, self.rows)
        self._part(self.velocity, every).mul_(self.descent.momentum)
        self._part(self.velocity, place).add_(payload)
        self._part(self.payload, every).sub_(self._part(self.velocity, every), alpha=self.descent.lr)

    @property
    def leaf(self) -> Leaf:
        """The drift so far, as a leaf."""
        if self.carrier is None:
            return Dense(self.payload)
        carrier, payload = self.carrier[:, : self.rows], self.payload[:, : self.rows]
        if carrier.is_floating_point():
            return Factored(carrier[:, None], payload[:, None], self.shape)
        return Indexed(carrier, payload, self.shape)

    def _apart(self, leaf: Leaf) -> tuple[Tensor | None, Tensor]:
        """Carrier (B, T, ...) and payload (B, T, ...)."""
        if self.written:
            return None, leaf.dense()
        if isinstance(leaf, Factored):
            return leaf.inputs[:, 0], leaf.outputs[:, 0]
        assert isinstance(leaf, Indexed)
        return leaf.index, leaf.values

    def _part(self, held: Tensor, rows: slice) -> Tensor:
        return held if self.carrier is None else held[:, rows]

    def _place(self, carrier: Tensor | None) -> slice:
        """Which rows of the buffers a step adds to: those of the last step if it saw the same, else new ones."""
        if carrier is None or self.carrier is None or self.last is None:
            return slice(0)
        new = carrier.shape[1]
        if same_memory(carrier, self.last):
            return slice(self.rows - new, self.rows)
        if self.rows + new > self.carrier.shape[1]:
            most = max(self.rows + new, self.descent.steps * new)
            self.carrier = _longer(self.carrier, most)
            self.payload = _longer(self.payload, most)
            self.velocity = None if self.velocity is None else _longer(self.velocity, most)
        place = slice(self.rows, self.rows + new)
        self.rows += new
        self.last = carrier
        self.carrier[:, place] = carrier
        self.payload[:, place] = 0
        if self.velocity is not None:
            self.velocity[:, place] = 0
        return place


class Together:
    """The drift of a parameter whose gradient has several forms at once: tied weights."""

    def __init__(self, descent: LocalDescent, first: Summed) -> None:
        self.parts = [drift_of(descent, part) for part in first.parts]

    def take(self, gradient: Leaf) -> None:
        assert isinstance(gradient, Summed)
        for part, leaf in zip(self.parts, gradient.parts, strict=True):
            part.take(leaf)

    @property
    def leaf(self) -> Leaf:
        return add([part.leaf for part in self.parts])


def drift_of(descent: LocalDescent, first: Leaf) -> Drift | Together:
    """What holds the drift of a parameter, from its first gradient."""
    if isinstance(first, Summed) and all(_stays_low_rank(part, descent.steps) for part in first.parts):
        return Together(descent, first)
    return Drift(descent, first)


def _stays_low_rank(leaf: Leaf, steps: int) -> bool:
    """Whether rows of all steps together are cheaper to multiply with, on average, than the matrix they make."""
    if isinstance(leaf, Indexed):
        return True
    if not isinstance(leaf, Factored) or leaf.inputs.shape[1] > 1:
        return False
    return steps * leaf.length * (leaf.rows + leaf.columns) <= 2 * leaf.rows * leaf.columns


def _longer(held: Tensor, rows: int) -> Tensor:
    longer = held.new_empty(held.shape[0], rows, *held.shape[2:])
    longer[:, : held.shape[1]] = held
    return longer


Steps = Callable[[dict[str, Leaf] | None], dict[str, Leaf]]
"""drift -> gradients there"""


def descend(descent: LocalDescent, gradients: Steps) -> dict[str, Leaf]:
    """The displacement after all steps."""
    first = gradients(None)
    drifts = {name: drift_of(descent, leaf) for name, leaf in first.items() if not isinstance(leaf, Zero)}
    unused = {name: leaf for name, leaf in first.items() if isinstance(leaf, Zero)}
    del first
    for _ in range(descent.steps - 1):
        for name, leaf in gradients({name: drift.leaf for name, drift in drifts.items()}).items():
            if isinstance(leaf, Zero) != (name in unused):
                raise ValueError(
                    f"parameter '{name}' takes part in some local steps and not in others: "
                    "the model's path must not depend on its weights"
                )
            if name in drifts:
                drifts[name].take(leaf)
    return {name: drifts[name].leaf if name in drifts else unused[name] for name in (*drifts, *unused)}
