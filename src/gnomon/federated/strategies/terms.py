"""Terms that pull local training towards the server. They read weights, never records, and join after the noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gnomon import validate
from gnomon.federated.message import total_norm


@dataclass(frozen=True, eq=False)
class Proximal:
    """`mu (w - w_global)`, the gradient of FedProx's term.

    >>> import torch
    >>> Proximal(0.5, {"w": torch.tensor([1.0])})({"w": torch.tensor([3.0])})
    {'w': tensor([1.])}
    """

    mu: float
    anchor: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        validate.non_negative("mu", self.mu)

    @property
    def name(self) -> str:
        return f"proximal term {self.mu:g}"

    def __call__(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.mu * (value - self.anchor[name]) for name, value in parameters.items()}


@dataclass(frozen=True, eq=False)
class Beyond:
    """The gradient of `mu / 2 max(0, |w - w_global|^2 - limit^2)`, FedLRS's bounded local update regularisation.

    >>> import torch
    >>> term = Beyond(0.5, {"w": torch.tensor([0.0])}, limit=2.0)
    >>> term({"w": torch.tensor([1.0])}), term({"w": torch.tensor([4.0])})
    ({'w': tensor([0.])}, {'w': tensor([2.])})
    """

    mu: float
    anchor: Mapping[str, Tensor]
    limit: float

    def __post_init__(self) -> None:
        validate.non_negative("mu", self.mu)
        validate.positive("limit", self.limit)

    @property
    def name(self) -> str:
        return f"term {self.mu:g} beyond {self.limit:g}"

    def __call__(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        away = {name: value - self.anchor[name] for name, value in parameters.items()}
        factor = self.mu if total_norm(away) > self.limit else 0.0
        return {name: factor * value for name, value in away.items()}


@dataclass(frozen=True, eq=False)
class Shift:
    """A fixed vector: SCAFFOLD's `c - c_i`.

    >>> import torch
    >>> Shift({"w": torch.tensor([1.0])}, "control variate")({"w": torch.tensor([9.0])})
    {'w': tensor([1.])}
    """

    vector: Mapping[str, Tensor]
    name: str

    def __call__(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self.vector
