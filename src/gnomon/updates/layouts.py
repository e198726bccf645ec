"""How the layout of a model is found, and the cache in which it is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.updates.layout import Layout, compared, run_samples
from gnomon.updates.random_ops import RepeatableRandomness
from gnomon.updates.rules import find_rule
from gnomon.updates.snapshot import untouched
from gnomon.updates.trees import tensors
from gnomon.updates.trial import find_expansions


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
            known[key] = find_layout(model, inputs)
        return known[key]

    def forget(self, model: nn.Module) -> None:
        """Drop the layouts of a model whose structure has changed."""
        self._known.pop(model, None)


def find_layout(model: nn.Module, inputs: Any) -> Layout:
    """Find the layout of a model for inputs of this shape, on two and on three of the samples.

    Values without a batch dimension are expanded along the batch where a trial shows that this is right. Only the
    parameters that are left need vmap.

    >>> find_layout(nn.Linear(2, 1), torch.zeros(4, 2)).batch
    {('', 0): (0, 0)}
    """
    with untouched(model), torch.enable_grad():
        layout = compared(model, run_samples(model, inputs, 2), run_samples(model, inputs, 3))
        if layout.uncovered or _uses_vmap(layout, model):
            expansions = find_expansions(model, inputs, layout.outputs)
            if expansions:
                layout = compared(model, *(run_samples(model, inputs, size, expansions) for size in (2, 3)))
        if layout.checkpointed:
            with RepeatableRandomness(model).repeated() as random_ops:
                run_samples(model, inputs, 2, layout.expansions)
            layout = replace(layout, draws=random_ops.drew)
    return layout


def _uses_vmap(layout: Layout, model: nn.Module) -> bool:
    """Return whether a module without a rule has parameters of its own, which vmap would have to differentiate."""
    modules = dict(model.named_modules())
    return any(find_rule(modules[name]) is None for name, _ in layout.batch)
