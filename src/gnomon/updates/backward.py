"""One forward and one backward pass over a batch, and the per-sample gradients that are built from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gnomon.errors import SettingError
from gnomon.losses import Loss, check_per_sample, per_sample
from gnomon.updates.fallback import vmapped
from gnomon.updates.graph import make_gradients_contiguous, may_reorder, node, parameters_used
from gnomon.updates.layout import Layout, Layouts, uncovered_parameters
from gnomon.updates.leaves import Leaf, Zero, add
from gnomon.updates.recorder import DriftedModel, Mark, Memo, NeedsCopies, PathChanged, Recorder, aliased
from gnomon.updates.trees import call, differentiable, tensors

UNDERFLOW, NEGLIGIBLE = 1e-30, 1e-12
"""Tolerances for the difference of two gradients whose numbers are too small for float32 to scale exactly: absolute,
and relative to the longest gradient of the same sample."""


def backward(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    size: int,
    *,
    layouts: Layouts,
    convert: Callable[[Leaf], Leaf] = lambda leaf: leaf,
    drift: Mapping[str, Leaf] | None = None,
    memo: Memo | None = None,
) -> tuple[dict[str, Leaf], Tensor]:
    """Compute the per-sample gradients by parameter name, and the per-sample losses.

    Args:
        model: the model.
        loss: maps (outputs, targets) to one loss per sample.
        inputs: the inputs of the model.
        targets: passed to the loss.
        size: the number of samples.
        layouts: the cache of model layouts.
        convert: may change the form of a leaf as soon as it is built.
        drift: the displacement of each sample's own parameters from those of the model, by name, in local steps.
        memo: outputs of shared parameters that several calls with the same inputs have in common.
    """
    trainable = trainable_parameters(model)
    if size == 0:
        empty: dict[str, Leaf] = {name: Zero(0, p.shape, p.detach()) for name, p in trainable.items()}
        return empty, next(model.parameters(), torch.zeros(0)).detach().new_zeros(0)
    layout = layouts.of(model, inputs)
    if layout.uncovered and drift is not None:
        raise NeedsCopies(", ".join(sorted(layout.uncovered)))
    drifted = None if drift is None else DriftedModel(drift, layout.batch, {} if memo is None else memo)
    with torch.enable_grad(), Recorder(model, skip=layout.uncovered, drifted=drifted) as recorder:
        outputs = aliased(call(model, inputs))
    marks, output_tensors = recorder.marks, differentiable(outputs)
    _refuse_opaque_outputs(outputs)
    if not _follows_layout(model, layout, marks, output_tensors, size):
        layouts.forget(model)
        raise PathChanged
    with torch.enable_grad():
        losses = check_per_sample(per_sample(loss)(outputs, targets), size)
        _refuse_parameters_in_loss(losses, output_tensors, trainable)
        edges = [edge for mark in marks for edge in mark.edges] + [get_gradient_edge(out) for out in output_tensors]
        grads: list[Tensor | None] = [None] * len(edges)
        if losses.requires_grad and edges:
            make_gradients_contiguous([node(losses)])
            check_order = size > 1 and may_reorder(map(node, output_tensors))
            grads = list(torch.autograd.grad(losses.sum(), edges, allow_unused=True, retain_graph=check_order))
            if check_order:
                factors = _scaling_factors(losses)
                scaled = torch.autograd.grad((factors * losses).sum(), edges, allow_unused=True)
                _refuse_reordered_samples(layout, marks, grads, scaled, factors)
    _refuse_low_precision(marks, grads)
    _refuse_shared_outputs(layout.outputs, grads[len(grads) - len(output_tensors) :])
    with torch.no_grad():
        leaves = _leaves(model, inputs, layout, marks, output_tensors, grads, convert)
    ordered = {
        name: leaves[name] if name in leaves else Zero(size, p.shape, p.detach()) for name, p in trainable.items()
    }
    # the precision of the losses stands for that of the updates, so it must not be higher
    lowest = torch.float32 if any(p.dtype is torch.float32 for p in trainable.values()) else torch.float64
    return ordered, losses.detach().to(lowest)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, or raise a SettingError if one is not supported."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    _refuse_parameters(trainable)
    return trainable


def _leaves(
    model: nn.Module,
    inputs: Any,
    layout: Layout,
    marks: list[Mark],
    outputs: list[Tensor],
    grads: list[Tensor | None],
    convert: Callable[[Leaf], Leaf],
) -> dict[str, Leaf]:
    """Build the leaves by parameter name, one layer at a time; gradients are freed on the way."""
    parts: dict[str, list[Leaf]] = defaultdict(list)
    for mark in marks:
        mark_grads = [grads.pop(0) for _ in mark.edges]
        if all(grad is None for grad in mark_grads):
            continue
        mark.check_unchanged()
        for name, leaf in _build(mark, layout.batch[mark.key], mark_grads).items():
            parts[name].append(convert(leaf))
    if layout.uncovered:
        output_grads = [torch.zeros_like(out) if g is None else g for out, g in zip(outputs, grads, strict=True)]
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((inputs,), {})
        if isinstance(inputs, dict):
            arguments = ((), dict(inputs))
        elif isinstance(inputs, list | tuple):
            arguments = (tuple(inputs), {})
        names = {name: name for name in sorted(layout.uncovered)}
        dims = [0 if t.dim() else None for t in tensors(inputs)]
        for name, leaf in vmapped(
            model, "", names, arguments, dims, output_grads, layout.outputs, every_use=True
        ).items():
            parts[name].append(leaf)
    return {name: add(leaves) for name, leaves in parts.items()}


def _build(mark: Mark, dims: tuple[int | None, ...], grads: list[Tensor | None]) -> dict[str, Leaf]:
    if mark.build is None:
        assert mark.call is not None
        split = len(mark.inputs)
        like = _first(grads)
        output_grads = [
            torch.zeros(shape, dtype=like.dtype, device=like.device) if grad is None else grad
            for grad, shape in zip(grads, mark.shapes[split:], strict=True)
        ]
        return vmapped(
            mark.module,
            mark.key[0],
            mark.parameters,
            mark.call,
            dims[:split],
            output_grads,
            dims[split:],
            drift=mark.drift,
        )
    assert dims[0] is not None
    assert dims[1] is not None
    built = mark.build(mark.inputs[0].detach().movedim(dims[0], 0), _first(grads).movedim(dims[1], 0))
    return {mark.parameters[own]: leaf for own, leaf in built.items() if own in mark.parameters}


def _first(grads: list[Tensor | None]) -> Tensor:
    """Return the first gradient that exists."""
    return next(grad for grad in grads if grad is not None)


def _refuse_parameters(trainable: dict[str, nn.Parameter]) -> None:
    """Refuse low precision, whose rounding errors exceed what the clip bound allows for, and hooks on parameters."""
    for name, p in trainable.items():
        if p._backward_hooks:
            raise SettingError.with_message(
                f"parameter '{name}' has a backward hook, which per-sample updates do not run; remove the hook",
                name="model",
            )
        if p.dtype not in (torch.float32, torch.float64):
            raise SettingError.with_message(
                f"parameter '{name}' has dtype {p.dtype}; use float32 or float64", name="model"
            )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise SettingError.with_message(
            "autocast is enabled, but per-sample updates need float32 or float64; disable it for private training",
            name="autocast",
        )


def _follows_layout(model: nn.Module, layout: Layout, marks: list[Mark], outputs: list[Tensor], size: int) -> bool:
    """Return whether the batch took the path through the model from which its layout was worked out."""
    if not set(layout.batch) >= {mark.key for mark in marks} or len(outputs) != len(layout.outputs):
        return False
    sizes_match = all(
        dim is None or shape[dim] == size
        for mark in marks
        for dim, shape in zip(layout.batch[mark.key], mark.shapes, strict=True)
    )
    return sizes_match and uncovered_parameters(model, marks, outputs, layout.covered) <= layout.uncovered


def _refuse_opaque_outputs(outputs: Any) -> None:
    """Refuse outputs without visible tensors: the loss would seem to read the parameters directly."""
    if not tensors(outputs):
        raise SettingError.with_message(
            f"the model returns a {type(outputs).__name__}, in which no tensor can be found; return a tensor, a tuple "
            "or a dict, or register the type with torch.utils._pytree",
            name="model",
        )


def _scaling_factors(losses: Tensor) -> Tensor:
    """Return a power of two between 2^-7 and 1 for each sample, different from those of its neighbours.

    Scaling by a power of two is exact, so a row that depends on its own loss alone scales without any rounding,
    whatever the weights are: whoever chooses the weights cannot make the check depend on the values of a record.
    """
    golden = 0.6180339887498949
    positions = torch.arange(1, len(losses) + 1, dtype=torch.float64, device=losses.device)
    return torch.exp2(-(8 * (golden * positions).frac()).floor()).to(losses.dtype)


def _refuse_reordered_samples(
    layout: Layout, marks: list[Mark], grads: Sequence[Tensor | None], scaled: Sequence[Tensor | None], factors: Tensor
) -> None:
    """Refuse a model in which row i of a layer does not belong to the loss of sample i.

    When each loss is multiplied by a factor of its own, each row of a gradient must scale by the factor of its sample.
    Each sample is judged by its own gradients alone. A gradient that is negligible beside the longest one of its sample
    is not judged: its numbers may be too small for float32 to scale exactly.
    """
    rows: list[tuple[str, Tensor, Tensor]] = []
    scales = factors.double()
    position = 0
    for mark in marks:
        for dim in layout.batch[mark.key][len(mark.inputs) :]:
            grad, scaled_grad = grads[position], scaled[position]
            position += 1
            if grad is None or scaled_grad is None or dim is None:
                continue
            expected, actual = (g.movedim(dim, 0).reshape(g.shape[dim], -1).double() for g in (grad, scaled_grad))
            lengths = scales * torch.linalg.vector_norm(expected, dim=1)
            errors = torch.linalg.vector_norm(actual - scales[:, None] * expected, dim=1)
            rows.append((mark.key[0], lengths, errors))
    if not rows:
        return
    longest = torch.stack([lengths for _, lengths, _ in rows]).amax(0)  # (B,)
    for module, lengths, errors in rows:
        if bool((errors > 0.02 * lengths + NEGLIGIBLE * longest + UNDERFLOW).any()):
            raise SettingError.with_message(
                f"module '{module}' has the samples of a batch in another order than the losses, so updates cannot be "
                "attributed to samples; keep the order of the inputs in the model (sort records beforehand, or use "
                "padded instead of packed sequences)",
                name="model",
            )


def _refuse_low_precision(marks: list[Mark], grads: Sequence[Tensor | None]) -> None:
    """Refuse layers that compute in less precision than the parameters have: a model may enable autocast itself."""
    for mark, mark_grads in _by_mark(marks, grads):
        for tensor in (*mark.inputs, *mark_grads) if mark_grads else ():
            if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
                raise SettingError.with_message(
                    f"module '{mark.key[0]}' computes in {str(tensor.dtype).removeprefix('torch.')}, but per-sample "
                    "updates need float32 or float64; remove autocast and .half() from the model",
                    name="model",
                )


def _by_mark(marks: list[Mark], grads: Sequence[Tensor | None]) -> Iterator[tuple[Mark, list[Tensor]]]:
    """Yield each mark with those of its output gradients that exist."""
    position = 0
    for mark in marks:
        yield mark, [grad for grad in grads[position : position + len(mark.edges)] if grad is not None]
        position += len(mark.edges)


def _refuse_shared_outputs(dims: tuple[int | None, ...], grads: list[Tensor | None]) -> None:
    """Refuse a loss that uses an output without a batch dimension: it cannot be divided among the samples."""
    if any(dim is None and grad is not None for dim, grad in zip(dims, grads, strict=True)):
        raise SettingError.with_message(
            "the loss uses an output of the model without a batch dimension, such as a penalty; "
            "return one value per sample instead, or use the optimizer's weight_decay",
            name="loss",
        )


def _refuse_parameters_in_loss(losses: Tensor, outputs: list[Tensor], trainable: dict[str, nn.Parameter]) -> None:
    """Refuse a loss that uses parameters other than through the outputs of the model."""
    if not losses.requires_grad:
        return
    names = {p: name for name, p in trainable.items()}
    direct = parameters_used([node(losses)], names, ends=[node(out) for out in outputs])
    if direct:
        raise SettingError.with_message(
            f"the loss uses parameters {sorted(direct)} directly; compute that term in the model and return it, "
            "or use the optimizer's weight_decay",
            name="loss",
        )
