"""Which parameters an autograd graph uses, and where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge


def node(tensor: Tensor) -> Node:
    """The graph node that a tensor came out of."""
    return get_gradient_edge(tensor).node


REORDERS = ("Index", "Gather", "Take", "Sort", "Topk", "Scatter", "MaskedSelect", "MaskedScatter")
"""Beginnings of the names of operations that can put samples into an order that depends on what they hold."""


def may_reorder(starts: Iterable[Node]) -> bool:
    """Whether such an operation lies on the way back from some nodes.

    >>> import torch
    >>> x = torch.ones(3, 2, requires_grad=True)
    >>> may_reorder([node(2 * x)]), may_reorder([node(x[torch.tensor([2, 0, 1])])])
    (False, True)
    """
    waiting = list(starts)
    seen = set(waiting)
    while waiting:
        current = waiting.pop()
        if current.name().startswith(REORDERS):
            return True
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def parameters_used(
    starts: Iterable[Node],
    names: Mapping[nn.Parameter, str],
    ends: Iterable[Node] = (),
    jumps: Mapping[Node, Iterable[Tensor]] | None = None,
) -> set[str]:
    """Names of the parameters met on the way back from `starts`.

    The walk stops at `ends`, and at a node of `jumps` goes on from the given tensors instead.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> sorted(parameters_used([node(model(torch.ones(1, 2)))], {p: n for n, p in model.named_parameters()}))
    ['bias', 'weight']
    """
    found: set[str] = set()
    seen = set(ends)
    waiting = list(starts)
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        if jumps is not None and current in jumps:
            waiting.extend(node(x) for x in jumps[current] if x.requires_grad)
            continue
        variable = getattr(current, "variable", None)
        if variable is not None and variable in names:
            found.add(names[variable])
        waiting.extend(following for following, _ in current.next_functions if following is not None)
    return found
