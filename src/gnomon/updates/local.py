"""Several local steps a sample, without a copy of the model for each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.utils import _pytree as pytree

from gnomon.updates.backward import backward, trainable_parameters
from gnomon.updates.drift import LocalDescent, descend
from gnomon.updates.exact import exact_products
from gnomon.updates.fallback import explained, with_values
from gnomon.updates.gradients import batch_size
from gnomon.updates.leaves import Dense, Leaf
from gnomon.updates.losses import Loss, checked, per_sample
from gnomon.updates.recorder import Memo, NeedsCopies
from gnomon.updates.updates import Updates

COPY_BYTES = 256 * 2**20
"""How much memory the copies of the model may take where they cannot be avoided."""


@exact_products()
def local_sgd(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, *, steps: int, lr: float, momentum: float = 0.0
) -> Updates:
    """How far each sample would move the model in `steps` steps of gradient descent on itself alone.

    Every sample starts at the model's weights and sees only itself; the displacements `v_K - w` come in the same form
    as gradients. A linear layer's displacement is the product of what it saw and what came back over the steps,
    so that nothing of the model's size is stored for each sample. `momentum` is each sample's own and starts at zero.
    The losses are those before the first step.

    Guarantee: equal to training a copy of the model for each sample, up to rounding.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> loss = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> x, y = torch.tensor([[1.0], [1.0]]), torch.tensor([[1.0], [-2.0]])
    >>> local_sgd(model, loss, x, y, steps=2, lr=0.5).dense()
    tensor([[ 0.7500],
            [-1.5000]])
    """
    descent = LocalDescent(steps, lr, momentum)
    size = batch_size(inputs)
    losses: list[Tensor] = []
    memo: Memo = {}

    def gradients(drift: dict[str, Leaf] | None) -> dict[str, Leaf]:
        leaves, found = backward(model, loss, inputs, targets, size, drift=drift, memo=memo)
        losses.append(found)
        return leaves

    try:
        moved = descend(descent, gradients)
    except NeedsCopies:
        moved = by_copies(model, loss, inputs, targets, size, descent)
    return Updates({name: moved[name] for name in trainable_parameters(model)}, losses[0])


def by_copies(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, size: int, descent: LocalDescent
) -> dict[str, Leaf]:
    """The same with a copy of the trainable parameters for each sample, for models that no rule can follow."""
    start = {name: p.detach() for name, p in trainable_parameters(model).items()}
    criterion, run = per_sample(loss), with_values(model)

    def of_one(values: dict[str, Tensor], record: Any) -> Tensor:
        alone, target = pytree.tree_map_only(Tensor, lambda t: t[None], record)
        args = (alone,) if isinstance(alone, Tensor) else (() if isinstance(alone, dict) else tuple(alone))
        kwargs = alone if isinstance(alone, dict) else {}
        return checked(criterion(run(values, args, kwargs), target), 1)[0]

    def displacement(record: Any) -> dict[str, Tensor]:
        moved = {name: torch.zeros_like(value) for name, value in start.items()}
        velocity = moved
        for _ in range(descent.steps):
            slopes = grad(of_one)({name: start[name] + moved[name] for name in start}, record)
            velocity = {name: descent.momentum * velocity[name] + slopes[name] for name in start}
            moved = {name: moved[name] - descent.lr * velocity[name] for name in start}
        return moved

    held = 4 * sum(value.numel() * value.element_size() for value in start.values())
    with explained(model, "", start):
        flat, structure = pytree.tree_flatten((inputs, targets))
        dims = pytree.tree_unflatten([0 if isinstance(t, Tensor) and t.dim() else None for t in flat], structure)
        chunk = max(1, min(size, COPY_BYTES // max(1, held)))
        mapped = torch.vmap(displacement, in_dims=(dims,), chunk_size=chunk)
        return {name: Dense(value) for name, value in mapped((inputs, targets)).items()}
