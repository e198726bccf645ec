"""Normalisation within one sample: layer, group, instance and root-mean-square."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.updates.leaves import Dense, Leaf
from gnomon.updates.rules.registry import Drift, own, rule

Normal = Callable[[Any, Tensor], Tensor]
"""(module, inputs) -> the normalised inputs, before weight and bias."""


def last(normal: Normal) -> Callable[[Any, Tensor, Drift], Tensor]:
    """The forward pass of local steps where weights belong to the last dimensions."""

    def drifted(module: Any, inputs: Tensor, drift: Drift) -> Tensor:
        between = inputs.dim() - 1 - len(module.normalized_shape)
        return _scaled(module, normal(module, inputs), drift, lambda p: p.reshape(len(p), *[1] * between, *p.shape[1:]))

    return drifted


def channels(normal: Normal) -> Callable[[Any, Tensor, Drift], Tensor]:
    """The forward pass of local steps where weights belong to the channels."""

    def drifted(module: Any, inputs: Tensor, drift: Drift) -> Tensor:
        after = inputs.dim() - 2
        return _scaled(module, normal(module, inputs), drift, lambda p: p.reshape(*p.shape, *[1] * after))

    return drifted


def _scaled(module: nn.Module, normal: Tensor, drift: Drift, shaped: Callable[[Tensor], Tensor]) -> Tensor:
    for name, operation in (("weight", normal.mul), ("bias", None)):
        if getattr(module, name, None) is not None:
            value = shaped(own(module, name, drift, len(normal)))
            normal = operation(value) if operation is not None else normal + value
    return normal


def normal_layer(module: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, module.normalized_shape, eps=module.eps)


def normal_rms(module: nn.RMSNorm, x: Tensor) -> Tensor:
    return F.rms_norm(x, list(module.normalized_shape), eps=module.eps)


def normal_group(module: nn.GroupNorm, x: Tensor) -> Tensor:
    return F.group_norm(x, module.num_groups, eps=module.eps)


def normal_instance(module: nn.InstanceNorm2d, x: Tensor) -> Tensor:
    return F.instance_norm(x, eps=module.eps)


@rule(nn.LayerNorm, batch_anywhere=True, drifted=last(normal_layer))
def layer_norm(module: nn.LayerNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(normal_layer(module, inputs), grad, list(range(1, grad.dim() - len(module.normalized_shape))))


@rule(nn.RMSNorm, batch_anywhere=True, drifted=last(normal_rms))
def rms_norm(module: nn.RMSNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(normal_rms(module, inputs), grad, list(range(1, grad.dim() - len(module.normalized_shape))))


@rule(nn.GroupNorm, drifted=channels(normal_group))
def group_norm(module: nn.GroupNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(normal_group(module, inputs), grad, list(range(2, grad.dim())))


@rule(
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    applies=lambda module: not module.track_running_stats,
    drifted=channels(normal_instance),
)
def instance_norm(module: nn.InstanceNorm2d, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(normal_instance(module, inputs), grad, list(range(2, grad.dim())))


def _affine(normal: Tensor, grad: Tensor, places: list[int]) -> Mapping[str, Leaf]:
    """Leaves of `normal * weight + bias`, summed over the dimensions that share a weight."""
    scaled = grad * normal
    return {
        "weight": Dense(scaled.sum(places) if places else scaled),
        "bias": Dense(grad.sum(places) if places else grad),
    }
