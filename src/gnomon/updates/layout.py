"""The layout of a model: which dimension of each tensor is the batch, and which module covers which parameter.

The layout is found by running the model on two and on three samples: the batch is the dimension that follows the number
of samples. A single run could mistake the positions of a sequence for samples if there are as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.errors import SettingError
from gnomon.updates.expansion import Expansions, Key
from gnomon.updates.graph import node, parameters_used
from gnomon.updates.recorder import Mark, Recorder, aliased
from gnomon.updates.trees import call, differentiable, explained_forward


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
    expansions: Expansions = field(default_factory=Expansions)
    """The values without a batch dimension that are expanded along the batch."""
    checkpointed: bool = False
    """Whether activations are recomputed in the backward pass (`torch.utils.checkpoint`)."""
    draws: bool = False
    """Whether a model under activation checkpointing draws random numbers; not determined for other models."""


def uncovered_parameters(
    model: nn.Module, marks: list[Mark], outputs: list[Tensor], covered: Mapping[Key, frozenset[str]]
) -> set[str]:
    """Return the names of parameters that the graph uses anywhere but inside the marks that cover them."""
    names = {p: name for name, p in model.named_parameters()}
    jumps = {edge.node: mark.input_nodes for mark in marks for edge in mark.edges}
    uncovered = parameters_used([node(out) for out in outputs], names, jumps=jumps)
    for mark in marks:  # a mark may contain other modules, or a weight computed from other parameters
        starts = [n for edge in mark.edges for n, _ in edge.node.next_functions if n is not None]
        uncovered |= parameters_used(starts, names, mark.input_nodes, jumps) - covered[mark.key]
    return uncovered


@dataclass(frozen=True)
class SampleRun:
    """A recorded forward pass on a few samples."""

    recorder: Recorder
    outputs: list[Tensor]
    """The differentiable outputs of the model."""


def run_samples(
    model: nn.Module,
    inputs: Any,
    size: int,
    expansions: Expansions | None = None,
    skip: frozenset[str] = frozenset(),
) -> SampleRun:
    """Run the model on `size` samples, which are repeated if the batch has fewer, without marks of some parameters."""

    def resized(x: Tensor) -> Tensor:
        return x if x.dim() == 0 else x[torch.arange(size, device=x.device) % len(x)]

    samples = pytree.tree_map_only(Tensor, resized, inputs)
    with Recorder(model, skip, None, expansions, size) as recorder, explained_forward(model, samples):
        outputs = aliased(call(model, samples))
    return SampleRun(recorder, differentiable(outputs))


def compared(model: nn.Module, two_samples: SampleRun, three_samples: SampleRun) -> Layout:
    """Return the layout that follows from a forward pass on two samples and one on three."""
    marks = two_samples.recorder.marks
    if [mark.key for mark in marks] != [mark.key for mark in three_samples.recorder.marks]:
        raise SettingError.with_message(
            "the model takes another path through its modules for two samples than for three; "
            "make the path independent of the batch size",
            name="model",
        )
    batch: dict[Key, tuple[int | None, ...]] = {}
    covered: dict[Key, frozenset[str]] = {}
    uncovered: set[str] = set()
    for two, three in zip(marks, three_samples.recorder.marks, strict=True):
        batch[two.key] = tuple(map(batch_dimension, two.shapes, three.shapes))
        separable = _is_separable(two, batch[two.key])
        covered[two.key] = _covered(two, batch[two.key]) if separable else frozenset()
        if not separable:
            uncovered.update(two.parameters.values())
    uncovered |= uncovered_parameters(model, marks, two_samples.outputs, covered)
    outputs = zip(two_samples.outputs, three_samples.outputs, strict=True)
    dims = tuple(batch_dimension(x.shape, y.shape) for x, y in outputs)
    recorder = two_samples.recorder
    return Layout(batch, covered, frozenset(uncovered), dims, recorder.expansions, recorder.checkpointed)


def batch_dimension(two: torch.Size, three: torch.Size) -> int | None:
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
