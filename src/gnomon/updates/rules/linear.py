"""The rule of linear layers with any number of leading dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gnomon.updates.leaves import Dense, Factored, Leaf
from gnomon.updates.rules.registry import Drift, rule


def shift(module: nn.Linear, inputs: Tensor, drift: Drift) -> Tensor | None:
    """Return the term that each sample's own weight and bias add to the output."""
    return affine_shift(inputs, drift, "weight", "bias")


@rule(nn.Linear, batch_anywhere=True, shift=shift)
def linear(module: nn.Linear, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    """Build the leaves of a linear layer."""
    return affine(inputs, grad, "weight", "bias", module.weight.shape)


def affine(inputs: Tensor, grad: Tensor, weight: str, bias: str, shape: torch.Size) -> Mapping[str, Leaf]:
    """Build the leaves of `x W^T + b` from inputs (B, ..., in) and output gradients (B, ..., out)."""
    size = len(inputs)
    grad = grad.reshape(size, 1, -1, grad.shape[-1])
    leaves: dict[str, Leaf] = {
        weight: Factored(inputs.reshape(size, 1, -1, inputs.shape[-1]), grad, shape),
        bias: Dense(grad[:, 0, 0] if grad.shape[2] == 1 else grad.sum((1, 2))),
    }
    return leaves


def affine_shift(
    inputs: Tensor,
    drift: Drift,
    weight: str,
    bias: str,
    weight_rows: slice = slice(None),
    bias_rows: slice = slice(None),
) -> Tensor | None:
    """Return `x D_i^T + e_i` for inputs (B, ..., in) and displacements D_i, e_i of weight and bias, or rows of them."""
    size, between = len(inputs), inputs.shape[1:-1]
    total: Tensor | None = None
    if weight in drift:
        moved = drift[weight].times(inputs.reshape(size, -1, inputs.shape[-1]))[..., weight_rows]
        total = moved.reshape(size, *between, moved.shape[-1])
    if bias in drift:
        added = drift[bias].dense()[:, bias_rows]
        added = added.reshape(size, *[1] * len(between), added.shape[-1])
        total = added if total is None else total + added
    return total
