"""Normalisation within one sample: layer, group, instance and root-mean-square."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.updates.leaves import Dense, Leaf
from gnomon.updates.rules.registry import rule


@rule(nn.LayerNorm, batch_anywhere=True)
def layer_norm(module: nn.LayerNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    shape = module.normalized_shape
    return _affine(F.layer_norm(inputs, shape, eps=module.eps), grad, list(range(1, grad.dim() - len(shape))))


@rule(nn.RMSNorm, batch_anywhere=True)
def rms_norm(module: nn.RMSNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    shape = module.normalized_shape
    normal = F.rms_norm(inputs, list(shape), eps=module.eps)
    return _affine(normal, grad, list(range(1, grad.dim() - len(shape))))


@rule(nn.GroupNorm)
def group_norm(module: nn.GroupNorm, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    normal = F.group_norm(inputs, module.num_groups, eps=module.eps)
    return _affine(normal, grad, list(range(2, grad.dim())))


@rule(
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    applies=lambda module: not module.track_running_stats,
)
def instance_norm(module: nn.InstanceNorm2d, inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
    return _affine(F.instance_norm(inputs, eps=module.eps), grad, list(range(2, grad.dim())))


def _affine(normal: Tensor, grad: Tensor, places: list[int]) -> Mapping[str, Leaf]:
    """Leaves of `normal * weight + bias`, summed over the dimensions that share a weight."""
    scaled = grad * normal
    return {
        "weight": Dense(scaled.sum(places) if places else scaled),
        "bias": Dense(grad.sum(places) if places else grad),
    }
