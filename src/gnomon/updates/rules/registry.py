"""The registry of rules: how each type of module computes its per-sample updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from gnomon.updates.leaves import Leaf

Drift = Mapping[str, Leaf]
"""The displacement of each sample's own parameters from the shared ones, by their names in the module."""

Shift = Callable[[Tensor, Drift], Tensor | None]
"""(inputs, drift) -> the term that the drift adds to the output, or None; the batch is the first dimension of both."""


class Tap(Protocol):
    """Marks a use of parameters, so that their updates can be built after the backward pass."""

    def __call__(
        self,
        inputs: Tensor,
        output: Tensor,
        build: Callable[[Tensor, Tensor], Mapping[str, Leaf]],
        shift: Shift | None = None,
    ) -> Tensor:
        """Mark a use, and return the output, which the caller must use in place of the one that it passed.

        Args:
            inputs: the tensor that the parameters are applied to.
            output: the result.
            build: maps (inputs, gradient of the output), the batch first, to leaves by parameter name in the module.
            shift: the term that each sample's own parameters add to the output. Without it, local steps need a copy of
                the model for each sample.
        """


Leaves = Callable[[Any, Tensor, Tensor], Mapping[str, Leaf]]
"""(module, inputs, gradient of the output) -> a leaf for each parameter of the module, by its name in the module."""

Drifted = Callable[[Any, Tensor, Drift], Tensor]
"""(module, inputs, drift) -> the output if each sample has parameters of its own."""


@dataclass(frozen=True)
class Rule:
    """How the per-sample updates of one type of module are computed.

    A rule has either `leaves` or `forward`.
    """

    leaves: Leaves | None = None
    """Builds the leaves from the first input of the module and the gradient of its output."""
    forward: Callable[..., Any] | None = None
    """An equivalent forward pass that marks each use of a parameter."""
    batch_anywhere: bool = False
    """Whether the batch may be any leading dimension, as in a linear layer, or must be the first."""
    applies: Callable[[Any], bool] = lambda module: True
    """Whether the rule covers the settings of a module; a module that it does not cover runs under vmap."""
    shift: Callable[[Any, Tensor, Drift], Tensor | None] | None = None
    """(module, inputs, drift) -> the term that each sample's own parameters add to the output, in local steps."""
    drifted: Drifted | None = None
    """The whole forward pass of local steps, where that is cheaper than a shift. Without either, the module runs under
    vmap in local steps. A rule with either must build its leaves from inputs and gradients alone, not from parameters.
    """


_rules: dict[type[nn.Module] | str, Rule] = {}
"""The rules by type, or by the full name of a type in a library that need not be installed."""

F = TypeVar("F", bound=Callable[..., Any])


def rule(
    *types: type[nn.Module] | str,
    batch_anywhere: bool = False,
    applies: Callable[[Any], bool] = lambda module: True,
    shift: Callable[[Any, Tensor, Drift], Tensor | None] | None = None,
    drifted: Drifted | None = None,
) -> Callable[[F], F]:
    """Register a function that builds the leaves of a type of module; a later rule replaces an earlier one.

    The function maps (module, inputs, gradient of the output) to a leaf for each parameter of the module, by name.

    Args:
        types: the types of modules, or the full names of types in a library that need not be installed. Subclasses
            inherit the rule unless they override the forward pass.
        batch_anywhere: whether the batch may be any leading dimension, or must be the first.
        applies: returns whether the rule covers the settings of a module.
        shift: maps (module, inputs, drift) to the term that each sample's own parameters add to the output.
        drifted: maps (module, inputs, drift) to the output if each sample has parameters of its own.

    >>> import torch
    >>> from gnomon.updates import Dense, gradients
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = nn.Parameter(torch.ones(3))
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> @rule(Scale)
    ... def scale(module, inputs, grad):
    ...     return {"factor": Dense(grad * inputs)}
    >>> loss = lambda outputs, targets: (outputs * targets).sum(1)
    >>> gradients(Scale(), loss, torch.ones(2, 3), torch.ones(2, 3)).norms()
    tensor([1.7321, 1.7321], dtype=torch.float64)
    """

    def register(leaves: F) -> F:
        for kind in types:
            _rules[kind] = Rule(leaves, None, batch_anywhere, applies, shift, drifted)
        return leaves

    return register


def forward_rule(*types: type[nn.Module], applies: Callable[[Any], bool] = lambda module: True) -> Callable[[F], F]:
    """Register a forward pass `(module, tap, *args, **kwargs)` that marks each use of a parameter by calling `tap`.

    Use it for modules whose kernel hides the uses of their parameters, such as attention and recurrent layers.

    Args:
        types: the types of modules.
        applies: returns whether the rule covers the settings of a module.

    >>> import torch
    >>> from gnomon.updates import Factored, gradients
    >>> class Fused(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.matrix = nn.Parameter(torch.eye(2))
    ...     def forward(self, x):
    ...         return torch.tanh(x @ self.matrix.T)
    >>> @forward_rule(Fused)
    ... def fused(module, tap, x):
    ...     inner = tap(x, x @ module.matrix.T, lambda inputs, grad: {
    ...         "matrix": Factored(inputs[:, None, None], grad[:, None, None], module.matrix.shape)})
    ...     return torch.tanh(inner)
    >>> loss = lambda outputs, targets: outputs.sum(1)
    >>> gradients(Fused(), loss, torch.zeros(1, 2), None).norms()
    tensor([0.], dtype=torch.float64)
    """

    def register(forward: F) -> F:
        for kind in types:
            _rules[kind] = Rule(forward=forward, batch_anywhere=True, applies=applies)
        return forward

    return register


FORWARD = ("forward", "_conv_forward", "_apply_instance_norm")
"""The methods in which modules of torch compute their outputs, any of which a subclass may override."""


def find_rule(module: nn.Module) -> Rule | None:
    """Return the rule of a module, or None. A subclass that overrides the forward pass does not inherit a rule.

    >>> find_rule(nn.Linear(2, 2)) is not None, find_rule(nn.PReLU()) is None
    (True, True)
    """
    if "forward" in vars(module):  # the instance has a forward pass of its own
        return None
    for kind in type(module).__mro__:
        registered = _rules.get(kind) or _rules.get(f"{kind.__module__}.{kind.__qualname__}")
        if registered is not None:
            inherited = all(getattr(type(module), name, None) is getattr(kind, name, None) for name in FORWARD)
            return registered if inherited and registered.applies(module) else None
    return None


def drifted_parameter(module: nn.Module, name: str, drift: Drift, size: int) -> Tensor:
    """Return a parameter as each sample has it, the shared value plus the drift, (B, *shape).

    >>> import torch
    >>> from gnomon.updates.leaves import Dense
    >>> layer = nn.Linear(1, 1)
    >>> bool((drifted_parameter(layer, "bias", {"bias": Dense(torch.ones(3, 1))}, 3) == layer.bias + 1).all())
    True
    """
    shared: Tensor = getattr(module, name)
    return shared + drift[name].dense() if name in drift else shared.expand(size, *shared.shape)
