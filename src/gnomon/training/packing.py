"""Serialisation of nested state as JSON and plain tensors. Reading it cannot run code."""

from __future__ import annotations

from typing import Any

from torch import Tensor

TENSOR, TUPLE, PAIRS = "__tensor__", "__tuple__", "__pairs__"


def pack(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a tree of JSON values; its tensors are added to `tensors` under names that begin with `name`.

    Raises:
        TypeError: the tree holds an object that is neither a tensor nor a plain value.

    >>> import torch
    >>> found: dict[str, Tensor] = {}
    >>> pack({"lr": 0.1, 0: (torch.zeros(2),)}, "optimizer", found)
    {'__pairs__': [['lr', 0.1], [0, {'__tuple__': [{'__tensor__': 'optimizer.0.0'}]}]]}
    """
    if isinstance(tree, Tensor):
        tensors[name] = tree
        return {TENSOR: name}
    if isinstance(tree, dict):
        packed = {key: pack(value, f"{name}.{key}", tensors) for key, value in tree.items()}
        if all(isinstance(key, str) for key in tree):
            return packed
        return {PAIRS: [[key, value] for key, value in packed.items()]}
    if isinstance(tree, tuple | list):
        items = [pack(value, f"{name}.{i}", tensors) for i, value in enumerate(tree)]
        return {TUPLE: items} if isinstance(tree, tuple) else items
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(
        f"{name} is a {type(tree).__name__}, which cannot be stored in a checkpoint; numbers, strings, tensors and "
        "nested lists, tuples and dictionaries of them can"
    )


def unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the tree that `pack` was given.

    >>> unpack({"__pairs__": [[0, {"__tuple__": [1, 2]}]]}, {})
    {0: (1, 2)}
    """
    if isinstance(tree, list):
        return [unpack(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if TENSOR in tree:
        return tensors[tree[TENSOR]]
    if TUPLE in tree:
        return tuple(unpack(value, tensors) for value in tree[TUPLE])
    if PAIRS in tree:
        return {key: unpack(value, tensors) for key, value in tree[PAIRS]}
    return {key: unpack(value, tensors) for key, value in tree.items()}


def untied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors stores them: on the CPU, contiguous, with shared storage copied.

    >>> import torch
    >>> one = torch.zeros(2)
    >>> sorted(untied({"a": one, "b": one}))
    ['a', 'b']
    """
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        out[name] = value.clone() if place in seen else value
        seen.add(place)
    return out
