"""Which parameters an autograd graph uses, and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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
    return any(current.name().startswith(REORDERS) for current in reachable(starts))


MISREADS = ("NativeBatchNormBackward",)
"""Beginnings of the names of backward functions that read a gradient wrongly unless it is contiguous."""


def straighten(starts: Iterable[Node]) -> None:
    """Give every backward function the gradients that it would have with contiguous memory.

    On the CPU (torch 2.13 and before) batch normalisation takes wrong elements of a gradient whose memory is in
    another order. Instance normalisation is made of it, with the channels of all samples side by side, so that one
    sample's gradient would reach another sample's update.

    >>> import torch
    >>> x = torch.ones(2, 3, 4, requires_grad=True)
    >>> straighten([node(torch.nn.functional.instance_norm(x))])
    """
    for current in reachable(starts):
        if current.name().startswith(MISREADS):
            current.register_prehook(_contiguous)


def _contiguous(grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(grad if grad is None else grad.contiguous() for grad in grads)


def reachable(starts: Iterable[Node]) -> Iterator[Node]:
    """The nodes on the way back from some nodes, each once, these included.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> [one.name() for one in reachable([node(2 * x)])]
    ['MulBackward0', 'torch::autograd::AccumulateGrad']
    """
    waiting = list(starts)
    seen = set(waiting)
    while waiting:
        current = waiting.pop()
        yield current
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


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
