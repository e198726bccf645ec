"""The trial that finds which values without a batch dimension can be expanded along the batch."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gnomon.updates.assembly import assembled
from gnomon.updates.expansion import Expansion, Expansions, candidates
from gnomon.updates.graph import node, parameters_used
from gnomon.updates.layout import SampleRun, batch_dimension, compared, run_samples
from gnomon.updates.random_ops import RepeatableRandomness
from gnomon.updates.rules import find_rule

TOLERANCE = 1e-3
"""The relative difference that rounding may make between two computations of an output or a gradient."""

Dims = tuple[int | None, ...]


def find_expansions(model: nn.Module, inputs: Any, outputs: Dims) -> Expansions:
    """Return the expansions that a model accepts and that give the gradients of single samples.

    An expansion is accepted if the model computes the same outputs with it, for two samples and for three. It is kept
    if each row of the gradient is then the gradient of the outputs of that sample alone. Random numbers are constants
    in every run, and the outputs of each sample get a random cotangent of their own, so that samples can be told apart
    even if they are copies of each other.

    Args:
        model: the model; the caller restores its state.
        inputs: a batch of inputs.
        outputs: the batch dimensions of the differentiable outputs of the model.
    """
    trial = _Trial(model, inputs)
    found = Expansions(parameters=trial.parameters())
    while (more := trial.one_more_output(found)) is not None:  # an expanded output may be the input of the next module
        found = more
    while found and (rejected := trial.incomplete_modules(found) or trial.wrong_parameters(found, outputs)):
        found = trial.without(found, rejected)
    return found


class _Trial:
    """Runs of one model with different expansions, on the same samples and with the same random numbers."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.model, self.inputs = model, inputs
        self.modules = dict(model.named_modules())
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.randomness = RepeatableRandomness(model)
        self.plain = {size: self.run(size) for size in (2, 3)}

    def run(self, size: int, expansions: Expansions | None = None, skip: frozenset[str] = frozenset()) -> SampleRun:
        """Run the model on a few samples."""
        with self.randomness.repeated(constant=True):
            return run_samples(self.model, self.inputs, size, expansions, skip)

    def parameters(self) -> dict[tuple[str, str], Expansion]:
        """Return the accepted expansions of parameters that modules without a rule use directly."""
        groups: dict[Any, list[tuple[str, str]]] = {}
        for name, module in self.modules.items():
            if find_rule(module) is None:
                for own, p in module.named_parameters(recurse=False):
                    if p.requires_grad:
                        groups.setdefault((type(module), own, p.shape), []).append((name, own))
        found: dict[tuple[str, str], Expansion] = {}
        for (_, _, shape), places in groups.items():  # modules of one type use their parameters alike
            for expansion in candidates(shape):
                trial = found | dict.fromkeys(places, expansion)
                if self.accepts(Expansions(parameters=trial)):
                    found = trial
                    break
        return found

    def one_more_output(self, found: Expansions) -> Expansions | None:
        """Return the expansions with that of one more mark whose input and output have no batch dimension."""
        runs = [self.run(size, found) for size in (2, 3)]
        for two, three in zip(runs[0].recorder.marks, runs[1].recorder.marks, strict=True):
            dims = [batch_dimension(*shapes) for shapes in zip(two.shapes, three.shapes, strict=True)]
            if two.build is None or two.key in found.outputs or any(dim is not None for dim in dims):
                continue
            for expansion in candidates(two.shapes[1]):
                # the batch takes the place of a dimension of size 1 in both input and output, or is put before both
                fits = two.shapes[0][:1] == (1,) if expansion.ones is None else two.batch_anywhere
                trial = replace(found, outputs={**found.outputs, two.key: expansion})
                if fits and self.accepts(trial):
                    return trial
        return None

    def accepts(self, expansions: Expansions) -> bool:
        """Return whether the model computes the same outputs with the expansions."""
        try:
            return all(_alike(self.run(size, expansions).outputs, self.plain[size].outputs) for size in (2, 3))
        except Exception:  # whatever the model objects to, the expansion is not used
            return False

    def incomplete_modules(self, found: Expansions) -> set[str]:
        """Return the names of expanded parameters of modules that also use a parameter which is not expanded.

        Such a module is differentiated by vmap, for which all its parameters must have their own shapes.
        """
        if not found.parameters:
            return set()
        names = {p: name for name, p in self.model.named_parameters()}
        used = parameters_used(map(node, self.plain[2].outputs), names)
        modules = {name for name, _ in found.parameters}
        incomplete = {
            name
            for name in modules
            for own, p in self.modules[name].named_parameters(recurse=False)
            if p.requires_grad and self.names[id(p)] in used and (name, own) not in found.parameters
        }
        places = (place for place in found.parameters if place[0] in incomplete)
        return {self.names[id(getattr(self.modules[name], own))] for name, own in places}

    def wrong_parameters(self, found: Expansions, dims: Dims) -> set[str]:
        """Return the names of expanded parameters whose per-sample gradients are not those of single samples."""
        layout = compared(self.model, self.run(2, found), self.run(3, found))
        run = self.run(3, found, layout.uncovered)
        expanded = self.expanded_parameters(found, run)
        if not expanded:
            return set()
        generator = torch.Generator().manual_seed(secrets.randbits(63))  # whoever chose the weights cannot foresee it
        cotangents = [torch.randn(out.shape, generator=generator).to(out) for out in run.outputs]
        edges = [edge for mark in run.recorder.marks for edge in mark.edges]
        edges += [get_gradient_edge(part.value) for part in run.recorder.expanded]
        own = [_of_samples(cotangent, dim, slice(None)) for cotangent, dim in zip(cotangents, dims, strict=True)]
        with run.recorder.replaying():  # activation checkpoints run parts of the model again
            grads: list[Tensor | None] = list(torch.autograd.grad(run.outputs, edges, own, allow_unused=True))
        with torch.no_grad():
            parts = assembled(run.recorder, layout.batch, grads)
            rows = {name: parts[name].dense() for name in expanded if name in parts}
        parameters = dict(self.model.named_parameters())
        wrong, telling = set(expanded - rows.keys()), Counter[str]()
        for sample in range(3) if rows else ():
            alone = [_of_samples(cotangent, dim, sample) for cotangent, dim in zip(cotangents, dims, strict=True)]
            wanted = [parameters[name] for name in rows]
            plain = self.plain[3]
            with plain.recorder.replaying():
                singles = torch.autograd.grad(plain.outputs, wanted, alone, retain_graph=True, allow_unused=True)
            for name, single in zip(rows, singles, strict=True):
                row = rows[name][sample]
                expected = torch.zeros_like(row) if single is None else single
                telling[name] += bool(expected.any())
                if not _close(row, expected):
                    wrong.add(name)
        # gradients that are zero, as behind a gate that starts at zero, prove nothing
        return wrong | {name for name in rows if telling[name] < 2}

    def expanded_parameters(self, found: Expansions, run: SampleRun) -> set[str]:
        """Return the names of all parameters of which a use is expanded."""
        names = {part.name for part in run.recorder.expanded}
        for mark in run.recorder.marks:
            if mark.key in found.outputs:
                names.update(mark.parameters.values())
        return names

    def without(self, found: Expansions, wrong: set[str]) -> Expansions:
        """Return the expansions of other parameters than those given."""

        def concerns(module: str, own: str | None = None) -> bool:
            parameters = dict(self.modules[module].named_parameters(recurse=False))
            return any(self.names[id(p)] in wrong for name, p in parameters.items() if own in (None, name))

        return Expansions(
            {key: expansion for key, expansion in found.outputs.items() if not concerns(key[0])},
            {place: expansion for place, expansion in found.parameters.items() if not concerns(*place)},
        )


def _of_samples(cotangent: Tensor, dim: int | None, samples: int | slice) -> Tensor:
    """Return a cotangent that is zero except for some samples; zero if the output has no batch dimension."""
    kept = torch.zeros_like(cotangent)
    if dim is not None:
        kept.movedim(dim, 0)[samples] = cotangent.movedim(dim, 0)[samples]
    return kept


def _alike(outputs: list[Tensor], expected: list[Tensor]) -> bool:
    return len(outputs) == len(expected) and all(map(_close, outputs, expected))


def _close(value: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors have the same shape and, up to rounding, the same finite values."""
    if value.shape != expected.shape:
        return False
    if not value.numel():
        return True
    scale = float(expected.detach().abs().max())
    error = float((value - expected).detach().abs().max())
    return math.isfinite(scale) and error <= TOLERANCE * scale
