"""Walks through an autograd graph: the parameters that it uses, and operations that need special care."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge


def node(tensor: Tensor) -> Node:
    """Return the graph node that produced a tensor."""
    return get_gradient_edge(tensor).node


REORDERS = ("Index", "Gather", "Take", "Sort", "Topk", "Scatter", "MaskedSelect", "MaskedScatter")
"""Prefixes of the names of operations that can reorder samples by their values."""


def may_reorder(starts: Iterable[Node]) -> bool:
    """Return whether an operation that can reorder samples is reachable from the given nodes.

    >>> import torch
    >>> x = torch.ones(3, 2, requires_grad=True)
    >>> may_reorder([node(2 * x)]), may_reorder([node(x[torch.tensor([2, 0, 1])])])
    (False, True)
    """
    return any(current.name().startswith(REORDERS) for current in reachable(starts))


NEEDS_CONTIGUOUS = ("NativeBatchNormBackward",)
"""Prefixes of the names of backward functions that misread a gradient unless it is contiguous."""


def make_gradients_contiguous(starts: Iterable[Node]) -> None:
    """Hook the backward functions that misread non-contiguous gradients, so that they receive contiguous ones.

    On the CPU (torch 2.13 and before) the backward pass of batch normalisation reads wrong elements of a gradient that
    is not contiguous. Instance normalisation is implemented by it, with the channels of all samples side by side, so
    that the gradient of one sample would reach the update of another.

    >>> import torch
    >>> x = torch.ones(2, 3, 4, requires_grad=True)
    >>> make_gradients_contiguous([node(torch.nn.functional.instance_norm(x))])
    """
    for current in reachable(starts):
        if current.name().startswith(NEEDS_CONTIGUOUS):
            current.register_prehook(_contiguous)


def _contiguous(grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(grad if grad is None else grad.contiguous() for grad in grads)


def reachable(starts: Iterable[Node]) -> Iterator[Node]:
    """Yield every node that is reachable from the given nodes, including them, once.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> [reached.name() for reached in reachable([node(2 * x)])]
    ['MulBackward0', 'torch::autograd::AccumulateGrad']
    """
    pending = list(starts)
    seen = set(pending)
    while pending:
        current = pending.pop()
        yield current
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def parameters_used(
    starts: Iterable[Node],
    names: Mapping[nn.Parameter, str],
    ends: Iterable[Node] = (),
    jumps: Mapping[Node, Iterable[Node]] | None = None,
) -> set[str]:
    """Return the names of the parameters that are reachable from `starts`.

    Args:
        starts: the nodes where the walk begins.
        names: the parameters to look for, with their names.
        ends: nodes at which the walk stops.
        jumps: nodes from which the walk continues at the given nodes instead of at the node's own inputs.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> sorted(parameters_used([node(model(torch.ones(1, 2)))], {p: n for n, p in model.named_parameters()}))
    ['bias', 'weight']
    """
    used: set[str] = set()
    seen = set(ends)
    pending = list(starts)
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if jumps is not None and current in jumps:
            pending.extend(jumps[current])
            continue
        variable = getattr(current, "variable", None)
        if variable is not None and variable in names:
            used.add(names[variable])
        pending.extend(following for following, _ in current.next_functions if following is not None)
    return used
