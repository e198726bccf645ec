"""One forward and one backward pass of a batch, and what every sample's parameters get from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gnomon.updates.fallback import vmapped
from gnomon.updates.graph import may_reorder, node, parameters_used, straighten
from gnomon.updates.layout import Layout, forget, layout, used_outside
from gnomon.updates.leaves import Leaf, Zero, add
from gnomon.updates.losses import Loss, checked, per_sample
from gnomon.updates.recorder import Mark, Memo, NeedsCopies, OtherPath, Own, Recorder, aliased
from gnomon.updates.trees import call, differentiable, tensors

UNDERFLOW, NEGLIGIBLE = 1e-30, 1e-12
"""How far apart two gradients may be where numbers are too small for float32 to scale exactly: in absolute terms, and
beside the longest gradient of the same sample."""


def backward(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    size: int,
    kept: Callable[[Leaf], Leaf] = lambda leaf: leaf,
    drift: Mapping[str, Leaf] | None = None,
    memo: Memo | None = None,
) -> tuple[dict[str, Leaf], Tensor]:
    """Each sample's gradient by parameter, and its loss.

    With `drift` each sample's gradient is taken at parameters of its own: the model's plus that.
    `kept` may change the form of a leaf as soon as it is built; `memo` carries over what several calls share.
    """
    trainable = trainable_parameters(model)
    if size == 0:
        nobody: dict[str, Leaf] = {name: Zero(0, p.shape, p.detach()) for name, p in trainable.items()}
        return nobody, next(model.parameters(), torch.zeros(0)).detach().new_zeros(0)
    found = layout(model, inputs)
    if found.outside and drift is not None:
        raise NeedsCopies(", ".join(sorted(found.outside)))
    own = None if drift is None else Own(drift, found.batch, {} if memo is None else memo)
    with torch.enable_grad(), Recorder(model, skip=found.outside, own=own) as recorder:
        outputs = aliased(call(model, inputs))
    marks, carried = recorder.marks, differentiable(outputs)
    _refuse_hidden(outputs)
    _refuse_other_path(model, found, marks, carried, size)
    with torch.enable_grad():
        losses = checked(per_sample(loss)(outputs, targets), size)
        _refuse_parameters_in_loss(losses, carried, trainable)
        edges = [edge for mark in marks for edge in mark.edges] + [get_gradient_edge(out) for out in carried]
        grads: list[Tensor | None] = [None] * len(edges)
        if losses.requires_grad and edges:
            straighten([node(losses)])
            doubtful = size > 1 and may_reorder(map(node, carried))
            grads = list(torch.autograd.grad(losses.sum(), edges, allow_unused=True, retain_graph=doubtful))
            if doubtful:
                factors = _unlike_factors(losses)
                scaled = torch.autograd.grad((factors * losses).sum(), edges, allow_unused=True)
                _refuse_other_order(found, marks, grads, scaled, factors)
    _refuse_coarse(marks, grads)
    _refuse_shared_outputs(found.outputs, grads[len(grads) - len(carried) :])
    with torch.no_grad():
        leaves = _leaves(model, inputs, found, marks, carried, grads, kept)
    ordered = {
        name: leaves[name] if name in leaves else Zero(size, p.shape, p.detach()) for name, p in trainable.items()
    }
    # what is computed from losses must not look more precise than the updates are
    coarsest = torch.float32 if any(p.dtype is torch.float32 for p in trainable.values()) else torch.float64
    return ordered, losses.detach().to(coarsest)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take part, by name; those that cannot are refused."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    _refuse_parameters(trainable)
    return trainable


def _leaves(
    model: nn.Module,
    inputs: Any,
    found: Layout,
    marks: list[Mark],
    carried: list[Tensor],
    grads: list[Tensor | None],
    kept: Callable[[Leaf], Leaf],
) -> dict[str, Leaf]:
    """Leaves by parameter, built one layer at a time."""
    pieces: dict[str, list[Leaf]] = defaultdict(list)
    for mark in marks:
        mine = [grads.pop(0) for _ in mark.edges]
        if all(grad is None for grad in mine):
            continue
        mark.check_unchanged()
        for name, leaf in _built(mark, found.batch[mark.key], mine).items():
            pieces[name].append(kept(leaf))
    if found.outside:
        full = [torch.zeros_like(out) if g is None else g for out, g in zip(carried, grads, strict=True)]
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((inputs,), {})
        if isinstance(inputs, dict):
            arguments = ((), dict(inputs))
        elif isinstance(inputs, list | tuple):
            arguments = (tuple(inputs), {})
        own = {name: name for name in sorted(found.outside)}
        dims = [0 if t.dim() else None for t in tensors(inputs)]
        whole = vmapped(model, "", own, arguments, dims, full, found.outputs, every_use=True)
        for name, leaf in whole.items():
            pieces[name].append(leaf)
    return {name: add(parts) for name, parts in pieces.items()}


def _built(mark: Mark, dims: tuple[int | None, ...], grads: list[Tensor | None]) -> dict[str, Leaf]:
    if mark.build is None:
        assert mark.call is not None
        outputs = mark.shapes[len(mark.inputs) :]
        full = [
            torch.zeros(shape, dtype=_first(grads).dtype, device=_first(grads).device) if g is None else g
            for g, shape in zip(grads, outputs, strict=True)
        ]
        split = len(mark.inputs)
        return vmapped(
            mark.module, mark.key[0], mark.parameters, mark.call, dims[:split], full, dims[split:], drift=mark.drift
        )
    assert dims[0] is not None
    assert dims[1] is not None
    built = mark.build(mark.inputs[0].detach().movedim(dims[0], 0), _first(grads).movedim(dims[1], 0))
    return {mark.parameters[own]: leaf for own, leaf in built.items() if own in mark.parameters}


def _first(grads: list[Tensor | None]) -> Tensor:
    return next(grad for grad in grads if grad is not None)


def _refuse_parameters(trainable: dict[str, nn.Parameter]) -> None:
    """Half precision rounds by more than a clip bound can promise; hooks on parameters would not run."""
    for name, p in trainable.items():
        if p._backward_hooks:
            raise ValueError(f"parameter '{name}' has a backward hook, which per-sample updates do not run: remove it")
        if p.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"parameter '{name}' is {p.dtype}: use float32 or float64")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise TypeError("autocast is on: per-sample updates need float32 or float64, leave it off here")


def _refuse_other_path(model: nn.Module, found: Layout, marks: list[Mark], carried: list[Tensor], size: int) -> None:
    """The batch must go through the model as the few samples did from which its layout was read."""
    same = set(found.batch) >= {mark.key for mark in marks} and len(carried) == len(found.outputs)
    same = same and all(
        dim is None or shape[dim] == size
        for mark in marks
        for dim, shape in zip(found.batch[mark.key], mark.shapes, strict=True)
    )
    if not (same and used_outside(model, marks, carried, found.covered) <= found.outside):
        forget(model)
        raise OtherPath


def _refuse_hidden(outputs: Any) -> None:
    """Tensors in an object that pytree cannot open would look as if the loss read the parameters itself."""
    if not tensors(outputs):
        raise TypeError(
            f"the model returns a {type(outputs).__name__}, in which no tensor can be found: return a tensor, a tuple "
            "or a dict, or register the type with torch.utils._pytree"
        )


def _unlike_factors(losses: Tensor) -> Tensor:
    """A power of two from 1 down to 2^-7 for each sample, another one than its neighbours have.

    Scaling by a power of two is exact, so a row that keeps to its own loss scales without any rounding, whatever the
    weights are: whoever chooses them cannot make this check depend on the values of a record.
    """
    golden = 0.6180339887498949
    places = torch.arange(1, len(losses) + 1, dtype=torch.float64, device=losses.device)
    return torch.exp2(-(8 * (golden * places).frac()).floor()).to(losses.dtype)


def _refuse_other_order(
    found: Layout, marks: list[Mark], grads: Sequence[Tensor | None], scaled: Sequence[Tensor | None], factors: Tensor
) -> None:
    """A sample's row in a layer must be that of its loss: with losses times a factor each, it shrinks by its own.

    Each row is judged by its own gradients alone. One that is negligible beside the sample's others is not: it may be
    what is left of numbers too small for float32 to scale exactly.
    """
    rows: list[tuple[str, Tensor, Tensor]] = []
    place = 0
    for mark in marks:
        for dim in found.batch[mark.key][len(mark.inputs) :]:
            one, other = grads[place], scaled[place]
            place += 1
            if one is None or other is None or dim is None:
                continue
            whole, shrunk = (grad.movedim(dim, 0).reshape(grad.shape[dim], -1).double() for grad in (one, other))
            own = factors.double() * torch.linalg.vector_norm(whole, dim=1)
            apart = torch.linalg.vector_norm(shrunk - factors.double()[:, None] * whole, dim=1)
            rows.append((mark.key[0], own, apart))
    if not rows:
        return
    longest = torch.stack([own for _, own, _ in rows]).amax(0)  # (B,)
    for where, own, apart in rows:
        if bool((apart > 0.02 * own + NEGLIGIBLE * longest + UNDERFLOW).any()):
            raise ValueError(
                f"module '{where}' has the samples of a batch in another order than the losses, so nobody could tell "
                "whose update is whose: let the model keep the order of its inputs (sort records beforehand, or give "
                "padded sequences)"
            )


def _refuse_coarse(marks: list[Mark], grads: Sequence[Tensor | None]) -> None:
    """What layers see and get back must be as precise as the parameters: autocast may be on inside the model."""
    place = 0
    for mark in marks:
        mine = [grad for grad in grads[place : place + len(mark.edges)] if grad is not None]
        place += len(mark.edges)
        for tensor in (*mark.inputs, *mine) if mine else ():
            if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
                raise TypeError(
                    f"module '{mark.key[0]}' computes in {str(tensor.dtype).removeprefix('torch.')}: per-sample "
                    "updates need float32 or float64; leave out autocast and .half() inside the model"
                )


def _refuse_shared_outputs(dims: tuple[int | None, ...], grads: list[Tensor | None]) -> None:
    """An output without a batch dimension cannot be divided among the samples."""
    if any(dim is None and grad is not None for dim, grad in zip(dims, grads, strict=True)):
        raise ValueError(
            "the loss uses an output of the model that has no batch dimension (a penalty, say): "
            "return one value a sample instead, or use the optimizer's weight_decay"
        )


def _refuse_parameters_in_loss(losses: Tensor, outputs: list[Tensor], trainable: dict[str, nn.Parameter]) -> None:
    """The loss may read the model through its outputs only."""
    if not losses.requires_grad:
        return
    names = {p: name for name, p in trainable.items()}
    direct = parameters_used([node(losses)], names, ends=[node(out) for out in outputs])
    if direct:
        raise ValueError(
            f"the loss uses parameter {sorted(direct)} directly: move that term into the model's outputs, "
            "or use the optimizer's weight_decay"
        )
