"""Per-sample gradients of modules without a rule, by `torch.func.vmap`: correct for any module, but dense."""

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

from gnomon.errors import GnomonError
from gnomon.updates.leaves import Dense, Leaf
from gnomon.updates.rules import find_rule
from gnomon.updates.rules.registry import Drift, drifted_parameter
from gnomon.updates.trees import differentiable

Dims = Sequence[int | None]
"""Batch dimensions of several tensors; None for a tensor without one."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and keyword arguments of a call."""


class UnsupportedModule(GnomonError, RuntimeError):
    """Per-sample updates of a module cannot be computed as it is used."""


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
    """Build dense leaves of some parameters of a module by running its forward pass again under vmap.

    Args:
        module: the module.
        where: the name of the module, for error messages.
        parameters: the parameters, by their names in the module, with their names in the model.
        call: the arguments of the forward pass.
        inputs: the batch dimensions of the tensors among the arguments.
        grads: the gradients of the module's outputs.
        outputs: the batch dimensions of the gradients.
        every_use: whether all uses of a parameter in the module count, or only those under its own name.
        drift: the displacement of each sample's own parameters, in local steps.

    Raises:
        UnsupportedModule: vmap cannot differentiate the module.
    """
    values, (flat, structure, positions) = _values(module, parameters, drift), _flattened(call)
    run = with_values(module) if every_use else partial(functional_call, module, tie_weights=False)

    def single(values: dict[str, Tensor], samples: list[Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
        args, kwargs = _single_call(flat, structure, positions, samples, inputs)

        def forward(values: dict[str, Tensor]) -> list[Tensor]:
            out = differentiable_like(run(values, args, kwargs), len(outputs))
            return [o if d is None else o.squeeze(d) for o, d in zip(out, outputs, strict=True)]

        return vjp(forward, values)[1](cotangents)[0]

    with explained_vmap(module, where, parameters.values()):
        mapped = torch.vmap(single, in_dims=(0 if drift else None, list(inputs), list(outputs)))
        values = {name: value.detach() for name, value in values.items()}
        per_sample = mapped(values, [flat[position].detach() for position in positions], list(grads))
    return {parameters[name]: Dense(value) for name, value in per_sample.items()}


def with_values(module: nn.Module) -> Callable[[dict[str, Tensor], tuple[Any, ...], dict[str, Any]], Any]:
    """Return a function that calls the module with other values for some parameters, in all uses of each of them.

    `torch.func.functional_call` alone would not restore a parameter whose module is registered under two names: it
    replaces the parameter twice, and restores the first replacement.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> model = nn.Sequential(layer, layer)
    >>> with_values(model)({"0.weight": torch.tensor([[3.0]])}, (torch.ones(1, 1),), {})
    tensor([[9.]])
    >>> isinstance(layer.weight, nn.Parameter)
    True
    """
    paths: dict[int, list[str]] = {}
    for prefix, part in module.named_modules():  # yields each module once, even if it has several names
        for name, p in part.named_parameters(recurse=False, remove_duplicate=False):
            paths.setdefault(id(p), []).append(f"{prefix}.{name}" if prefix else name)
    uses = {name: paths[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}

    def call(values: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        by_path = {path: value for name, value in values.items() for path in uses[name]}
        return functional_call(module, by_path, args, kwargs, tie_weights=False)

    return call


def drifted_output(
    module: nn.Module, where: str, call: Call, inputs: Dims, output: int, parameters: Mapping[str, str], drift: Drift
) -> Tensor:
    """Return the output of a module without a rule when each sample has parameters of its own."""
    values, (flat, structure, positions) = _values(module, parameters, drift), _flattened(call)

    def single(values: dict[str, Tensor], samples: list[Tensor]) -> Tensor:
        args, kwargs = _single_call(flat, structure, positions, samples, inputs)
        out = functional_call(module, values, args, kwargs)
        assert isinstance(out, Tensor)
        return out.squeeze(output)

    with explained_vmap(module, where, parameters.values()):
        mapped = torch.vmap(single, in_dims=(0, list(inputs)), out_dims=output)
        return mapped(values, [flat[position] for position in positions])


def _values(module: nn.Module, parameters: Mapping[str, str], drift: Drift | None) -> dict[str, Tensor]:
    """Return the values of some parameters: shared, or (B, ...) if each sample has its own."""
    if drift:
        size = len(next(iter(drift.values())))
        return {name: drifted_parameter(module, name, drift, size) for name in parameters}
    shared = dict(module.named_parameters(remove_duplicate=False))
    return {name: shared[name] for name in parameters}


def _flattened(call: Call) -> tuple[list[Any], pytree.TreeSpec, list[int]]:
    """Return the leaves of a call, their structure, and the positions of the tensors among them."""
    flat, structure = pytree.tree_flatten(call)
    return flat, structure, [i for i, leaf in enumerate(flat) if isinstance(leaf, Tensor)]


def _single_call(
    flat: list[Any], structure: pytree.TreeSpec, positions: list[int], samples: list[Tensor], dims: Dims
) -> Call:
    """Return the call for a single sample, as a batch of one."""
    filled = list(flat)
    for position, sample, dim in zip(positions, samples, dims, strict=True):
        filled[position] = sample if dim is None else sample.unsqueeze(dim)
    args, kwargs = pytree.tree_unflatten(filled, structure)
    return args, kwargs


@contextmanager
def explained_vmap(module: nn.Module, where: str, parameters: Iterable[str]) -> Iterator[None]:
    """Prepare a module for vmap, and turn an error of vmap into one that names the module and a remedy."""
    try:
        with plain_forwards(module), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "There is a performance drop"
            )  # by vmap, about operations that it runs in a loop
            yield
    except RuntimeError as error:
        reason = "it draws random numbers" if "randomness" in str(error) else str(error).splitlines()[0]
        raise UnsupportedModule(
            f"module '{where}' ({type(module).__name__}) has the parameters {', '.join(parameters)} but no rule for "
            f"per-sample updates, and vmap cannot differentiate it ({reason}); register a rule with gnomon.updates.rule"
        ) from error


@contextmanager
def plain_forwards(module: nn.Module) -> Iterator[None]:
    """Run attention and recurrent layers by the forward passes of their rules: vmap cannot enter their kernels."""
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
    """Return the outputs that require a gradient, or all tensors if vmap hides which of the `count` outputs do."""
    outputs = differentiable(output)
    return outputs if len(outputs) == count else [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
