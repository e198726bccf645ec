"""The state that the server and the clients keep between rounds, and its serialisation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gnomon.errors import DataError
from gnomon.federated.message import Arrays, arrays_to

Tree = dict[str, Any]
"""Nested dictionaries whose leaves are tensors or JSON values."""


@dataclass
class ClientState:
    """The state that a client keeps between rounds. Nothing in it is derived from records except through a release.

    >>> state = ClientState(round=3, numbers={"loss": 0.5})
    >>> ClientState.from_tree(load_tree(save_tree(state.to_tree()))).numbers
    {'loss': 0.5}
    """

    round: int = 0
    """The last round in which the client took private steps."""
    ticket: float | None = None
    """The server's random number for that round, by which a repeated round is told from a repeated message."""
    arrays: dict[str, Arrays] = field(default_factory=dict)
    """Arrays of the strategy's components, by group."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Numbers of the strategy's components, by name."""

    def move(self, device: torch.device) -> None:
        """Move all arrays to `device`. State that was read from disk is on the CPU.

        >>> state = ClientState(arrays={"control": {"weight": torch.ones(2)}})
        >>> state.move(torch.device("meta"))
        >>> state.arrays["control"]["weight"].device
        device(type='meta')
        """
        self.arrays = {group: arrays_to(arrays, device) for group, arrays in self.arrays.items()}

    def to_tree(self) -> Tree:
        return {"round": self.round, "ticket": self.ticket, "arrays": self.arrays, "numbers": self.numbers}

    @classmethod
    def from_tree(cls, tree: Tree) -> ClientState:
        return cls(tree["round"], tree["ticket"], tree["arrays"], tree["numbers"])


@dataclass
class ServerState:
    """The state that the server keeps between rounds, beside the global model.

    >>> state = ServerState(uploads_received={"north": 2}, clients_with_public_records={"north"})
    >>> ServerState.from_tree(load_tree(save_tree(state.to_tree()))) == state
    True
    """

    round: int = 0
    """The last round that ended."""
    federation: int | None = None
    """A random identifier of this federation; None before the first round."""
    uploads_received: dict[str, int] = field(default_factory=dict)
    """How many uploads of each client have arrived, refused ones included: the client has released all of them."""
    clients_with_public_records: set[str] = field(default_factory=set)
    """Clients whose last accepted upload shows that they hold the public records."""
    arrays: dict[str, Arrays] = field(default_factory=dict)
    """Arrays of the strategy's components, by group."""
    client_arrays: dict[str, dict[str, Arrays]] = field(default_factory=dict)
    """Arrays of the strategy's components that belong to one client, by group and client."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Numbers of the strategy's components, by name."""

    def move(self, device: torch.device) -> None:
        """Move all arrays to `device`.

        >>> state = ServerState(client_arrays={"control": {"north": {"weight": torch.ones(2)}}})
        >>> state.move(torch.device("meta"))
        >>> state.client_arrays["control"]["north"]["weight"].device
        device(type='meta')
        """
        self.arrays = {group: arrays_to(arrays, device) for group, arrays in self.arrays.items()}
        self.client_arrays = {
            group: {client: arrays_to(arrays, device) for client, arrays in clients.items()}
            for group, clients in self.client_arrays.items()
        }

    def to_tree(self) -> Tree:
        return {
            "round": self.round,
            "federation": self.federation,
            "uploads_received": self.uploads_received,
            "clients_with_public_records": sorted(self.clients_with_public_records),
            "arrays": self.arrays,
            "client_arrays": self.client_arrays,
            "numbers": self.numbers,
        }

    @classmethod
    def from_tree(cls, tree: Tree) -> ServerState:
        return cls(**tree | {"clients_with_public_records": set(tree["clients_with_public_records"])})


# -- serialisation ---------------------------------------------------------------------------------

VALUES = "values"
"""The entry of a state file that holds everything but the tensors, as JSON text."""


def save_tree(tree: Mapping[str, Any]) -> bytes:
    """Serialise nested dictionaries of tensors and JSON values as a safetensors file.

    A tensor is stored under its path, written as a JSON list, so that no character in a key needs an escape.

    >>> load_tree(save_tree({"a": {"b|c": torch.ones(1)}, "n": 1}))
    {'a': {'b|c': tensor([1.])}, 'n': 1}
    """
    tensors: Arrays = {}
    text = json.dumps(_without_tensors(tree, (), tensors)).encode()
    return save(tensors | {VALUES: torch.tensor(list(text), dtype=torch.uint8)})


def load_tree(content: bytes) -> Tree:
    """Read a file that `save_tree` wrote.

    Raises:
        DataError: the content is damaged, or was written by another program.
    """
    try:
        tensors = load(content)
        tree: Tree = json.loads(bytes(tensors.pop(VALUES).tolist()).decode())
        for path, value in tensors.items():
            *parents, name = json.loads(path)
            node = tree
            for parent in parents:
                node = node[parent]
            node[name] = value
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DataError(
            "the state file", f"cannot be read ({error})", "restore it from a backup, or begin in another folder"
        ) from None
    return tree


def _without_tensors(tree: Mapping[str, Any], path: tuple[str, ...], tensors: Arrays) -> Tree:
    """Return the tree without its tensors, which are added to `tensors` under their paths."""
    values: Tree = {}
    for key, value in tree.items():
        if isinstance(value, Tensor):
            tensors[json.dumps([*path, key])] = value.detach().cpu().contiguous().clone()
        else:
            values[key] = _without_tensors(value, (*path, key), tensors) if isinstance(value, Mapping) else value
    return values
