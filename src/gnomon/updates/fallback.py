"""Modules without a rule: differentiated one sample at a time, all samples at once, by vmap."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from gnomon.updates.leaves import Dense, Leaf
from gnomon.updates.recorder import differentiable
from gnomon.updates.rules import find_rule

Dims = Sequence[int | None]


def vmapped(
    module: nn.Module,
    where: str,
    parameters: Mapping[str, str],
    call: tuple[tuple[Any, ...], dict[str, Any]],
    inputs: Dims,
    grads: Sequence[Tensor],
    outputs: Dims,
    every_use: bool = False,
) -> dict[str, Leaf]:
    """Dense leaves of some of a module's parameters, from its inputs and its outputs' gradients.

    `parameters` maps names inside the module to names in the model; `inputs` and `outputs` are the batch
    dimensions of the call's tensors and of the gradients. The forward pass of the module runs again. With
    `every_use` a parameter counts wherever it stands in the module, else under its own name alone.
    """
    own = dict(module.named_parameters(remove_duplicate=False))
    values = {name: own[name].detach() for name in parameters}
    flat, structure = pytree.tree_flatten(call)
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, Tensor)]

    def one(samples: list[Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
        filled = list(flat)
        for place, sample, dim in zip(places, samples, inputs, strict=True):
            filled[place] = sample if dim is None else sample.unsqueeze(dim)
        args, kwargs = pytree.tree_unflatten(filled, structure)

        def forward(values: dict[str, Tensor]) -> list[Tensor]:
            out = differentiable_like(
                functional_call(module, values, args, kwargs, tie_weights=every_use), len(outputs)
            )
            return [o if d is None else o.squeeze(d) for o, d in zip(out, outputs, strict=True)]

        return vjp(forward, values)[1](cotangents)[0]

    samples = [flat[place].detach() for place in places]
    try:
        with plain_forwards(module), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # vmap's own, about its loops
            per_sample = torch.vmap(one, in_dims=(list(inputs), list(outputs)))(samples, list(grads))
    except RuntimeError as error:
        reason = "it draws random numbers" if "randomness" in str(error) else str(error).splitlines()[0]
        raise RuntimeError(
            f"module '{where}' ({type(module).__name__}) holds {', '.join(parameters.values())}, "
            f"has no rule, and vmap cannot differentiate it ({reason}); register one with gnomon.updates.rule"
        ) from error
    return {parameters[name]: Dense(value) for name, value in per_sample.items()}


@contextmanager
def plain_forwards(module: nn.Module) -> Iterator[None]:
    """Attention and recurrent layers run by their rules' forward pass: vmap cannot enter their kernels."""
    patched = []
    try:
        for part in module.modules():
            rule = find_rule(part)
            if rule is not None and rule.forward is not None:
                part.__dict__["forward"] = partial(rule.forward, part, lambda x, output, build: output)
                patched.append(part)
        yield
    finally:
        for part in patched:
            del part.__dict__["forward"]


def differentiable_like(output: Any, count: int) -> list[Tensor]:
    """The tensors among a module's outputs that carried a gradient when it first ran."""
    found = differentiable(output)
    return found if len(found) == count else [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
