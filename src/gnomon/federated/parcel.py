"""What travels between server and clients: arrays by group, and a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

NUMBER_BYTES = 8
Arrays = dict[str, Tensor]


@dataclass
class Parcel:
    """One message, either way. Nothing in it is code.

    >>> import torch
    >>> Parcel(1, {"change": {"weight": torch.zeros(10)}}, {"loss": 2.0}).bytes
    56
    """

    round: int
    arrays: dict[str, Arrays] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The payload: arrays as they are, eight bytes for each number and for the round."""
        return sum(map(array_bytes, self.arrays.values())) + NUMBER_BYTES * (1 + len(self.numbers))


def array_bytes(arrays: Mapping[str, Tensor]) -> int:
    """How many bytes some arrays take.

    >>> import torch
    >>> array_bytes({"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int32)})
    20
    """
    return sum(value.numel() * value.element_size() for value in arrays.values())


def total_norm(arrays: Mapping[str, Tensor]) -> float:
    """The norm of all arrays together.

    >>> import torch
    >>> total_norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    5.0
    """
    return float(sum(float(value.double().square().sum()) for value in arrays.values()) ** 0.5)
