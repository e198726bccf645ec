"""Where the batch is: found by running the model on two and on three samples.

A dimension that follows the number of samples is the batch; guessing it from one run would take the
positions of a sequence for samples whenever there happen to be as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.updates.forward import fitting
from gnomon.updates.graph import node, parameters_used
from gnomon.updates.recorder import Key, Mark, Recorder, aliased
from gnomon.updates.snapshot import untouched
from gnomon.updates.trees import call, differentiable, tensors


@dataclass(frozen=True)
class Layout:
    """For one model and one shape of inputs."""

    batch: dict[Key, tuple[int | None, ...]]
    """The batch dimension of each mark's inputs and outputs; None where a tensor has none."""
    covered: dict[Key, frozenset[str]]
    """The parameters whose update each mark builds."""
    outside: frozenset[str]
    """Parameters with a use that no mark covers; they are differentiated through the whole model."""
    outputs: tuple[int | None, ...]
    """The batch dimension of the model's differentiable outputs."""


_known: WeakKeyDictionary[nn.Module, dict[Any, Layout]] = WeakKeyDictionary()


def layout(model: nn.Module, inputs: Any) -> Layout:
    """The layout, worked out once for each model and shape of inputs."""
    flat = tensors(inputs)
    trainable = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    settings = tuple(repr(leaf) for leaf in pytree.tree_leaves(inputs) if not isinstance(leaf, Tensor))
    key = (tuple((t.shape[1:], t.dtype) for t in flat), settings, model.training, trainable)
    known = _known.setdefault(model, {})
    if key not in known:
        known[key] = _probe(model, inputs)
    return known[key]


def forget(model: nn.Module) -> None:
    """Drops what is known of a model whose structure has changed."""
    _known.pop(model, None)


def _probe(model: nn.Module, inputs: Any) -> Layout:
    with untouched(model), torch.enable_grad():
        two, outputs = _run(model, inputs, 2)
        three, outputs_of_three = _run(model, inputs, 3)
    if [mark.key for mark in two] != [mark.key for mark in three]:
        raise ValueError("the model takes another path for two samples than for three: samples must not interact")
    batch: dict[Key, tuple[int | None, ...]] = {}
    covered: dict[Key, frozenset[str]] = {}
    unclear: set[str] = set()
    for a, b in zip(two, three, strict=True):
        batch[a.key] = tuple(map(_batch_dimension, a.shapes, b.shapes))
        usable = _usable(a, batch[a.key])
        covered[a.key] = _covered(a, batch[a.key]) if usable else frozenset()
        if not usable:
            unclear.update(a.parameters.values())
    unclear |= used_outside(model, two, outputs, covered)
    dims = tuple(_batch_dimension(x.shape, y.shape) for x, y in zip(outputs, outputs_of_three, strict=True))
    return Layout(batch, covered, frozenset(unclear), dims)


def _run(model: nn.Module, inputs: Any, size: int) -> tuple[list[Mark], list[Tensor]]:
    def repeat(x: Tensor) -> Tensor:
        return x if x.dim() == 0 else x[torch.arange(size, device=x.device) % len(x)]

    some = pytree.tree_map_only(Tensor, repeat, inputs)
    with Recorder(model) as recorder, fitting(model, some):
        outputs = aliased(call(model, some))
    return recorder.marks, differentiable(outputs)


def _batch_dimension(two: torch.Size, three: torch.Size) -> int | None:
    """The one dimension that grew from 2 to 3; None if there is no such single dimension."""
    changed = [d for d, (a, b) in enumerate(zip(two, three, strict=False)) if a != b]
    if len(two) != len(three) or len(changed) != 1:
        return None
    return changed[0] if (two[changed[0]], three[changed[0]]) == (2, 3) else None


def _usable(mark: Mark, dims: tuple[int | None, ...]) -> bool:
    """Whether the mark's own inputs and gradients tell the samples apart."""
    if mark.build is None:
        if mark.hooked:  # running the module again would run the hooks again
            return False
        outputs = dims[len(mark.inputs) :]
        return bool(outputs) and None not in outputs and any(d is not None for d in dims[: len(mark.inputs)])
    if dims[0] is None or len(set(dims)) != 1:
        return False
    last = len(mark.shapes[1]) - 1
    return dims[0] == 0 or (mark.batch_anywhere and dims[0] < last)


def _covered(mark: Mark, dims: tuple[int | None, ...]) -> frozenset[str]:
    """Names of the parameters whose update the mark can build."""
    if mark.build is None:
        return frozenset(mark.parameters.values())
    assert dims[0] is not None
    with torch.no_grad():
        x = mark.inputs[0].detach().movedim(dims[0], 0)
        grad = torch.zeros(mark.shapes[1], dtype=next(mark.module.parameters()).dtype, device=x.device)
        built = mark.build(x, grad.movedim(dims[0], 0))
    return frozenset(name for own, name in mark.parameters.items() if own in built)


def used_outside(
    model: nn.Module, marks: list[Mark], outputs: list[Tensor], covered: dict[Key, frozenset[str]]
) -> set[str]:
    """Names of parameters that the graph uses anywhere but inside the marks that cover them."""
    names = {p: name for name, p in model.named_parameters()}
    jumps = {edge.node: mark.inputs for mark in marks for edge in mark.edges}
    found = parameters_used([node(out) for out in outputs], names, jumps=jumps)
    for mark in marks:  # a mark may hold other modules, or a weight made from other parameters
        starts = [n for edge in mark.edges for n, _ in edge.node.next_functions if n is not None]
        ends = [node(x) for x in mark.inputs if x.requires_grad]
        found |= parameters_used(starts, names, ends, jumps) - covered[mark.key]
    return found
