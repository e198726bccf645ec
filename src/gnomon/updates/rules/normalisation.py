"""The rules of normalisation within one sample: layer, group, instance and root-mean-square normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.updates.leaves import Dense, Leaf
from gnomon.updates.rules.registry import Drift, drifted_parameter, rule

Normalise = Callable[[Any, Tensor], Tensor]
"""(module, inputs) -> the normalised inputs, before weight and bias are applied."""


def drifted_last(normalise: Normalise) -> Callable[[Any, Tensor, Drift], Tensor]:
    """Return the forward pass of local steps for parameters that belong to the last dimensions."""

    def drifted(module: Any, inputs: Tensor, drift: Drift) -> Tensor:
        between = inputs.dim() - 1 - len(module.normalized_shape)
        normalised = normalise(module, inputs)
        return _drifted_affine(module, normalised, drift, lambda p: p.reshape(len(p), *[1] * between, *p.shape[1:]))

    return drifted


def drifted_channels(normalise: Normalise) -> Callable[[Any, Tensor, Drift], Tensor]:
    """Return the forward pass of local steps for parameters that belong to the channels."""

    def drifted(module: Any, inputs: Tensor, drift: Drift) -> Tensor:
        after = inputs.dim() - 2
        return _drifted_affine(module, normalise(module, inputs), drift, lambda p: p.reshape(*p.shape, *[1] * after))

    return drifted


def _drifted_affine(module: nn.Module, normalised: Tensor, drift: Drift, shaped: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply each sample's own weight and bias to the normalised inputs."""
    output = normalised
    if getattr(module, "weight", None) is not None:
        output = output.mul(shaped(drifted_parameter(module, "weight", drift, len(normalised))))
    if getattr(module, "bias", None) is not None:
        output = output + shaped(drifted_parameter(module, "bias", drift, len(normalised)))
    return output


def layer_normalised(module: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, module.normalized_shape, eps=module.eps)


def rms_normalised(module: nn.RMSNorm, x: Tensor) -> Tensor:
    return F.rms_norm(x, list(module.normalized_shape), eps=module.eps)


def group_normalised(module: nn.GroupNorm, x: Tensor) -> Tensor:
    return F.group_norm(x, module.num_groups, eps=module.eps)


def instance_normalised(module: nn.InstanceNorm2d, x: Tensor) -> Tensor:
    return F.instance_norm(x, eps=module.eps)


@rule(nn.LayerNorm, batch_anywhere=True, drifted=drifted_last(layer_normalised))
def layer_norm(module: nn.LayerNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(layer_normalised(module, inputs), grad, list(range(1, grad.dim() - len(module.normalized_shape))))


@rule(nn.RMSNorm, batch_anywhere=True, drifted=drifted_last(rms_normalised))
def rms_norm(module: nn.RMSNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(rms_normalised(module, inputs), grad, list(range(1, grad.dim() - len(module.normalized_shape))))


@rule(nn.GroupNorm, drifted=drifted_channels(group_normalised))
def group_norm(module: nn.GroupNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(group_normalised(module, inputs), grad, list(range(2, grad.dim())))


@rule(
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    applies=lambda module: not module.track_running_stats,
    drifted=drifted_channels(instance_normalised),
)
def instance_norm(module: nn.InstanceNorm2d, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(instance_normalised(module, inputs), grad, list(range(2, grad.dim())))


def _affine(normalised: Tensor, grad: Tensor, dims: list[int]) -> Mapping[str, Leaf]:
    """Build the leaves of `normalised * weight + bias`; `dims` are the dimensions that share a weight."""
    scaled = grad * normalised
    return {
        "weight": Dense(scaled.sum(dims) if dims else scaled),
        "bias": Dense(grad.sum(dims) if dims else grad),
    }
