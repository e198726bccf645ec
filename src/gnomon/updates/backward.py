"""One forward and one backward pass over a batch, and the per-sample gradients that are built from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gnomon.errors import SettingError
from gnomon.losses import Loss, check_per_sample, per_sample
from gnomon.updates.assembly import Parts, add_expanded, build, summed
from gnomon.updates.expansion import Key
from gnomon.updates.fallback import vmapped
from gnomon.updates.graph import make_gradients_contiguous, may_reorder, node, parameters_used
from gnomon.updates.layout import Layout, uncovered_parameters
from gnomon.updates.layouts import Layouts
from gnomon.updates.leaves import Leaf, Zero
from gnomon.updates.recorder import DriftedModel, Mark, Memo, NeedsCopies, PathChanged, Receive, Recorder, aliased
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
    views: int = 1,
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
        views: the number of consecutive samples that are views of one record. Leaves are merged as soon as they are
            built, and then converted; losses are those of the samples.
    """
    trainable = trainable_parameters(model)
    if size == 0:
        return no_samples(model, trainable)
    layout = layouts.of(model, inputs)
    if layout.uncovered and drift is not None:
        raise NeedsCopies(", ".join(sorted(layout.uncovered)))
    drifted = None if drift is None else DriftedModel(drift, layout.batch, {} if memo is None else memo)
    collector = Collector(layout, convert, views=views)
    forward = ForwardPass(model, loss, inputs, targets, size, layouts, collector, drifted)
    leaves = collector.leaves(forward, forward.differentiate(collector))
    return for_all(trainable, leaves, size // views), lowest_precision(forward.losses, trainable)


def for_all(trainable: Mapping[str, nn.Parameter], leaves: Mapping[str, Leaf], size: int) -> dict[str, Leaf]:
    """Return the leaves in the order of the parameters, with zero for parameters that the forward pass did not use."""
    return {name: leaves[name] if name in leaves else Zero(size, p.shape, p.detach()) for name, p in trainable.items()}


def no_samples(model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> tuple[dict[str, Leaf], Tensor]:
    """Return the leaves and losses of an empty batch."""
    empty: dict[str, Leaf] = {name: Zero(0, p.shape, p.detach()) for name, p in trainable.items()}
    return empty, next(model.parameters(), torch.zeros(0)).detach().new_zeros(0)


def lowest_precision(losses: Tensor, trainable: Mapping[str, nn.Parameter]) -> Tensor:
    """Return the losses, detached; their precision stands for that of the updates, so it must not be higher."""
    lowest = torch.float32 if any(p.dtype is torch.float32 for p in trainable.values()) else torch.float64
    return losses.detach().to(lowest)


class ForwardPass:
    """A recorded forward pass on a batch, which can be differentiated.

    Args:
        model: the model.
        loss: maps (outputs, targets) to one loss per sample.
        inputs: the inputs of the model.
        targets: passed to the loss.
        size: the number of samples.
        layouts: the cache of model layouts.
        receive: called for every mark of a module with a rule while the pass is differentiated.
        drifted: each sample's own parameters, in local steps.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Any,
        targets: Any,
        size: int,
        layouts: Layouts,
        receive: Receive,
        drifted: DriftedModel | None = None,
    ) -> None:
        self.model, self.inputs, self.size = model, inputs, size
        self.layout = layout = layouts.of(model, inputs)
        self.recorder = Recorder(model, layout.uncovered, drifted, layout.expansions, size, receive)
        with torch.enable_grad(), self.recorder:
            outputs = aliased(call(model, inputs))
        self.outputs = differentiable(outputs)
        """The differentiable outputs of the model."""
        follows = _follows_layout(model, layout, self.recorder.marks, self.outputs, size)
        self.recorder.release_graph()
        _refuse_opaque_outputs(outputs)
        if not follows:
            layouts.forget(model)
            raise PathChanged
        with torch.enable_grad():
            self.losses = check_per_sample(per_sample(loss)(outputs, targets), size)
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        _refuse_parameters_in_loss(self.losses, self.outputs, trainable)
        self.captured = [mark for mark in self.recorder.marks if mark.build is None]
        """The marks whose gradients are captured, because vmap needs them all at the same time."""

    def differentiate(self, collector: Collector, retain_graph: bool = False) -> list[Tensor | None]:
        """Compute the gradients of the sum of losses.

        Args:
            collector: receives the gradients of modules with rules.
            retain_graph: whether the pass will be differentiated again.

        Returns:
            The gradients of captured marks, of expanded parameters, and of the outputs of the model.
        """
        edges = [edge for mark in self.captured for edge in mark.edges]
        edges += [get_gradient_edge(part.value) for part in self.recorder.expanded]
        edges += [get_gradient_edge(out) for out in self.outputs]
        grads: list[Tensor | None] = [None] * len(edges)
        if self.losses.requires_grad and edges:
            make_gradients_contiguous([node(self.losses)])
            collector.watch_order = self.size > 1 and may_reorder(map(node, self.outputs))
            retain = retain_graph or collector.watch_order
            grads = self.gradients_at(edges, torch.ones_like(self.losses), retain)
            if collector.watch_order:
                factors = _scaling_factors(self.losses)
                second = Collector(self.layout, watch_order=True, builds=False)
                collector.successor = second
                scaled = self.gradients_at(edges, factors, retain_graph)
                collector.successor = None
                _refuse_reordered_samples(self, collector.lengths, second.lengths, grads, scaled, factors)
        for mark, mark_grads in self.by_captured_mark(grads):
            _refuse_low_precision(mark, (*mark.inputs, *mark_grads) if mark_grads else ())
        _refuse_shared_outputs(self.layout.outputs, grads[len(grads) - len(self.outputs) :])
        return grads

    def gradients_at(
        self, edges: list[GradientEdge], weights: Tensor, retain_graph: bool = False
    ) -> list[Tensor | None]:
        """Return the gradients of a weighted sum of the losses at the edges; all marks receive theirs on the way."""
        wanted = [get_gradient_edge(self.recorder.trigger), *edges]
        replaying = self.recorder.replaying() if self.layout.checkpointed else nullcontext()
        with torch.enable_grad():
            total = (weights * self.losses).sum()
        with replaying:
            grads = torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=retain_graph)
        return [*grads[1:]]

    def by_captured_mark(self, grads: Sequence[Tensor | None]) -> Iterator[tuple[Mark, list[Tensor]]]:
        """Yield each captured mark with those of its output gradients that exist."""
        position = 0
        for mark in self.captured:
            yield mark, [grad for grad in grads[position : position + len(mark.edges)] if grad is not None]
            position += len(mark.edges)


class Collector:
    """Builds leaves from gradients as they arrive in a backward pass, so that nothing is kept longer than needed.

    Args:
        layout: the layout of the model.
        convert: may change the form of a leaf as soon as it is built.
        watch_order: whether to note the lengths of the gradients of each sample.
        builds: whether to build leaves.
        views: the number of consecutive samples that are views of one record.
    """

    def __init__(
        self,
        layout: Layout,
        convert: Callable[[Leaf], Leaf] = lambda leaf: leaf,
        watch_order: bool = False,
        builds: bool = True,
        views: int = 1,
    ) -> None:
        self.layout, self.convert, self.watch_order, self.builds = layout, convert, watch_order, builds
        self.views = views
        self.parts: Parts = defaultdict(list)
        self.lengths: dict[Key, Tensor] = {}
        """The length of each sample's gradient at each mark."""
        self.successor: Collector | None = None
        """A collector that receives the gradients instead of this one."""
        self._order = {key: number for number, key in enumerate(layout.batch)}

    @torch.no_grad()
    def __call__(self, mark: Mark, x: Tensor, grad: Tensor) -> None:
        if self.successor is not None:
            self.successor(mark, x, grad)
            return
        _refuse_low_precision(mark, (x, grad))
        dims = self.layout.batch[mark.key]
        if self.watch_order and dims[1] is not None:
            self.lengths[mark.key] = _row_lengths(grad, dims[1])
        if self.builds:
            for name, leaf in build(mark, [x], dims, [grad]).items():
                self.add(name, self._order[mark.key], self._merged(leaf))

    def add(self, name: str, number: int, leaf: Leaf) -> None:
        """Take the leaf of one use of a parameter, one update for each record."""
        self.parts[name].append((number, self.convert(leaf)))

    def _merged(self, leaf: Leaf) -> Leaf:
        return leaf if self.views == 1 else leaf.merged(self.views)

    @torch.no_grad()
    def leaves(self, forward: ForwardPass, grads: list[Tensor | None]) -> dict[str, Leaf]:
        """Return the leaves by parameter name, including those of modules without a rule.

        Args:
            forward: the forward pass.
            grads: the gradients that its differentiation returned.
        """
        for mark in forward.captured:
            mark_grads = [grads.pop(0) for _ in mark.edges]
            if any(grad is not None for grad in mark_grads):
                mark.check_unchanged()
                for name, leaf in build(mark, mark.inputs, self.layout.batch[mark.key], mark_grads).items():
                    self.add(name, self._order[mark.key], self._merged(leaf))
        expanded: Parts = defaultdict(list)
        add_expanded(expanded, forward.recorder, grads)
        for name, parts in expanded.items():
            self.parts[name].extend((number, self._merged(leaf)) for number, leaf in parts)
        if self.layout.uncovered:
            for name, leaf in _uncovered_leaves(forward, grads).items():
                self.parts[name].append((len(self._order), self._merged(leaf)))
        return summed(self.parts)


def _uncovered_leaves(forward: ForwardPass, grads: Sequence[Tensor | None]) -> dict[str, Leaf]:
    """Build the leaves of parameters that no mark covers, by running the whole model under vmap."""
    inputs, layout = forward.inputs, forward.layout
    output_grads = [torch.zeros_like(out) if g is None else g for out, g in zip(forward.outputs, grads, strict=True)]
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((inputs,), {})
    if isinstance(inputs, dict):
        arguments = ((), dict(inputs))
    elif isinstance(inputs, list | tuple):
        arguments = (tuple(inputs), {})
    names = {name: name for name in sorted(layout.uncovered)}
    dims = [0 if t.dim() else None for t in tensors(inputs)]
    return vmapped(forward.model, "", names, arguments, dims, output_grads, layout.outputs, every_use=True)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, or raise a SettingError if one is not supported."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    _refuse_parameters(trainable)
    return trainable


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


def _row_lengths(grad: Tensor, dim: int) -> Tensor:
    """Return the length of the gradient of each sample in float64, (B,)."""
    return torch.linalg.vector_norm(grad.movedim(dim, 0).flatten(1), dim=1, dtype=torch.float64)


def _refuse_reordered_samples(
    forward: ForwardPass,
    lengths: Mapping[Key, Tensor],
    scaled_lengths: Mapping[Key, Tensor],
    grads: Sequence[Tensor | None],
    scaled_grads: Sequence[Tensor | None],
    factors: Tensor,
) -> None:
    """Refuse a model in which row i of a layer does not belong to the loss of sample i.

    When each loss is multiplied by a factor of its own, the length of each row of a gradient must scale by the factor
    of its sample. Each sample is judged by its own gradients alone. A gradient that is negligible beside the longest
    one of its sample is not judged: its numbers may be too small for float32 to scale exactly.
    """
    places: list[tuple[str, int | None]] = [
        (mark.key[0], dim) for mark in forward.captured for dim in forward.layout.batch[mark.key][len(mark.inputs) :]
    ]
    places += [(part.name.rpartition(".")[0], 0) for part in forward.recorder.expanded]
    rows = [(key[0], lengths[key], scaled_lengths[key]) for key in lengths]
    for (module, dim), grad, scaled in zip(places, grads, scaled_grads, strict=False):  # outputs follow the places
        if grad is not None and scaled is not None and dim is not None:
            rows.append((module, _row_lengths(grad, dim), _row_lengths(scaled, dim)))
    if not rows:
        return
    scales = factors.double()
    longest = torch.stack([scales * length for _, length, _ in rows]).amax(0)  # (B,)
    for module, length, scaled in rows:
        errors = (scaled - scales * length).abs()
        if bool((errors > 0.02 * scales * length + NEGLIGIBLE * longest + UNDERFLOW).any()):
            raise SettingError.with_message(
                f"module '{module}' has the samples of a batch in another order than the losses, so updates cannot be "
                "attributed to samples; keep the order of the inputs in the model (sort records beforehand, or use "
                "padded instead of packed sequences)",
                name="model",
            )


def _refuse_low_precision(mark: Mark, values: Sequence[Tensor]) -> None:
    """Refuse a layer that computes in less precision than the parameters have: a model may enable autocast itself."""
    for tensor in values:
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            raise SettingError.with_message(
                f"module '{mark.key[0]}' computes in {str(tensor.dtype).removeprefix('torch.')}, but per-sample "
                "updates need float32 or float64; remove autocast and .half() from the model",
                name="model",
            )


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
