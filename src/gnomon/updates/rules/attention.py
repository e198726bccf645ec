"""The rule of nn.MultiheadAttention, which treats it as the linear layers that it consists of."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.updates.leaves import Leaf
from gnomon.updates.rules.linear import affine, affine_shift
from gnomon.updates.rules.registry import Drift, Tap, forward_rule


def covered(module: nn.MultiheadAttention) -> bool:
    """Return whether the rule covers the settings of a module: it does not know added keys and values."""
    return module.bias_k is None and module.bias_v is None and not module.add_zero_attn


@forward_rule(nn.MultiheadAttention, applies=covered)
def attention(
    module: nn.MultiheadAttention,
    tap: Tap,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute the same output as `module.forward`, with every linear map marked."""
    if query.dim() != 3:
        raise SettingError.with_message(
            f"nn.MultiheadAttention got inputs with {query.dim()} dimensions; use three, one of them the batch"
        )
    q, k, v = _project(module, tap, query, key, value)
    q, k, v = (_heads(x, module) for x in (q, k, v))  # (B, heads, T, width)
    mask = _mask(module, q, k, attn_mask, key_padding_mask)
    rate = module.dropout if module.training else 0.0
    if need_weights:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        attention_weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, -1), rate)
        mixed = attention_weights @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, rate)
    mixed = mixed.transpose(1, 2).flatten(2)  # (B, T, E)
    out = module.out_proj(mixed if module.batch_first else mixed.transpose(0, 1))
    if not need_weights:
        return out, None
    return out, attention_weights.mean(1) if average_attn_weights else attention_weights


def _project(
    module: nn.MultiheadAttention, tap: Tap, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the projected queries, keys and values."""
    width = module.embed_dim
    if module.in_proj_weight is None:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        parts = [
            _linear(module, tap, x, name, slice(i * width, (i + 1) * width), own_weight=True)
            for i, (x, name) in enumerate(zip((query, key, value), names, strict=True))
        ]
        return parts[0], parts[1], parts[2]
    if query is key and key is value:
        q, k, v = _linear(module, tap, query, "in_proj_weight", slice(0, 3 * width)).chunk(3, -1)
        return q, k, v
    parts = [
        _linear(module, tap, x, "in_proj_weight", slice(i * width, (i + 1) * width))
        for i, x in enumerate((query, key, value))
    ]
    return parts[0], parts[1], parts[2]


def _linear(
    module: nn.MultiheadAttention, tap: Tap, x: Tensor, name: str, rows: slice, own_weight: bool = False
) -> Tensor:
    """Apply some rows of the packed weight and bias, and mark the use."""
    weight = getattr(module, name)
    bias = module.in_proj_bias
    output = F.linear(x, weight if own_weight else weight[rows], None if bias is None else bias[rows])

    def build(inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
        # rows of the packed parameters that this map does not use have zero gradients
        packed = F.pad(grad, (rows.start, 3 * module.embed_dim - rows.stop))
        bias_leaf = affine(inputs, packed, name, "in_proj_bias", weight.shape)
        if own_weight:
            return {**bias_leaf, name: affine(inputs, grad, name, "", weight.shape)[name]}
        return bias_leaf

    def shift(inputs: Tensor, drift: Drift) -> Tensor | None:
        return affine_shift(inputs, drift, name, "in_proj_bias", slice(None) if own_weight else rows, rows)

    return tap(x, output, build, shift)


def _heads(x: Tensor, module: nn.MultiheadAttention) -> Tensor:
    """Split the last dimension into heads, (B, heads, T, width)."""
    x = x if module.batch_first else x.transpose(0, 1)
    return x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)


def _mask(
    module: nn.MultiheadAttention,
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
) -> Tensor | None:
    """Return the sum of both masks as a term to add to the scores, (B or 1, heads or 1, T, S)."""
    total = None
    if attn_mask is not None:
        total = _additive(attn_mask, q.dtype)
        if total.dim() == 3:
            total = total.view(len(q), module.num_heads, q.shape[2], k.shape[2])
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, q.dtype)[:, None, None, :]
        total = padding if total is None else total + padding
    return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
