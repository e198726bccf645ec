"""Rules of modules of Hugging Face's `transformers`, registered by name: the library need not be installed."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Size, Tensor, nn

from gnomon.updates.leaves import Dense, Factored, Leaf
from gnomon.updates.rules.registry import rule


@rule("transformers.pytorch_utils.Conv1D", batch_anywhere=True)
def conv1d(module: nn.Module, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    """Build the leaves of GPT-2's `x W + b`, a linear layer whose weight is stored transposed, (in, out)."""
    size = len(inputs)
    x, grad = inputs.reshape(size, 1, -1, inputs.shape[-1]), grad.reshape(size, 1, -1, grad.shape[-1])
    return {"weight": Factored(grad, x, Size([x.shape[-1], grad.shape[-1]])), "bias": Dense(grad.sum((1, 2)))}
