"""Known linear spaces of updates: noise outside of them is removed from a release as post-processing.

If the update of every sample is known to lie in a linear subspace of the parameters, whatever the records are, the
component of a release outside of that subspace is noise alone. Removing it reads no record, so it costs no privacy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.losses import Loss, logistic, per_sample


@runtime_checkable
class UpdateSpace(Protocol):
    """A linear subspace of the parameters in which the update of every sample lies. It must not depend on records."""

    @property
    def name(self) -> str:
        """The text used in statements. Checkpoints compare it."""

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise SettingError if the space does not fit the trainable parameters."""

    def project(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the orthogonal projection of an update onto the space."""


class ZeroSum:
    """Updates whose entries sum to zero along one dimension of some parameters.

    The gradient of the cross-entropy with respect to the logits sums to zero over the classes, and so does the gradient
    of the weight and the bias of a softmax head; `softmax_head` finds their names. The projection subtracts the mean
    along the dimension, which removes the fraction 1 / classes of the variance of the noise in these parameters.

    Guarantee: the projection reads the release alone, so it is post-processing. If the true update lies in the space,
    the projected release is never further from it than the release.

    Args:
        dims: the dimension of each parameter along which updates sum to zero, by the name of the parameter.

    >>> space = ZeroSum({"weight": 0})
    >>> space.project({"weight": torch.tensor([[1.0], [3.0]]), "bias": torch.ones(2)})
    {'weight': tensor([[-1.],
            [ 1.]]), 'bias': tensor([1., 1.])}
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        if not isinstance(dims, Mapping) or not dims:
            raise SettingError("dims", dims, "the dimension of at least one parameter by its name: {'weight': 0}")
        for name, dim in dims.items():
            if isinstance(dim, bool) or not isinstance(dim, int) or dim < 0:
                raise SettingError(f"dims[{name!r}]", dim, "a whole number of at least 0")
        self.dims = dict(dims)

    def __repr__(self) -> str:
        return f"ZeroSum({self.dims})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZeroSum) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(frozenset(self.dims.items()))

    @property
    def name(self) -> str:
        parts = ", ".join(f"{name} (dimension {dim})" for name, dim in self.dims.items())
        return f"noise removed from the sums of {parts}"

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        for name, dim in self.dims.items():
            if name not in parameters:
                raise SettingError("dims", name, f"a trainable parameter: {', '.join(parameters)}")
            if dim >= parameters[name].dim():
                shape = tuple(parameters[name].shape)
                raise SettingError(f"dims[{name!r}]", dim, f"a dimension of {name}, which has the shape {shape}")

    def project(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        centred = {name: update[name] - update[name].mean(dim, keepdim=True) for name, dim in self.dims.items()}
        return {**update, **centred}


def softmax_head(model: nn.Module, loss: Loss, example: tuple[Any, Any] | None = None) -> ZeroSum:
    """Return the space of updates of a model that ends in a linear layer and is trained with the cross-entropy.

    The logits must be the output of the layer, of shape (batch, classes), with nothing after it: no scaling, no
    clamping, no other use of its parameters.

    Args:
        model: an `nn.Linear`, or an `nn.Sequential` that ends in one, also within other Sequentials.
        loss: `nn.CrossEntropyLoss`, `torch.nn.functional.cross_entropy` or the cross-entropy of `gnomon.losses`.
        example: a few made-up records (inputs, targets) on which to verify that the gradients sum to zero.

    Raises:
        SettingError: the model does not end in such a layer, the loss is another one, or the gradients of the example
            do not sum to zero over the classes. For a model of another structure whose gradients do, create a
            `ZeroSum` yourself.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> softmax_head(model, nn.CrossEntropyLoss(reduction="none"))
    ZeroSum({'3.weight': 0, '3.bias': 0})
    """
    if not _is_cross_entropy(loss):
        raise SettingError("loss", loss, "the cross-entropy; its gradients sum to zero over the classes")
    path, head = _last_layer(model)
    uses = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]
    names = {id(p): name for name, p in model.named_parameters()}
    found: dict[str, int] = {}
    for kind, parameter in head.named_parameters():
        if uses.count(id(parameter)) > 1:
            raise SettingError("model", f"{path}{kind}", "a head whose parameters are used nowhere else")
        if parameter.requires_grad:
            found[names[id(parameter)]] = 0
    if not found:
        raise SettingError("model", type(model).__name__, "a head with a trainable parameter")
    space = ZeroSum(found)
    if example is not None:
        _verify(model, loss, example, space)
    return space


def _is_cross_entropy(loss: Loss) -> bool:
    function = loss.func if isinstance(loss, functools.partial) else loss
    return type(function) is nn.CrossEntropyLoss or function in (F.cross_entropy, logistic)


def _last_layer(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return the path and the linear layer whose output is the output of the model."""
    path, layer = "", model
    while isinstance(layer, nn.Sequential) and type(layer).forward is nn.Sequential.forward and len(layer):
        if _changes_output(layer):
            break
        name = list(layer._modules)[-1]  # named_children leaves out a layer that occurs twice
        path, layer = f"{path}{name}.", layer[-1]
    if type(layer) is not nn.Linear or layer.out_features < 2 or _changes_output(layer):
        last = f"{type(layer).__name__} at the end"
        raise SettingError("model", last, "an nn.Linear with at least two outputs and without hooks as the last layer")
    return path, layer


def _changes_output(module: nn.Module) -> bool:
    """Return whether hooks could change the output of a module."""
    return bool(module._forward_hooks or module._backward_hooks or module._backward_pre_hooks)


def _verify(model: nn.Module, loss: Loss, example: tuple[Any, Any], space: ZeroSum) -> None:
    """Refuse a space in which the gradients of example records do not lie."""
    parameters = dict(model.named_parameters())
    inputs, targets = example
    mean = per_sample(loss)(model(inputs), targets).mean()
    gradients = torch.autograd.grad(mean, [parameters[name] for name in space.dims])
    for (name, dim), gradient in zip(space.dims.items(), gradients, strict=True):
        residual = float(gradient.sum(dim).abs().max())
        if residual > 1e-4 * max(float(gradient.abs().sum(dim).max()), 1e-30):
            raise SettingError("example", f"a gradient of {name} that sums to {residual:.2g}", "a sum of zero")
