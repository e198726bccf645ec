"""The message type that server and clients exchange: named groups of arrays and a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

NUMBER_BYTES = 8
Arrays = dict[str, Tensor]


@dataclass
class Message:
    """A message from the server to a client, or a client's reply. It carries plain values and no code.

    Args:
        round: the number of the round, from 1.
        arrays: arrays by group (such as `"weights"` or `"change"`) and name.
        numbers: numbers by name.

    >>> Message(1, {"change": {"weight": torch.zeros(10)}}, {"loss": 2.0}).bytes
    56
    """

    round: int
    arrays: dict[str, Arrays] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Payload in bytes: the arrays, and eight bytes for each number and for the round."""
        return sum(map(array_bytes, self.arrays.values())) + NUMBER_BYTES * (1 + len(self.numbers))

    def to(self, device: torch.device) -> Message:
        """Return the message with its arrays on `device`. Messages from a network arrive on the CPU.

        >>> message = Message(1, {"change": {"weight": torch.zeros(2)}}).to(torch.device("meta"))
        >>> message.arrays["change"]["weight"].device
        device(type='meta')
        """
        arrays = {group: arrays_to(arrays, device) for group, arrays in self.arrays.items()}
        return Message(self.round, arrays, self.numbers)


def arrays_to(arrays: Mapping[str, Tensor], device: torch.device) -> Arrays:
    """Return the arrays on `device`.

    >>> arrays_to({"a": torch.zeros(3)}, torch.device("meta"))["a"].device
    device(type='meta')
    """
    return {name: value.to(device) for name, value in arrays.items()}


def array_bytes(arrays: Mapping[str, Tensor]) -> int:
    """Return the size of the arrays in bytes.

    >>> array_bytes({"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int32)})
    20
    """
    return sum(value.numel() * value.element_size() for value in arrays.values())


def total_norm(arrays: Mapping[str, Tensor]) -> float:
    """Return the L2 norm of all arrays together, computed in float64.

    >>> total_norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    5.0
    """
    return float(sum(float(value.double().square().sum()) for value in arrays.values()) ** 0.5)
