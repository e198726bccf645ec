"""How far an honest client can move in a round: what the server accepts."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon import validate

DEVIATIONS = 10
"""How many standard deviations of luck are allowed for: beyond that nobody honest gets."""


@dataclass(frozen=True)
class Reach:
    """From public settings alone, for SGD.

    A released step is a sum of at most about B contributions of length C, and noise in `dims` dimensions, divided by B.

    >>> reach = Reach(max_grad_norm=1.0, noise_multiplier=0.0, expected_batch_size=100, steps=5, lr=0.1)
    >>> reach.step(dims=10), reach.change(dims=10)
    (2.1, 1.05)
    """

    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float
    steps: int
    lr: float
    momentum: float = 0.0
    stretch: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_grad_norm", "expected_batch_size", "lr", "stretch"):
            validate.positive(name, getattr(self, name))
        validate.non_negative("noise_multiplier", self.noise_multiplier)
        validate.whole("steps", self.steps)
        if not 0 <= validate.number("momentum", self.momentum) < 1:
            raise validate.SettingError("momentum", self.momentum, "0 or above and below 1")

    def step(self, dims: int) -> float:
        """The length of one released step."""
        batch = self.expected_batch_size
        most = batch + DEVIATIONS * batch**0.5 + DEVIATIONS
        noise = self.noise_multiplier * (dims**0.5 + DEVIATIONS)
        return float(self.max_grad_norm * (most + noise) / batch)

    def change(self, dims: int, room: float = 0.0) -> float:
        """The length of a round's change; `room` is what the server's own parcel adds to each step."""
        return self.steps * self.lr * (self.stretch * self.step(dims) + room) / (1 - self.momentum)
