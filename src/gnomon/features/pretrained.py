"""Features of a frozen network that the user brings."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.errors import SettingError
from gnomon.features.feature_map import FeatureMap, Origin, unit_norm
from gnomon.models.networks import any_shape


class Pretrained(FeatureMap):
    """The output of a frozen network, or of one of its layers, flattened and scaled to norm one.

    The network is copied, put into evaluation mode and frozen, so that batch normalisation uses its stored statistics
    and dropout is off. That it was not trained on the private records is a declaration that only the user can make:
    `trained_on` is repeated in the privacy statement.

    Args:
        module: the network.
        name: its name in the privacy statement.
        trained_on: the public data it was trained on, in the user's words, such as "ImageNet-1k".
        layer: the name of the layer whose output is used, as in `module.named_modules()`; None for the output.
        shape: the shape of one input, from which the number of features follows; None to find out at the first batch.

    Raises:
        SettingError: the module is not a network, the layer does not exist, or a weight is not finite.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
    >>> features = Pretrained(network, name="a small network", trained_on="ImageNet-1k", layer="1", shape=(4,))
    >>> features.dimension, features(torch.randn(2, 4)).shape
    (8, torch.Size([2, 8]))
    >>> features.description
    'Feature map: a small network, layer 1 (trained on ImageNet-1k, as declared by the user).'
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        name: str,
        trained_on: str = "public data",
        layer: str | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise SettingError("module", type(module).__name__, "a torch.nn.Module")
        if not isinstance(name, str) or not name:
            raise SettingError("name", name, "the name of the network, for the privacy statement")
        layers = dict(module.named_modules())
        if layer is not None and layer not in layers:
            some = ", ".join(list(layers)[-4:])
            raise SettingError("layer", layer, f"the name of a layer in module.named_modules(), such as {some}")
        super().__init__(
            name if layer is None else f"{name}, layer {layer}",
            None,
            origin=Origin(constants=(f"trained on {trained_on}, as declared by the user",)),
            settings={"layer": layer, "network": repr(module)},
        )
        self.layer = layer
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.eval()
        for key, tensor in self.module.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise SettingError(f"module.{key}", "nan or inf", "finite weights; load the network again")
        if shape is not None:
            self(torch.zeros(1, *any_shape(shape), device=self.device))

    def features(self, inputs: Any) -> Tensor:
        """Return the flattened output of the network or the layer for each record, with unit norm."""
        if self.layer is None:
            return unit_norm(_tensor(self.module(inputs)).float())
        outputs: list[Any] = []
        caller = threading.get_ident()  # other threads may call the same network at the same time

        def keep(module: nn.Module, arguments: Any, output: Any) -> None:
            if threading.get_ident() == caller:
                outputs.append(output)

        hook = self.module.get_submodule(self.layer).register_forward_hook(keep)
        try:
            self.module(inputs)
        finally:
            hook.remove()
        if not outputs:
            raise SettingError("layer", self.layer, "a layer that the network calls")
        return unit_norm(_tensor(outputs[-1]).float())


def _tensor(output: Any) -> Tensor:
    if not isinstance(output, Tensor) or not output.ndim:
        raise SettingError(
            "module", f"a network that returns a {type(output).__name__}", "one that returns a tensor (B, ...)"
        )
    return output
