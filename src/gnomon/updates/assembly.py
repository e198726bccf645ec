"""The assembly of leaves from the marks of a forward pass and the gradients that reached them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter

import torch
from torch import Tensor

from gnomon.updates.expansion import Key
from gnomon.updates.fallback import vmapped
from gnomon.updates.leaves import Dense, Leaf, add
from gnomon.updates.recorder import Mark, Recorder

Parts = defaultdict[str, list[tuple[int, Leaf]]]
"""The leaves of each use of a parameter, with the number of the mark, by parameter name."""


def assembled(
    recorder: Recorder, batch: Mapping[Key, tuple[int | None, ...]], grads: list[Tensor | None]
) -> dict[str, Leaf]:
    """Build the leaf of each parameter from the gradients at the edges of all marks, then at expanded parameters.

    The gradients are removed from the list; gradients behind them stay.
    """
    parts: Parts = defaultdict(list)
    for number, mark in enumerate(recorder.marks):
        mark_grads = [grads.pop(0) for _ in mark.edges]
        if any(grad is not None for grad in mark_grads):
            mark.check_unchanged()
            for name, leaf in build(mark, mark.inputs, batch[mark.key], mark_grads).items():
                parts[name].append((number, leaf))
    add_expanded(parts, recorder, grads)
    return summed(parts)


def add_expanded(parts: Parts, recorder: Recorder, grads: list[Tensor | None]) -> None:
    """Add the leaves of expanded parameters, whose gradients are removed from the list."""
    for part in recorder.expanded:
        grad = grads.pop(0)
        if grad is not None:
            parts[part.name].append((len(recorder.marks), Dense(part.per_sample(grad))))


def summed(parts: Parts) -> dict[str, Leaf]:
    """Return the sum of the leaves of each parameter, in the order of the forward pass."""
    return {name: add([leaf for _, leaf in sorted(leaves, key=itemgetter(0))]) for name, leaves in parts.items()}


def build(
    mark: Mark, inputs: Sequence[Tensor], dims: tuple[int | None, ...], grads: Sequence[Tensor | None]
) -> dict[str, Leaf]:
    """Build the leaves of one mark, by parameter name in the model."""
    if mark.build is None:
        assert mark.call is not None
        split = len(inputs)
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
    built = mark.build(inputs[0].detach().movedim(dims[0], 0), _first(grads).movedim(dims[1], 0))
    return {mark.parameters[own]: leaf for own, leaf in built.items() if own in mark.parameters}


def _first(grads: Sequence[Tensor | None]) -> Tensor:
    """Return the first gradient that exists."""
    return next(grad for grad in grads if grad is not None)
