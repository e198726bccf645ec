"""Updates of a model under activation checkpointing: norms from one backward pass, sums from a second one.

Checkpointing recomputes activations in the backward pass in order to save memory, which leaves that keep the inputs of
every layer would undo. Here the first backward pass measures each layer's per-sample gradients and drops them. The
weighted sum of the updates is the gradient of the weighted sum of the losses, so a second backward pass, to the
parameters, computes it. Peak memory then follows that of plain SGD with the same checkpoints.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gnomon.losses import Loss
from gnomon.updates.backward import Collector, ForwardPass, for_all, lowest_precision, trainable_parameters
from gnomon.updates.exact import exact_products
from gnomon.updates.layout import Layout
from gnomon.updates.layouts import Layouts
from gnomon.updates.leaves import Leaf
from gnomon.updates.leaves.leaf import HUGE
from gnomon.updates.updates import Updates, mean_of_views

LEAST_WEIGHT = 1e-20
"""The smallest weight with which a loss is differentiated; below it float32 could lose gradients to underflow."""


def supports_two_passes(layout: Layout) -> bool:
    """Return whether a model uses activation checkpointing, and every parameter has a rule or is expanded.

    A model that draws random numbers, such as dropout masks, is excluded: a checkpoint may draw others each time it is
    recomputed, and norms and sums of different masks would break the clip bound.
    """
    covered = not layout.uncovered and None not in {d for dims in layout.batch.values() for d in dims}
    return layout.checkpointed and not layout.draws and covered


class TwoPassUpdates(Updates):
    """Per-sample gradients of which only norms are kept; sums are computed by differentiating weighted losses.

    Operations that need the gradients themselves (`gram`, `dense`, `select`, sums with a weight for each parameter)
    compute them once, in full, from the same forward pass.

    Args:
        model: the model.
        loss: maps (outputs, targets) to one loss per sample.
        inputs: the inputs of the model.
        targets: passed to the loss.
        size: the number of samples.
        layouts: the cache of model layouts.
        views: the number of consecutive samples that are views of one record.

    >>> from torch.utils.checkpoint import checkpoint
    >>> class Model(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return checkpoint(self.layer, x, use_reentrant=False)
    >>> from gnomon.updates import gradients
    >>> updates = gradients(Model(), lambda outputs, targets: outputs.sum(1), torch.ones(3, 2), None)
    >>> type(updates).__name__, updates.norms().round(decimals=3)
    ('TwoPassUpdates', tensor([2.4490, 2.4490, 2.4490], dtype=torch.float64))
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Any,
        targets: Any,
        size: int,
        layouts: Layouts,
        views: int = 1,
    ) -> None:
        self._parameters = trainable_parameters(model)
        self._views = views
        self._collector = _Measuring(layouts.of(model, inputs), views)
        self._forward = ForwardPass(model, loss, inputs, targets, size, layouts, self._collector)
        rest = self._collector.leaves(self._forward, self._forward.differentiate(self._collector, retain_graph=True))
        self._measured = self._collector.measured | {name: _measure(leaf) for name, leaf in rest.items()}
        self.losses = mean_of_views(lowest_precision(self._forward.losses, self._parameters), views)

    @cached_property
    def _full(self) -> dict[str, Leaf]:
        collector = Collector(self._forward.layout, views=self._views)
        self._collector.successor = collector
        leaves = collector.leaves(self._forward, self._forward.differentiate(collector, retain_graph=True))
        return for_all(self._parameters, leaves, len(self))

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The leaves by parameter name, computed when they are first needed."""
        return self._full

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parameters)

    def norms_by_parameter(self) -> Tensor:
        return self._columns("square").sqrt()

    def ceilings_by_parameter(self) -> Tensor:
        return self._columns("ceiling").sqrt()

    def _columns(self, which: str) -> Tensor:
        """Return square norms or ceilings, (B, number of parameters)."""
        zero = self.losses.new_zeros(len(self), dtype=torch.float64)
        return torch.stack([getattr(self._measured.get(name), which, zero) for name in self._parameters], 1)

    @exact_products()
    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        usable, given = weights.dim() == 1 and len(weights) == len(self), weights
        if not usable or "_full" in vars(self) or not self._forward.losses.requires_grad:
            return super().weighted_sum(weights)
        if self._views > 1:
            weights = weights.repeat_interleave(self._views) / self._views
        used = weights[weights != 0].abs()
        largest = max((measured.largest for measured in self._measured.values()), default=0.0)
        if not largest < HUGE or (len(used) and float(used.min()) < LEAST_WEIGHT):
            return super().weighted_sum(given)  # takes care of subnormal products
        expanded = self._forward.recorder.expanded
        edges = [get_gradient_edge(p) for p in self._parameters.values()]
        edges += [get_gradient_edge(part.value) for part in expanded]
        self._collector.successor = Collector(self._forward.layout, builds=False)
        grads = self._forward.gradients_at(edges, weights.to(self._forward.losses.dtype), retain_graph=True)
        sums = {
            name: torch.zeros_like(p) if grad is None else grad.detach()
            for (name, p), grad in zip(self._parameters.items(), grads, strict=False)
        }
        for part, grad in zip(expanded, grads[len(sums) :], strict=True):
            if grad is not None:
                sums[part.name] = sums[part.name] + part.per_sample(grad).sum(0)
        if not all(bool(torch.isfinite(total.sum())) for total in sums.values()):
            return super().weighted_sum(given)  # zero times the loss of a sample that is not finite
        return sums


class _Measured(NamedTuple):
    """What is kept of a leaf."""

    square: Tensor
    ceiling: Tensor
    largest: float
    """The square root of the largest ceiling, which bounds the gradients of all samples."""


class _Measuring(Collector):
    """Measures leaves as they arrive; it keeps those of parameters that are used more than once, for cross terms."""

    def __init__(self, layout: Layout, views: int) -> None:
        super().__init__(layout, views=views)
        self.measured: dict[str, _Measured] = {}
        uses = [name for names in layout.covered.values() for name in names]
        self._single = {name for name in uses if uses.count(name) == 1}

    def add(self, name: str, number: int, leaf: Leaf) -> None:
        if name in self._single and name not in self._expanded_names:
            self.measured[name] = _measure(leaf)
        else:
            super().add(name, number, leaf)

    @cached_property
    def _expanded_names(self) -> set[str]:
        """The names, within their modules, of expanded parameters: a parameter may also be used elsewhere."""
        return {f"{module}.{own}" if module else own for module, own in self.layout.expansions.parameters}


def _measure(leaf: Leaf) -> _Measured:
    square, ceiling = leaf.square_norms(), leaf.square_ceilings()
    return _Measured(square, ceiling, float(ceiling.max().sqrt()) if len(ceiling) else 0.0)
