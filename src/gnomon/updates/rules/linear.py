"""Linear layers, with any leading dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gnomon.updates.leaves import Dense, Factored, Leaf
from gnomon.updates.rules.registry import Drift, rule


def shift(module: nn.Linear, inputs: Tensor, drift: Drift) -> Tensor | None:
    return affine_shift(inputs, drift, "weight", "bias")


@rule(nn.Linear, batch_anywhere=True, shift=shift)
def linear(module: nn.Linear, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return affine(inputs, grad, "weight", "bias", module.weight.shape)


def affine(inputs: Tensor, grad: Tensor, weight: str, bias: str, shape: torch.Size) -> Mapping[str, Leaf]:
    """Leaves of `x W^T + b` from inputs (B, ..., in) and output gradients (B, ..., out)."""
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
    """`x D_i^T + e_i` for inputs (B, ..., in) and each sample's own change of weight and bias, or some rows of them."""
    size, between = len(inputs), inputs.shape[1:-1]
    total: Tensor | None = None
    if weight in drift:
        moved = drift[weight].times(inputs.reshape(size, -1, inputs.shape[-1]))[..., weight_rows]
        total = moved.reshape(size, *between, moved.shape[-1])
    if bias in drift:
        own = drift[bias].dense()[:, bias_rows]
        own = own.reshape(size, *[1] * len(between), own.shape[-1])
        total = own if total is None else total + own
    return total
