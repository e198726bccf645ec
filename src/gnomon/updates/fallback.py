"""Modules without a rule: differentiated one sample at a time, all samples at once, by vmap."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from gnomon.updates.leaves import Dense, Leaf
from gnomon.updates.rules import find_rule
from gnomon.updates.rules.registry import Drift, own
from gnomon.updates.trees import differentiable

Dims = Sequence[int | None]
Call = tuple[tuple[Any, ...], dict[str, Any]]


def vmapped(
    module: nn.Module,
    where: str,
    parameters: Mapping[str, str],
    call: Call,
    inputs: Dims,
    grads: Sequence[Tensor],
    outputs: Dims,
    every_use: bool = False,
    drift: Drift | None = None,
) -> dict[str, Leaf]:
    """Dense leaves of some of a module's parameters, from its inputs and its outputs' gradients.

    `parameters` maps names inside the module to names in the model; `inputs` and `outputs` are the batch
    dimensions of the call's tensors and of the gradients. The forward pass of the module runs again. With
    `every_use` a parameter counts wherever it stands in the module, else under its own name alone. With `drift`
    each sample has parameters of its own.
    """
    values, (flat, structure, places) = _values(module, parameters, drift), _taken_apart(call)
    run = with_values(module) if every_use else partial(functional_call, module, tie_weights=False)

    def one(values: dict[str, Tensor], samples: list[Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
        args, kwargs = _put_together(flat, structure, places, samples, inputs)

        def forward(values: dict[str, Tensor]) -> list[Tensor]:
            out = differentiable_like(run(values, args, kwargs), len(outputs))
            return [o if d is None else o.squeeze(d) for o, d in zip(out, outputs, strict=True)]

        return vjp(forward, values)[1](cotangents)[0]

    with explained(module, where, parameters.values()):
        mapped = torch.vmap(one, in_dims=(0 if drift else None, list(inputs), list(outputs)))
        values = {name: value.detach() for name, value in values.items()}
        per_sample = mapped(values, [flat[place].detach() for place in places], list(grads))
    return {parameters[name]: Dense(value) for name, value in per_sample.items()}


def with_values(module: nn.Module) -> Callable[[dict[str, Tensor], tuple[Any, ...], dict[str, Any]], Any]:
    """Call a module with other values for some parameters, wherever each of them stands in it.

    `torch.func.functional_call` does that too, but does not put a parameter back whose module has two names: it
    counts both as places, and takes the value that it put in for the one that was there.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> model = nn.Sequential(layer, layer)
    >>> with_values(model)({"0.weight": torch.tensor([[3.0]])}, (torch.ones(1, 1),), {})
    tensor([[9.]])
    >>> isinstance(layer.weight, nn.Parameter)
    True
    """
    places: dict[int, list[str]] = {}
    for prefix, part in module.named_modules():  # each module once, whatever names it has
        for name, p in part.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(id(p), []).append(f"{prefix}.{name}" if prefix else name)
    every = {name: places[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}

    def call(values: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        spread = {place: value for name, value in values.items() for place in every[name]}
        return functional_call(module, spread, args, kwargs, tie_weights=False)

    return call


def drifted(
    module: nn.Module, where: str, call: Call, inputs: Dims, output: int, parameters: Mapping[str, str], drift: Drift
) -> Tensor:
    """The output of a module without a rule when each sample has parameters of its own."""
    values, (flat, structure, places) = _values(module, parameters, drift), _taken_apart(call)

    def one(values: dict[str, Tensor], samples: list[Tensor]) -> Tensor:
        args, kwargs = _put_together(flat, structure, places, samples, inputs)
        out = functional_call(module, values, args, kwargs)
        assert isinstance(out, Tensor)
        return out.squeeze(output)

    with explained(module, where, parameters.values()):
        mapped = torch.vmap(one, in_dims=(0, list(inputs)), out_dims=output)
        return mapped(values, [flat[place] for place in places])


def _values(module: nn.Module, parameters: Mapping[str, str], drift: Drift | None) -> dict[str, Tensor]:
    """Some of a module's parameters: shared, or (B, ...) if each sample has its own."""
    if drift:
        size = len(next(iter(drift.values())))
        return {name: own(module, name, drift, size) for name in parameters}
    every = dict(module.named_parameters(remove_duplicate=False))
    return {name: every[name] for name in parameters}


def _taken_apart(call: Call) -> tuple[list[Any], pytree.TreeSpec, list[int]]:
    """A call's leaves, their structure, and which of them are tensors."""
    flat, structure = pytree.tree_flatten(call)
    return flat, structure, [i for i, leaf in enumerate(flat) if isinstance(leaf, Tensor)]


def _put_together(
    flat: list[Any], structure: pytree.TreeSpec, places: list[int], samples: list[Tensor], dims: Dims
) -> Call:
    """The call for one sample, as a batch of one."""
    filled = list(flat)
    for place, sample, dim in zip(places, samples, dims, strict=True):
        filled[place] = sample if dim is None else sample.unsqueeze(dim)
    args, kwargs = pytree.tree_unflatten(filled, structure)
    return args, kwargs


@contextmanager
def explained(module: nn.Module, where: str, parameters: Iterable[str]) -> Iterator[None]:
    """What vmap cannot do, in words that help."""
    try:
        with plain_forwards(module), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # vmap's own, about its loops
            yield
    except RuntimeError as error:
        reason = "it draws random numbers" if "randomness" in str(error) else str(error).splitlines()[0]
        raise RuntimeError(
            f"module '{where}' ({type(module).__name__}) holds {', '.join(parameters)}, "
            f"has no rule, and vmap cannot differentiate it ({reason}); register one with gnomon.updates.rule"
        ) from error


@contextmanager
def plain_forwards(module: nn.Module) -> Iterator[None]:
    """Attention and recurrent layers run by their rules' forward pass: vmap cannot enter their kernels."""
    patched = []
    try:
        for part in module.modules():
            rule = find_rule(part)
            if rule is not None and rule.forward is not None:
                part.__dict__["forward"] = partial(rule.forward, part, lambda x, output, build, shift=None: output)
                patched.append(part)
        yield
    finally:
        for part in patched:
            del part.__dict__["forward"]


def differentiable_like(output: Any, count: int) -> list[Tensor]:
    """The tensors among a module's outputs that carried a gradient when it first ran."""
    found = differentiable(output)
    return found if len(found) == count else [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
