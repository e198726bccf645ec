"""The rule of embedding tables."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from gnomon.errors import SettingError
from gnomon.updates.leaves import Indexed, Leaf
from gnomon.updates.rules.registry import Drift, rule


def independent(module: nn.Embedding) -> bool:
    """Return True, or raise an error for the two options with which one sample changes the update of another."""
    if module.max_norm is not None or module.scale_grad_by_freq:
        option = "max_norm" if module.max_norm is not None else "scale_grad_by_freq"
        raise SettingError.with_message(
            f"nn.Embedding({option}=...) lets one sample change the update of another; build it without {option}",
            name="model",
        )
    return True


def shift(module: nn.Embedding, inputs: Tensor, drift: Drift) -> Tensor:
    """Return the rows of each sample's own displacement of the table."""
    moved = drift["weight"].rows_at(inputs.reshape(len(inputs), -1))
    return moved.reshape(*inputs.shape, moved.shape[-1])


@rule(nn.Embedding, batch_anywhere=True, applies=independent, shift=shift)
def embedding(module: nn.Embedding, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    """Build the leaf of an embedding table; padding has no gradient."""
    index = inputs.reshape(len(inputs), -1)
    values = grad.reshape(len(inputs), -1, grad.shape[-1])
    if module.padding_idx is not None:
        values = values.masked_fill((index == module.padding_idx)[:, :, None], 0)
    return {"weight": Indexed(index, values, module.weight.shape)}
