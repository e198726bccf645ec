"""Which module has which rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from gnomon.updates.leaves import Leaf

Drift = Mapping[str, Leaf]
"""How far each sample's own parameters are from the shared ones, by the module's own names for them."""

Shift = Callable[[Tensor, Drift], Tensor | None]
"""(inputs, drift) -> what to add to the output, if anything; the batch comes first in both."""


class Tap(Protocol):
    """Marks a place where parameters enter, so that their updates can be built after the backward pass."""

    def __call__(
        self,
        inputs: Tensor,
        output: Tensor,
        build: Callable[[Tensor, Tensor], Mapping[str, Leaf]],
        shift: Shift | None = None,
    ) -> Tensor:
        """`build(inputs, grad)` gets both with the batch first; names are the module's own.

        `shift` says what each sample's own parameters change in the output; without it, local steps run by copies.
        """


Leaves = Callable[[Any, Tensor, Tensor], Mapping[str, Leaf]]
"""(module, inputs, grad of the output) -> a leaf for each of the module's own parameters."""

Drifted = Callable[[Any, Tensor, Drift], Tensor]
"""(module, inputs, drift) -> the output when each sample has parameters of its own."""


@dataclass(frozen=True)
class Rule:
    """How the parameters of one module type get their per-sample updates.

    Either `leaves` (from the module's first input and its output's gradient) or `forward`, a forward pass
    of the same value that marks each place where a parameter enters. `applies` may decline a module whose
    settings the rule does not cover; it then falls back to vmap.
    """

    leaves: Leaves | None = None
    forward: Callable[..., Any] | None = None
    batch_anywhere: bool = False
    """Whether the batch may be any leading dimension (a linear layer's) or must be the first."""
    applies: Callable[[Any], bool] = lambda module: True
    shift: Callable[[Any, Tensor, Drift], Tensor | None] | None = None
    """(module, inputs, drift) -> what each sample's own parameters add to the output, in local steps."""
    drifted: Drifted | None = None
    """The whole forward pass of local steps, where that is cheaper than a shift. With neither, the module runs under
    vmap there. A rule with either must build its leaves from inputs and gradients alone, not from its parameters."""


_rules: dict[type[nn.Module], Rule] = {}

F = TypeVar("F", bound=Callable[..., Any])


def rule(
    *types: type[nn.Module],
    batch_anywhere: bool = False,
    applies: Callable[[Any], bool] = lambda module: True,
    shift: Callable[[Any, Tensor, Drift], Tensor | None] | None = None,
    drifted: Drifted | None = None,
) -> Callable[[F], F]:
    """Register the per-sample rule of a module type; a later one replaces an earlier one.

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
    """Register a forward pass `(module, tap, *args, **kwargs)` that marks where parameters enter.

    For modules whose own kernel hides that, such as attention and recurrent layers.

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
"""The methods in which torch's modules compute; some hand over to another one, which people override as well."""


def find_rule(module: nn.Module) -> Rule | None:
    """The rule of a module, or None. A subclass that computes otherwise does not inherit one.

    >>> find_rule(nn.Linear(2, 2)) is not None, find_rule(nn.PReLU()) is None
    (True, True)
    """
    if "forward" in vars(module):  # patched on the instance
        return None
    for kind in type(module).__mro__:
        if kind in _rules:
            found = _rules[kind]
            same = all(getattr(type(module), name, None) is getattr(kind, name, None) for name in FORWARD)
            return found if same and found.applies(module) else None
    return None


def own(module: nn.Module, name: str, drift: Drift, size: int) -> Tensor:
    """A parameter as each sample has it: shared value plus drift, written out, (B, *shape).

    >>> import torch
    >>> from gnomon.updates.leaves import Dense
    >>> layer = nn.Linear(1, 1)
    >>> bool((own(layer, "bias", {"bias": Dense(torch.ones(3, 1))}, 3) == layer.bias + 1).all())
    True
    """
    shared: Tensor = getattr(module, name)
    return shared + drift[name].dense() if name in drift else shared.expand(size, *shared.shape)
