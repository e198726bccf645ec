"""MOON: model-contrastive learning, as a term of each record's loss.

The term pulls a record's features towards those of the global model and away from those of the client's previous
model. It is part of the loss, so that clipping covers it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.federated.message import Message
from gnomon.federated.strategies.component import Component, LocalRound
from gnomon.methods import Method, Update
from gnomon.methods.method import at_step, with_layouts
from gnomon.updates import Layouts, Loss, Updates, gradients
from gnomon.updates.trees import call


class WithFeatures(nn.Module):
    """A model that also returns the input of its last linear layer.

    >>> outputs, features = WithFeatures(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))(torch.zeros(5, 4))
    >>> outputs.shape, features.shape
    (torch.Size([5, 2]), torch.Size([5, 3]))
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise SettingError("model", type(model).__name__, "a model that ends in a linear layer, for MOON")
        self._last = linear[-1:]  # in a list, so that its parameters are not registered twice

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        features: list[Tensor] = []
        handle = self._last[0].register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]))
        try:
            outputs = self.model(*args, **kwargs)
        finally:
            handle.remove()
        return outputs, features[-1].flatten(1)


def check_hidden_layer(model: nn.Module) -> None:
    """Check that a model has a hidden layer; without one its features are the inputs, and MOON's term is constant.

    Raises:
        SettingError: the model has a single layer with parameters.

    >>> check_hidden_layer(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    """
    if sum(any(True for _ in module.parameters(recurse=False)) for module in model.modules()) < 2:
        raise SettingError("model", type(model).__name__, "a model with a hidden layer for MOON, such as 'mlp'")


def contrastive_loss(features: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """Return `-log(e^(sim(x, near) / t) / (e^(sim(x, near) / t) + e^(sim(x, far) / t)))` for each record's features x.

    >>> x = torch.tensor([[1.0, 0.0]])
    >>> contrastive_loss(x, x, -x, temperature=1.0).round(decimals=4)
    tensor([0.1269])
    """
    difference = F.cosine_similarity(features, far, dim=1) - F.cosine_similarity(features, near, dim=1)
    return F.softplus(difference / temperature)


@dataclass(frozen=True, eq=False)
class ContrastiveUpdate:
    """An update whose per-record loss includes MOON's term, so that clipping covers the term.

    Args:
        weight: the weight of the term.
        temperature: the temperature of the term.
        local: the model in training, with its features.
        near: the global model, frozen, with its features.
        far: the client's model of its previous round, frozen, with its features.
        inner: the update that is computed on the joint loss.

    >>> model = nn.Linear(2, 2)
    >>> update = ContrastiveUpdate(1.0, 0.5, *(WithFeatures(model) for _ in range(3)))
    >>> update(model, nn.CrossEntropyLoss(reduction="none"), torch.randn(3, 2), torch.tensor([0, 1, 0])).names
    ('weight', 'bias')
    """

    weight: float
    temperature: float
    local: WithFeatures
    near: WithFeatures
    far: WithFeatures
    inner: Update = gradients

    @property
    def name(self) -> str:
        return f"gradient with contrastive loss x {self.weight:g}"

    @property
    def displaces(self) -> bool:
        return bool(getattr(self.inner, "displaces", False))

    @property
    def watched(self) -> Any:
        return getattr(self.inner, "watched", None)

    def __call__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Any,
        targets: Any,
        *,
        layouts: Layouts | None = None,
        step: int = 0,
    ) -> Updates:
        # the wrapper of the model in training is kept, because layouts are cached by module
        local = self.local if self.local.model is model else WithFeatures(model)
        with torch.no_grad():
            near, far = (call(frozen, inputs)[1] for frozen in (self.near, self.far))

        def joint_loss(outputs: Sequence[Any], targets: Sequence[Any]) -> Tensor:
            term = contrastive_loss(outputs[1], targets[1], targets[2], self.temperature)
            return loss(outputs[0], targets[0]) + self.weight * term

        inner = at_step(self.inner, step)
        inner = inner if layouts is None else with_layouts(inner, layouts)
        updates = inner(local, joint_loss, inputs, (targets, near, far))
        return Updates({name.removeprefix("model."): leaf for name, leaf in updates.leaves.items()}, updates.losses)


@dataclass(frozen=True)
class Moon(Component):
    """MOON (Li et al. 2021): model-contrastive learning inside each record's loss, and therefore inside the clip.

    >>> Moon(1.0).temperature
    0.5
    """

    weight: float = 1.0
    temperature: float = 0.5
    name = "contrastive"

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.positive("temperature", self.temperature)

    def configure_client(self, method: Method, local_round: LocalRound) -> Method:
        global_model, previous = (_frozen_copy(local_round.model) for _ in range(2))
        previous.load_state_dict(local_round.state.arrays.get("previous", local_round.start), strict=False)
        local, near, far = (WithFeatures(model) for model in (local_round.model, global_model, previous))
        update = ContrastiveUpdate(self.weight, self.temperature, local, near, far, method.update)
        return dataclasses.replace(method, update=update)

    def client_upload(self, local_round: LocalRound) -> Message:
        local_round.state.arrays["previous"] = dict(local_round.end)
        return Message(0)


def _frozen_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(False).eval()
