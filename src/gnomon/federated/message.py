"""What travels between server and clients: arrays by group, and a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

NUMBER_BYTES = 8
Arrays = dict[str, Tensor]


@dataclass
class Message:
    """One message, either way. Nothing in it is code.

    >>> Message(1, {"change": {"weight": torch.zeros(10)}}, {"loss": 2.0}).bytes
    56
    """

    round: int
    arrays: dict[str, Arrays] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The payload: arrays as they are, eight bytes for each number and for the round."""
        return sum(map(array_bytes, self.arrays.values())) + NUMBER_BYTES * (1 + len(self.numbers))

    def to(self, device: torch.device) -> Message:
        """The same message with its arrays on a device: what came over a network is on the CPU.

        >>> message = Message(1, {"change": {"weight": torch.zeros(2)}}).to(torch.device("meta"))
        >>> message.arrays["change"]["weight"].device
        device(type='meta')
        """
        return Message(
            self.round, {group: moved(arrays, device) for group, arrays in self.arrays.items()}, self.numbers
        )


def moved(arrays: Mapping[str, Tensor], device: torch.device) -> Arrays:
    """Arrays on a device.

    >>> moved({"a": torch.zeros(3)}, torch.device("meta"))["a"].device
    device(type='meta')
    """
    return {name: value.to(device) for name, value in arrays.items()}


def array_bytes(arrays: Mapping[str, Tensor]) -> int:
    """How many bytes some arrays take.

    >>> array_bytes({"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int32)})
    20
    """
    return sum(value.numel() * value.element_size() for value in arrays.values())


def total_norm(arrays: Mapping[str, Tensor]) -> float:
    """The norm of all arrays together.

    >>> total_norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    5.0
    """
    return float(sum(float(value.double().square().sum()) for value in arrays.values()) ** 0.5)
