"""What a client or the server keeps from round to round, and how it goes to disk."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from gnomon.errors import SettingError
from gnomon.federated.message import Arrays, moved

SEPARATOR = "|"
NUMBERS = f"{SEPARATOR}numbers"


@dataclass
class PersistentState:
    """Arrays by group, and numbers by name. Plain values, no code.

    >>> persistent = PersistentState({"control": {"weight": torch.ones(2)}}, {"loss": 0.5})
    >>> PersistentState.from_bytes(persistent.to_bytes()).numbers
    {'loss': 0.5}
    """

    arrays: dict[str, Arrays] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    def move(self, device: torch.device) -> None:
        """Bring all arrays to a device: what was read from disk is on the CPU.

        >>> persistent = PersistentState({"control": {"weight": torch.ones(2)}})
        >>> persistent.move(torch.device("meta"))
        >>> persistent.arrays["control"]["weight"].device
        device(type='meta')
        """
        self.arrays = {group: moved(arrays, device) for group, arrays in self.arrays.items()}

    def to_bytes(self) -> bytes:
        """The state as a safetensors file."""
        flat = {
            f"{group}{SEPARATOR}{name}": value.detach().cpu().contiguous().clone()
            for group, arrays in self.arrays.items()
            for name, value in arrays.items()
        }
        text = json.dumps(self.numbers).encode()
        return save(flat | {NUMBERS: torch.tensor(list(text), dtype=torch.uint8)})

    @classmethod
    def from_bytes(cls, content: bytes) -> PersistentState:
        """The state that `to_bytes` wrote; an error for anything else."""
        try:
            flat = load(content)
            numbers = json.loads(bytes(flat.pop(NUMBERS).tolist()).decode())
        except (SafetensorError, KeyError, ValueError) as error:
            raise SettingError("state", "this file", f"one that this program wrote ({error})") from None
        persistent = cls({}, {str(name): float(value) for name, value in numbers.items()})
        for key, value in flat.items():
            group, _, name = key.partition(SEPARATOR)
            persistent.arrays.setdefault(group, {})[name] = value
        return persistent
