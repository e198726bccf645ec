"""Nested structures of inputs and outputs: their tensors, and how a model is called with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a nested structure, in order.

    >>> import torch
    >>> [t.item() for t in tensors({"a": torch.tensor(1), "b": [torch.tensor(2), "text"]})]
    [1, 2]
    """
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def differentiable(tree: Any) -> list[Tensor]:
    """The tensors of a nested structure that carry a gradient, in order."""
    return [leaf for leaf in tensors(tree) if leaf.requires_grad]


def call(model: nn.Module, inputs: Any) -> Any:
    """The model on a batch: a tensor as it is, a tuple or list as arguments, a dict as keywords."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, Sequence):
        return model(*inputs)
    return model(inputs)


def take_rows(tree: Any, rows: Tensor | slice) -> Any:
    """Return some rows of every tensor of a nested structure; tensors without dimensions stay as they are.

    >>> import torch
    >>> take_rows({"a": torch.arange(4), "b": torch.tensor(7)}, slice(1, 3))
    {'a': tensor([1, 2]), 'b': tensor(7)}
    """

    def taken(values: Tensor) -> Tensor:
        if not values.dim():
            return values
        return values[rows if isinstance(rows, slice) else rows.to(values.device)]

    return pytree.tree_map_only(Tensor, taken, tree)


def same_memory(x: Tensor, other: Tensor) -> bool:
    """Whether two tensors that are both alive show the same memory in the same way.

    >>> import torch
    >>> x = torch.zeros(2, 3)
    >>> same_memory(x.flatten(), x.view(6)), same_memory(x, x.clone())
    (True, False)
    """
    return x.data_ptr() == other.data_ptr() and x.shape == other.shape and x.stride() == other.stride()
