"""The layout of a model: which dimension of each tensor is the batch, and which module covers which parameter.

The layout is found by running the model on two and on three samples: the batch is the dimension that follows the number
of samples. A single run could mistake the positions of a sequence for samples if there are as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.errors import SettingError
from gnomon.updates.graph import node, parameters_used
from gnomon.updates.recorder import Key, Mark, Recorder, aliased
from gnomon.updates.snapshot import untouched
from gnomon.updates.trees import call, differentiable, explained_forward, tensors


@dataclass(frozen=True)
class Layout:
    """The layout of one model for one shape of inputs."""

    batch: Mapping[Key, tuple[int | None, ...]]
    """The batch dimensions of the inputs and outputs of each mark; None for a tensor without one."""
    covered: Mapping[Key, frozenset[str]]
    """The parameters whose updates each mark builds."""
    uncovered: frozenset[str]
    """Parameters with a use that no mark covers; they are differentiated through the whole model."""
    outputs: tuple[int | None, ...]
    """The batch dimensions of the model's differentiable outputs."""


class Layouts:
    """A cache of model layouts, for a caller that computes updates of the same model repeatedly.

    A layout depends on the structure of the model and on the shapes and types of its inputs, and contains no value of a
    record or a weight. Models are referenced weakly.

    >>> model, layouts = nn.Linear(2, 1), Layouts()
    >>> layouts.of(model, torch.zeros(4, 2)) is layouts.of(model, torch.zeros(7, 2))
    True
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, dict[Any, Layout]] = WeakKeyDictionary()

    def of(self, model: nn.Module, inputs: Any) -> Layout:
        """Return the layout of a model, which is worked out once for each shape of inputs."""
        trainable = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        options = tuple(repr(leaf) for leaf in pytree.tree_leaves(inputs) if not isinstance(leaf, Tensor))
        shapes = tuple((t.shape[1:], t.dtype) for t in tensors(inputs))
        key = (shapes, options, model.training, trainable)
        known = self._known.setdefault(model, {})
        if key not in known:
            known[key] = _probe(model, inputs)
        return known[key]

    def forget(self, model: nn.Module) -> None:
        """Drop the layouts of a model whose structure has changed."""
        self._known.pop(model, None)


def uncovered_parameters(
    model: nn.Module, marks: list[Mark], outputs: list[Tensor], covered: Mapping[Key, frozenset[str]]
) -> set[str]:
    """Return the names of parameters that the graph uses anywhere but inside the marks that cover them."""
    names = {p: name for name, p in model.named_parameters()}
    jumps = {edge.node: mark.inputs for mark in marks for edge in mark.edges}
    uncovered = parameters_used([node(out) for out in outputs], names, jumps=jumps)
    for mark in marks:  # a mark may contain other modules, or a weight computed from other parameters
        starts = [n for edge in mark.edges for n, _ in edge.node.next_functions if n is not None]
        ends = [node(x) for x in mark.inputs if x.requires_grad]
        uncovered |= parameters_used(starts, names, ends, jumps) - covered[mark.key]
    return uncovered


def _probe(model: nn.Module, inputs: Any) -> Layout:
    """Work out a layout by comparing a forward pass on two samples with one on three."""
    with untouched(model), torch.enable_grad():
        marks_of_two, outputs_of_two = _run(model, inputs, 2)
        marks_of_three, outputs_of_three = _run(model, inputs, 3)
    if [mark.key for mark in marks_of_two] != [mark.key for mark in marks_of_three]:
        raise SettingError.with_message(
            "the model takes another path through its modules for two samples than for three; "
            "make the path independent of the batch size",
            name="model",
        )
    batch: dict[Key, tuple[int | None, ...]] = {}
    covered: dict[Key, frozenset[str]] = {}
    uncovered: set[str] = set()
    for two, three in zip(marks_of_two, marks_of_three, strict=True):
        batch[two.key] = tuple(map(_batch_dimension, two.shapes, three.shapes))
        separable = _is_separable(two, batch[two.key])
        covered[two.key] = _covered(two, batch[two.key]) if separable else frozenset()
        if not separable:
            uncovered.update(two.parameters.values())
    uncovered |= uncovered_parameters(model, marks_of_two, outputs_of_two, covered)
    dims = tuple(_batch_dimension(x.shape, y.shape) for x, y in zip(outputs_of_two, outputs_of_three, strict=True))
    return Layout(batch, covered, frozenset(uncovered), dims)


def _run(model: nn.Module, inputs: Any, size: int) -> tuple[list[Mark], list[Tensor]]:
    """Run the model on `size` samples, which are repeated if the batch has fewer."""

    def resized(x: Tensor) -> Tensor:
        return x if x.dim() == 0 else x[torch.arange(size, device=x.device) % len(x)]

    samples = pytree.tree_map_only(Tensor, resized, inputs)
    with Recorder(model) as recorder, explained_forward(model, samples):
        outputs = aliased(call(model, samples))
    return recorder.marks, differentiable(outputs)


def _batch_dimension(two: torch.Size, three: torch.Size) -> int | None:
    """Return the one dimension that grew from 2 to 3; None if there is no such single dimension."""
    changed = [d for d, (a, b) in enumerate(zip(two, three, strict=False)) if a != b]
    if len(two) != len(three) or len(changed) != 1:
        return None
    return changed[0] if (two[changed[0]], three[changed[0]]) == (2, 3) else None


def _is_separable(mark: Mark, dims: tuple[int | None, ...]) -> bool:
    """Return whether the inputs and output gradients of a mark can be separated by sample."""
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
    """Return the names of the parameters whose updates a mark can build."""
    if mark.build is None:
        return frozenset(mark.parameters.values())
    assert dims[0] is not None
    with torch.no_grad():
        x = mark.inputs[0].detach().movedim(dims[0], 0)
        grad = torch.zeros(mark.shapes[1], dtype=next(mark.module.parameters()).dtype, device=x.device)
        built = mark.build(x, grad.movedim(dims[0], 0))
    return frozenset(name for own, name in mark.parameters.items() if own in built)
