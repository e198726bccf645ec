"""Local SGD: several gradient steps on each sample alone, without a copy of the model for each sample.

The displacement of a linear layer is the product of the inputs and the output gradients of all steps, so it has the
same form as a gradient (DP-LSGD).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.utils import _pytree as pytree

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.losses import Loss, check_per_sample, per_sample
from gnomon.updates.backward import backward, trainable_parameters
from gnomon.updates.exact import exact_products
from gnomon.updates.fallback import explained_vmap, with_values
from gnomon.updates.layouts import Layouts
from gnomon.updates.leaves import Dense, Factored, Indexed, Leaf, Summed, Zero, add
from gnomon.updates.leaves.leaf import amplifies
from gnomon.updates.recorder import Memo, NeedsCopies
from gnomon.updates.trees import batch_size, same_memory
from gnomon.updates.updates import Updates

COPY_BYTES = 256 * 2**20
"""The memory that copies of the model may take where they cannot be avoided."""


@dataclass(frozen=True)
class LocalDescent:
    """The settings of local SGD: the number of steps, their learning rate, and a momentum that starts at zero.

    >>> LocalDescent(0, 0.1)
    Traceback (most recent call last):
    gnomon.errors.SettingError: local-steps = 0 is invalid; expected a whole number, 1 or above
    """

    steps: int
    lr: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validate.whole("local-steps", self.steps)
        validate.positive("local-lr", self.lr)
        expected = "a number of at least 0 and below 1"
        if not 0 <= validate.number("local-momentum", self.momentum, expected) < 1:
            raise SettingError("local-momentum", self.momentum, expected)


@exact_products()
def local_sgd(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    *,
    steps: int,
    lr: float,
    momentum: float = 0.0,
    layouts: Layouts | None = None,
) -> Updates:
    """Compute the displacement of the parameters after `steps` steps of gradient descent on each sample alone.

    Every sample starts at the weights of the model. Its displacement `v_K - w` has the same form as a gradient, and
    nothing of the size of the model is stored for each sample. The losses are those before the first step.

    Guarantee: the result equals that of training a copy of the model for each sample, up to rounding, if samples do not
    interact in the model.

    Args:
        model: the model; it is left as it was.
        loss: maps (outputs, targets) to one loss per sample.
        inputs: a tensor, a tuple of arguments or a dict of keyword arguments of the model; the batch is the first
            dimension of every tensor.
        targets: passed to the loss.
        steps: the number of local steps K.
        lr: the learning rate of the local steps.
        momentum: the momentum of the local steps, which each sample has for itself and which starts at zero.
        layouts: a cache of model layouts, as for `gradients`.

    Raises:
        GnomonError: a setting is invalid, or the updates of this model and loss cannot be computed.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> loss = lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1)
    >>> x, y = torch.tensor([[1.0], [1.0]]), torch.tensor([[1.0], [-2.0]])
    >>> local_sgd(model, loss, x, y, steps=2, lr=0.5).dense()
    tensor([[ 0.7500],
            [-1.5000]])
    """
    descent = LocalDescent(steps, lr, momentum)
    size, known = batch_size(inputs), layouts or Layouts()
    losses_by_step: list[Tensor] = []
    memo: Memo = {}

    def gradients(drift: dict[str, Leaf] | None) -> dict[str, Leaf]:
        leaves, losses = backward(model, loss, inputs, targets, size, layouts=known, drift=drift, memo=memo)
        losses_by_step.append(losses)
        return leaves

    try:
        displacements = descend(descent, gradients)
    except NeedsCopies:
        displacements = by_copies(model, loss, inputs, targets, size, descent)
    return Updates({name: displacements[name] for name in trainable_parameters(model)}, losses_by_step[0])


def by_copies(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, size: int, descent: LocalDescent
) -> dict[str, Leaf]:
    """Compute the displacements with a copy of the trainable parameters for each sample, for models without rules."""
    start = {name: p.detach() for name, p in trainable_parameters(model).items()}
    criterion, run = per_sample(loss), with_values(model)

    def single_loss(values: dict[str, Tensor], record: Any) -> Tensor:
        sample, target = pytree.tree_map_only(Tensor, lambda t: t[None], record)
        args = (sample,) if isinstance(sample, Tensor) else (() if isinstance(sample, dict) else tuple(sample))
        kwargs = sample if isinstance(sample, dict) else {}
        return check_per_sample(criterion(run(values, args, kwargs), target), 1)[0]

    def displacement(record: Any) -> dict[str, Tensor]:
        moved = {name: torch.zeros_like(value) for name, value in start.items()}
        velocity = moved
        for _ in range(descent.steps):
            slopes = grad(single_loss)({name: start[name] + moved[name] for name in start}, record)
            velocity = {name: descent.momentum * velocity[name] + slopes[name] for name in start}
            moved = {name: moved[name] - descent.lr * velocity[name] for name in start}
        return moved

    bytes_per_sample = 4 * sum(value.numel() * value.element_size() for value in start.values())
    with explained_vmap(model, "", start):
        flat, structure = pytree.tree_flatten((inputs, targets))
        dims = pytree.tree_unflatten([0 if isinstance(t, Tensor) and t.dim() else None for t in flat], structure)
        chunk = max(1, min(size, COPY_BYTES // max(1, bytes_per_sample)))
        mapped = torch.vmap(displacement, in_dims=(dims,), chunk_size=chunk)
        return {name: Dense(value) for name, value in mapped((inputs, targets)).items()}


def descend(descent: LocalDescent, gradients: Callable[[dict[str, Leaf] | None], dict[str, Leaf]]) -> dict[str, Leaf]:
    """Return the displacement of each parameter after all steps.

    Args:
        descent: the settings.
        gradients: maps a drift, or None at the start, to the gradients at the drifted parameters.

    Raises:
        SettingError: a parameter is used in some steps and not in others.
    """
    first = gradients(None)
    drifts = {name: drift_of(descent, leaf) for name, leaf in first.items() if not isinstance(leaf, Zero)}
    unused = {name: leaf for name, leaf in first.items() if isinstance(leaf, Zero)}
    del first
    for _ in range(descent.steps - 1):
        for name, leaf in gradients({name: drift.leaf for name, drift in drifts.items()}).items():
            if isinstance(leaf, Zero) != (name in unused):
                raise SettingError.with_message(
                    f"parameter '{name}' is used in some local steps and not in others; "
                    "make the path through the model independent of its weights",
                    name="model",
                )
            if name in drifts:
                drifts[name].take(leaf)
    return {name: drifts[name].leaf if name in drifts else unused[name] for name in (*drifts, *unused)}


class ParameterDrift:
    """The displacement of one parameter so far, `-lr * (sum of velocities)`, which takes one gradient per step.

    A factored or indexed gradient has a carrier (the inputs of the layer) and a payload (the output gradients), on
    which the momentum acts. Where the carrier stays the same from step to step, as in the first layer, payloads are
    added; where it changes, the rows of each step are appended. A dense gradient has a payload alone.

    >>> drift = ParameterDrift(LocalDescent(steps=2, lr=0.5, momentum=0.0), Dense(torch.ones(1, 3)))
    >>> drift.take(Dense(torch.ones(1, 3)))
    >>> drift.leaf.dense()
    tensor([[-1., -1., -1.]])
    """

    def __init__(self, descent: LocalDescent, first: Leaf) -> None:
        self.descent, self.shape = descent, first.shape
        self.is_dense = not _stays_low_rank(first, descent.steps)
        carrier, payload = self._split(first)
        self.carrier = self.last = carrier
        self.velocity = payload.clone() if descent.momentum else None
        self.payload = payload * -descent.lr
        self.rows = 0 if carrier is None else carrier.shape[1]
        """The number of rows of the buffers that are in use."""
        self._moderate = not descent.momentum and not self._amplifies(carrier, self.payload)
        """Whether all entries of carrier and payload are known to be moderate; with momentum, all rows change."""

    def take(self, gradient: Leaf) -> None:
        """Make one more step."""
        carrier, payload = self._split(gradient)
        rows = self.rows
        step_rows = self._rows_for(carrier)
        if self.velocity is None:
            changed = self._view(self.payload, step_rows).sub_(payload, alpha=self.descent.lr)
            self._moderate = self._moderate and not self._amplifies(carrier if self.rows > rows else None, changed)
            return
        all_rows = slice(0, self.rows)
        self._view(self.velocity, all_rows).mul_(self.descent.momentum)
        self._view(self.velocity, step_rows).add_(payload)
        self._view(self.payload, all_rows).sub_(self._view(self.velocity, all_rows), alpha=self.descent.lr)

    @property
    def leaf(self) -> Leaf:
        """The displacement so far, as a leaf."""
        if self.carrier is None:
            return Dense(self.payload)
        carrier, payload = self.carrier[:, : self.rows], self.payload[:, : self.rows]
        if carrier.is_floating_point():
            return Factored(carrier[:, None], payload[:, None], self.shape, self._moderate)
        return Indexed(carrier, payload, self.shape)

    def _amplifies(self, carrier: Tensor | None, payload: Tensor) -> bool:
        """Return whether a factored displacement has a huge entry; a displacement in another form has no use for it."""
        factored = self.carrier is not None and self.carrier.is_floating_point()
        return factored and (amplifies(payload) or (carrier is not None and amplifies(carrier)))

    def _split(self, leaf: Leaf) -> tuple[Tensor | None, Tensor]:
        """Return carrier (B, T, ...) and payload (B, T, ...) of a gradient; a dense one has no carrier."""
        if self.is_dense:
            return None, leaf.dense()
        if isinstance(leaf, Factored):
            return leaf.inputs[:, 0], leaf.outputs[:, 0]
        assert isinstance(leaf, Indexed)
        return leaf.index, leaf.values

    def _view(self, buffer: Tensor, rows: slice) -> Tensor:
        return buffer if self.carrier is None else buffer[:, rows]

    def _rows_for(self, carrier: Tensor | None) -> slice:
        """Return the rows that a step adds to: those of the last step if the carrier is the same, else new ones."""
        if carrier is None or self.carrier is None or self.last is None:
            return slice(0)
        new = carrier.shape[1]
        if same_memory(carrier, self.last):
            return slice(self.rows - new, self.rows)
        if self.rows + new > self.carrier.shape[1]:
            capacity = max(self.rows + new, self.descent.steps * new)
            self.carrier = _grown(self.carrier, capacity)
            self.payload = _grown(self.payload, capacity)
            self.velocity = None if self.velocity is None else _grown(self.velocity, capacity)
        appended = slice(self.rows, self.rows + new)
        self.rows += new
        self.last = carrier
        self.carrier[:, appended] = carrier
        self.payload[:, appended] = 0
        if self.velocity is not None:
            self.velocity[:, appended] = 0
        return appended


class TiedDrift:
    """The displacement of a parameter whose gradient is a sum of several forms, such as tied weights."""

    def __init__(self, descent: LocalDescent, first: Summed) -> None:
        self.parts = [drift_of(descent, part) for part in first.parts]

    def take(self, gradient: Leaf) -> None:
        """Make one more step."""
        assert isinstance(gradient, Summed)
        for part, leaf in zip(self.parts, gradient.parts, strict=True):
            part.take(leaf)

    @property
    def leaf(self) -> Leaf:
        """The displacement so far, as a leaf."""
        return add([part.leaf for part in self.parts])


def drift_of(descent: LocalDescent, first: Leaf) -> ParameterDrift | TiedDrift:
    """Return the drift of a parameter after a step along its first gradient, in the cheapest form."""
    if isinstance(first, Summed) and all(_stays_low_rank(part, descent.steps) for part in first.parts):
        return TiedDrift(descent, first)
    return ParameterDrift(descent, first)


def _stays_low_rank(leaf: Leaf, steps: int) -> bool:
    """Return whether products with the rows of all steps are cheaper, on average, than with the dense matrix."""
    if isinstance(leaf, Indexed):
        return True
    if not isinstance(leaf, Factored) or leaf.inputs.shape[1] > 1:
        return False
    return steps * leaf.length * (leaf.rows + leaf.columns) <= 2 * leaf.rows * leaf.columns


def _grown(buffer: Tensor, rows: int) -> Tensor:
    """Return a copy of a buffer with room for `rows` rows."""
    grown = buffer.new_empty(buffer.shape[0], rows, *buffer.shape[2:])
    grown[:, : buffer.shape[1]] = buffer
    return grown
