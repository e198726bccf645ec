"""Embedding tables."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from gnomon.updates.leaves import Indexed, Leaf
from gnomon.updates.rules.registry import Drift, rule


def independent(module: nn.Embedding) -> bool:
    """Refuses the two options with which one sample changes what another one does."""
    if module.max_norm is not None or module.scale_grad_by_freq:
        option = "max_norm" if module.max_norm is not None else "scale_grad_by_freq"
        raise ValueError(
            f"nn.Embedding({option}=...) lets one sample change another's update: build it without {option}"
        )
    return True


def shift(module: nn.Embedding, inputs: Tensor, drift: Drift) -> Tensor:
    moved = drift["weight"].rows_at(inputs.reshape(len(inputs), -1))
    return moved.reshape(*inputs.shape, moved.shape[-1])


@rule(nn.Embedding, batch_anywhere=True, applies=independent, shift=shift)
def embedding(module: nn.Embedding, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    index = inputs.reshape(len(inputs), -1)
    values = grad.reshape(len(inputs), -1, grad.shape[-1])
    if module.padding_idx is not None:
        values = values.masked_fill((index == module.padding_idx)[:, :, None], 0)
    return {"weight": Indexed(index, values, module.weight.shape)}
