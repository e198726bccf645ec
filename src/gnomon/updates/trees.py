"""Nested inputs and outputs of a model: their tensors, their batch size, and the forward pass on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.errors import GnomonError, SettingError

FORWARD_ERRORS = (RuntimeError, TypeError, AttributeError, IndexError)
"""The errors that a model raises for inputs of the wrong shape or type."""


class ModelInputError(GnomonError, ValueError):
    """A model cannot process its inputs. The message names shapes and types, and never quotes a record."""


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of a nested structure, in order.

    >>> [t.item() for t in tensors({"a": torch.tensor(1), "b": [torch.tensor(2), "text"]})]
    [1, 2]
    """
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def differentiable(tree: Any) -> list[Tensor]:
    """Return the tensors of a nested structure that require a gradient, in order."""
    return [leaf for leaf in tensors(tree) if leaf.requires_grad]


def batch_size(inputs: Any) -> int:
    """Return the number of samples in a batch.

    Raises:
        SettingError: there is no tensor, or the tensors differ in their first dimension.

    >>> batch_size({"text": torch.zeros(3, 5), "length": torch.zeros(3)})
    3
    """
    sizes = {len(t) for t in tensors(inputs) if t.dim()}
    if len(sizes) != 1:
        problem = f"contain tensors with {sorted(sizes)} samples" if sizes else "contain no tensor"
        raise SettingError.with_message(
            f"the inputs {problem}; the first dimension of every tensor must be the batch", name="inputs"
        )
    return sizes.pop()


def take_rows(tree: Any, rows: Tensor | slice) -> Any:
    """Return the given rows of every tensor of a nested structure; tensors without dimensions stay as they are.

    >>> take_rows({"a": torch.arange(4), "b": torch.tensor(7)}, slice(1, 3))
    {'a': tensor([1, 2]), 'b': tensor(7)}
    """

    def taken(values: Tensor) -> Tensor:
        if not values.dim():
            return values
        if isinstance(rows, slice):
            return values[rows]
        index = rows.to(values.device)
        return values.index_select(0, index) if values.is_contiguous() else values[index]

    if isinstance(tree, Tensor):
        return taken(tree)
    if type(tree) is tuple:  # the usual pair, without the cost of a general walk
        return tuple(take_rows(part, rows) for part in tree)
    return pytree.tree_map_only(Tensor, taken, tree)


def same_memory(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors, both alive, are the same view of the same memory.

    >>> x = torch.zeros(2, 3)
    >>> same_memory(x.flatten(), x.view(6)), same_memory(x, x.clone())
    (True, False)
    """
    return x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride()


def call(model: nn.Module, inputs: Any) -> Any:
    """Run the model on a batch: a tensor is one argument, a tuple or list several, a dict keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, Sequence):
        return model(*inputs)
    return model(inputs)


@contextmanager
def explained_forward(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Turn an error of the enclosed forward pass into one that names the model and the shapes and types of the inputs.

    Raises:
        ModelInputError: the forward pass failed.

    >>> model, inputs = nn.Linear(3, 2), torch.zeros(5, 4)
    >>> with explained_forward(model, inputs):
    ...     model(inputs)
    Traceback (most recent call last):
    gnomon.updates.trees.ModelInputError: the model Linear cannot process inputs of shape (batch, 4), float32 (mat1 \
and mat2 shapes cannot be multiplied (5x4 and 3x2)): use a model for inputs of this shape
    """
    try:
        yield
    except FORWARD_ERRORS as error:
        described = ", ".join(f"shape {_shape(t)}, {_name(t.dtype)}" for t in tensors(inputs)[:4])
        raise ModelInputError(
            f"the model {type(model).__name__} cannot process inputs of {described or type(inputs).__name__} "
            f"({_public_reason(model, inputs, error)}): {_remedy(model, inputs, error)}"
        ) from error


def _public_reason(model: nn.Module, inputs: Any, error: Exception) -> str:
    """Return the first line of the error if inputs of zeros raise the same type of error: it then quotes no record."""
    kind = type(error).__name__
    if all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(inputs)):
        try:
            with torch.no_grad():
                call(model, pytree.tree_map(torch.zeros_like, inputs))
        except type(error) as same:
            return (str(same).splitlines() or [kind])[0]
        except Exception:
            return kind
    return f"{kind}; its text is withheld because it may quote a record"


def _remedy(model: nn.Module, inputs: Any, error: Exception) -> str:
    if isinstance(error, IndexError) and any(not t.is_floating_point() for t in tensors(inputs)):
        return "if the inputs are indices, one is outside a table of the model such as nn.Embedding; use a larger table"
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    given = next((t.dtype for t in tensors(inputs)), weights)
    if given == weights:
        return "use a model for inputs of this shape"
    if weights is torch.float64:
        return "its weights are float64; use model.float() or inputs.double()"
    return f"its weights are {_name(weights)}; use inputs.float()"


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(['batch', *map(str, tensor.shape[1:])])})" if tensor.dim() else "()"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
