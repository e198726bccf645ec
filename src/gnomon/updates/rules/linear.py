"""Linear layers, with any leading dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gnomon.updates.leaves import Dense, Factored, Leaf
from gnomon.updates.rules.registry import rule


@rule(nn.Linear, batch_anywhere=True)
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
