"""The published methods, one function each: which update, which clip rule.

A method is data. A combination that nobody has published works because the stages compose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gnomon.clipping import ClipRule, Flat
from gnomon.updates import Loss, Updates, gradients

Update = Callable[[nn.Module, Loss, Any, Any], Updates]
"""(model, loss, inputs, targets) -> what each sample would change"""


@dataclass(frozen=True)
class Method:
    """A composition of stages.

    >>> dp_sgd().describe()
    'dp-sgd: gradient, flat clipping'
    """

    name: str
    update: Update = gradients
    clip: ClipRule = field(default_factory=Flat)

    def describe(self) -> str:
        """One line for statements and listings."""
        what = "gradient" if self.update is gradients else getattr(self.update, "__name__", "own update")
        return f"{self.name}: {what}, {self.clip.name} clipping"


def dp_sgd(clip: ClipRule | None = None) -> Method:
    """DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", 2016).

    Each sample's gradient is clipped, the sum is noised in all p dimensions. With another clip rule it is
    Auto-S (Automatic), NSGD (Normalised) or DP-PSAC (PSAC).

    >>> from gnomon.clipping import Automatic
    >>> dp_sgd(clip=Automatic()).clip.name
    'automatic'
    """
    return Method("dp-sgd", clip=clip or Flat())


METHODS: dict[str, Callable[..., Method]] = {"dp-sgd": dp_sgd}
"""The methods by the name that the command line uses."""
