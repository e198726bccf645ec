"""MOON's term: a record's features near those of the global model, far from those of the last local one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.methods import Update
from gnomon.updates import Layouts, Loss, Updates, gradients
from gnomon.updates.trees import call


class WithFeatures(nn.Module):
    """A model that also returns what goes into its last linear layer.

    >>> outputs, features = WithFeatures(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))(torch.zeros(5, 4))
    >>> outputs.shape, features.shape
    (torch.Size([5, 2]), torch.Size([5, 3]))
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        last = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not last:
            raise SettingError("model", type(model).__name__, "a model with a linear layer at its end to MOON")
        self._last = last[-1:]  # in a list, so that its parameters are not registered twice

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        caught: list[Tensor] = []
        handle = self._last[0].register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
        try:
            outputs = self.model(*args, **kwargs)
        finally:
            handle.remove()
        return outputs, caught[-1].flatten(1)


def refuse_shallow(model: nn.Module) -> None:
    """Refuses a model whose last linear layer is its only one: its features are the inputs, and the term is constant.

    >>> refuse_shallow(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    """
    if sum(any(True for _ in module.parameters(recurse=False)) for module in model.modules()) < 2:
        allowed = "a model with a hidden layer, 'mlp' for example: MOON compares what goes into the last layer"
        raise SettingError("model", type(model).__name__, allowed)


def contrast(own: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """`-log(e^(sim(own, near) / t) / (e^(sim(own, near) / t) + e^(sim(own, far) / t)))`, one number a record.

    >>> x = torch.tensor([[1.0, 0.0]])
    >>> contrast(x, x, -x, temperature=1.0).round(decimals=4)
    tensor([0.1269])
    """
    apart = F.cosine_similarity(own, far, dim=1) - F.cosine_similarity(own, near, dim=1)
    return F.softplus(apart / temperature)


@dataclass(frozen=True, eq=False)
class Contrastive:
    """Another update with MOON's term in each record's loss, so that clipping covers it.

    >>> model = nn.Linear(2, 2)
    >>> update = Contrastive(1.0, 0.5, near=model, far=model)
    >>> update(model, nn.CrossEntropyLoss(reduction="none"), torch.randn(3, 2), torch.tensor([0, 1, 0])).names
    ('weight', 'bias')
    """

    weight: float
    temperature: float
    near: nn.Module
    far: nn.Module
    inner: Update = gradients
    _wrapped: list[WithFeatures] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"gradient with contrastive loss x {self.weight:g}"

    @property
    def displaces(self) -> bool:
        return bool(getattr(self.inner, "displaces", False))

    def __call__(
        self, model: nn.Module, loss: Loss, inputs: Any, targets: Any, *, layouts: Layouts | None = None
    ) -> Updates:
        if not self._wrapped or self._wrapped[0].model is not model:
            self._wrapped[:] = [WithFeatures(model)]
        with torch.no_grad():
            near, far = (call(WithFeatures(other), inputs)[1] for other in (self.near, self.far))

        def joint(outputs: Sequence[Any], known: Sequence[Any]) -> Tensor:
            return loss(outputs[0], known[0]) + self.weight * contrast(outputs[1], known[1], known[2], self.temperature)

        updates = self.inner(self._wrapped[0], joint, inputs, (targets, near, far), layouts=layouts)
        return Updates({name.removeprefix("model."): leaf for name, leaf in updates.leaves.items()}, updates.losses)
