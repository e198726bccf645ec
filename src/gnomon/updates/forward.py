"""The first forward pass of a model, and words for what goes wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.updates.trees import call, tensors

FAILURES = (RuntimeError, TypeError, AttributeError, IndexError)
"""What a model raises that is made for other inputs."""


class DoesNotFit(ValueError):
    """A model that cannot take the inputs. Names shapes and types, never what a record holds."""


@contextmanager
def fitting(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Around a forward pass: an error that names model, shapes and types instead of torch's alone.

    >>> model, inputs = nn.Linear(3, 2), torch.zeros(5, 4)
    >>> with fitting(model, inputs):
    ...     model(inputs)
    Traceback (most recent call last):
    gnomon.updates.forward.DoesNotFit: the model Linear cannot take inputs of shape (batch, 4), float32 (mat1 and mat2 \
shapes cannot be multiplied (5x4 and 3x2)): give a model that is made for them
    """
    try:
        yield
    except FAILURES as error:
        held = ", ".join(f"shape {_shape(t)}, {_name(t.dtype)}" for t in tensors(inputs)[:4]) or type(inputs).__name__
        raise DoesNotFit(
            f"the model {type(model).__name__} cannot take inputs of {held} ({_said(model, inputs, error)}): "
            f"{_remedy(model, inputs, error)}"
        ) from error


def _said(model: nn.Module, inputs: Any, error: Exception) -> str:
    """The first line of the error, if zeros in the place of the records give one of its kind: it quotes no record."""
    kind = type(error).__name__
    if all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(inputs)):
        try:
            with torch.no_grad():
                call(model, pytree.tree_map(torch.zeros_like, inputs))
        except type(error) as same:
            return (str(same).splitlines() or [kind])[0]
        except Exception:
            return kind
    return f"{kind}; its text may quote a record"


def _remedy(model: nn.Module, inputs: Any, error: Exception) -> str:
    if isinstance(error, IndexError) and any(not t.is_floating_point() for t in tensors(inputs)):
        return "if they are indices, one lies outside a table of the model such as nn.Embedding: give a larger table"
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    given = next((t.dtype for t in tensors(inputs)), own)
    if given == own:
        return "give a model that is made for them"
    if own is torch.float64:
        return "its weights are float64: give model.float(), or inputs.double()"
    return f"its weights are {_name(own)}: give inputs.float()"


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(['batch', *map(str, tensor.shape[1:])])})" if tensor.dim() else "()"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
