"""The recorder: marks every use of a trainable parameter during one forward pass."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils import _pytree as pytree

from gnomon.errors import GnomonError
from gnomon.updates.fallback import UnsupportedModule, drifted_output
from gnomon.updates.leaves import Leaf
from gnomon.updates.rules import Drift, Rule, Shift, find_rule
from gnomon.updates.trees import differentiable, same_memory, tensors

Key = tuple[str, int]
"""The name of a module, and the number of the mark among those of the module in one forward pass."""

Memo = dict[Key, tuple[Tensor, int, Tensor]]
"""For each mark whose input is the same in every local step: the input, its version, and the output of the shared
parameters for it."""


@dataclass
class Mark:
    """One use of parameters: the inputs of the module, and the graph edges at which the output gradients appear."""

    key: Key
    module: nn.Module
    parameters: dict[str, str]
    """The names of the trainable parameters in the module, with their names in the model."""
    inputs: list[Tensor]
    versions: list[int]
    """The versions of the inputs, which torch increments when they are modified in place."""
    edges: list[GradientEdge]
    shapes: list[torch.Size]
    """The shapes of the inputs, followed by those of the outputs."""
    batch_anywhere: bool
    """Whether the batch may be any leading dimension."""
    hooked: bool
    """Whether the module has forward hooks of the user's."""
    build: Callable[[Tensor, Tensor], Mapping[str, Leaf]] | None
    """Builds the leaves from inputs and output gradients; None for a module without a rule, which runs under vmap."""
    call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    """The arguments of a module without a rule."""
    drift: Drift | None = None
    """The displacement of each sample's own parameters of a module without a rule, in local steps."""

    def check_unchanged(self) -> None:
        """Raise an error if an input was modified in place after the module used it."""
        for tensor, version in zip(self.inputs, self.versions, strict=True):
            if tensor._version != version:
                raise UnsupportedModule(
                    f"the input of module '{self.key[0]}' was modified in place after the module used it; "
                    "replace the in-place operation by the out-of-place one"
                )


@dataclass(frozen=True)
class DriftedModel:
    """A model in which each sample has parameters of its own, as in local steps."""

    drift: Mapping[str, Leaf]
    """The displacement of each sample's parameters from the shared ones, by name."""
    batch: Mapping[Key, tuple[int | None, ...]]
    """The batch dimensions of the inputs and outputs of each mark."""
    memo: Memo


class PathChanged(GnomonError, ValueError):
    """The model took another path than for the samples from which its layout was worked out."""

    def __init__(self) -> None:
        super().__init__(
            "the model takes another path through its modules than for a few samples of the same shape; "
            "make the path independent of the batch size and of state that changes between calls"
        )


class NeedsCopies(Exception):
    """Signals that local steps need a copy of the model for each sample, because no rule covers a module."""


class Recorder:
    """A context in which the modules of a model record marks; all hooks are removed on exit.

    Args:
        model: the model.
        skip: names of parameters whose uses are not marked.
        drifted: each sample's own parameters, in local steps.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True))
    >>> with Recorder(model) as recorder:
    ...     _ = model(torch.ones(4, 2))
    >>> [mark.key for mark in recorder.marks], len(model[0]._forward_hooks)
    ([('0', 0)], 0)
    """

    def __init__(
        self, model: nn.Module, skip: frozenset[str] = frozenset(), drifted: DriftedModel | None = None
    ) -> None:
        self.model, self.drifted = model, drifted
        self.marks: list[Mark] = []
        self._names = {id(p): name for name, p in model.named_parameters() if name not in skip}
        self._count: Counter[str] = Counter()
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Recorder:
        try:
            for name, module in self.model.named_modules():
                self._attach(name, module)
        except BaseException:
            self._detach()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._detach()

    def _attach(self, name: str, module: nn.Module) -> None:
        """Make a module record marks, if it has trainable parameters of its own."""
        parameters = {
            own: self._names[id(p)]
            for own, p in module.named_parameters(recurse=False)
            if p.requires_grad and id(p) in self._names
        }
        if not parameters:
            return
        rule = find_rule(module)
        hooked = bool(module._forward_hooks or module._forward_pre_hooks)
        if rule is not None and rule.forward is not None:
            self._replace_forward(module, self._forward_of_rule(name, module, rule, parameters))
            return
        drift = self._drift(parameters)
        if drift is not None:
            rule = rule if rule is not None and (rule.shift or rule.drifted) else None
            self._replace_forward(module, self._drifted_forward(name, module, rule, parameters, drift))

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if rule is None:
                return self._mark_without_rule(name, module, parameters, hooked, args, kwargs, output, drift)
            leaves, x = rule.leaves, args[0] if args else next(iter(kwargs.values()))
            assert leaves is not None
            return self._mark(name, module, parameters, rule, x, output, lambda x, grad: leaves(module, x, grad))

        # before all other hooks, so that the hook sees the output of the module itself
        handle = module.register_forward_hook(hook, prepend=True, with_kwargs=True)
        self._undo.append(handle.remove)

    def _drift(self, parameters: dict[str, str]) -> Drift | None:
        """Return the displacement of each sample's own parameters of a module; None if they are the shared ones."""
        if self.drifted is None:
            return None
        drift = self.drifted.drift
        return {own: drift[name] for own, name in parameters.items() if name in drift} or None

    def _forward_of_rule(
        self, name: str, module: nn.Module, rule: Rule, parameters: dict[str, str]
    ) -> Callable[..., Any]:
        """Return the forward pass that the rule of a module defines, with every use of a parameter marked."""
        forward, drift = rule.forward, self._drift(parameters)
        assert forward is not None

        def tap(
            x: Tensor,
            output: Tensor,
            build: Callable[[Tensor, Tensor], Mapping[str, Leaf]],
            shift: Shift | None = None,
        ) -> Tensor:
            if drift is not None:
                if shift is None:
                    raise NeedsCopies(name)
                dim = self._next_batch_dims(name)[0]
                moved = shift(x.movedim(dim, 0), drift)
                output = output if moved is None else output + moved.movedim(0, dim)
            return self._mark(name, module, parameters, rule, x, output, build)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            return forward(module, tap, *args, **kwargs)

        return replacement

    def _drifted_forward(
        self, name: str, module: nn.Module, rule: Rule | None, parameters: dict[str, str], drift: Drift
    ) -> Callable[..., Any]:
        """Return the forward pass of a module in which each sample has parameters of its own."""

        def by_rule(*args: Any, **kwargs: Any) -> Tensor:
            x, dim = args[0] if args else next(iter(kwargs.values())), self._next_batch_dims(name)[0]
            assert rule is not None
            if rule.shift is not None:
                moved = rule.shift(module, x.movedim(dim, 0), drift)
                return self._shared_output(name, module, x) + (0 if moved is None else moved.movedim(0, dim))
            assert rule.drifted is not None
            return rule.drifted(module, x.movedim(dim, 0), drift).movedim(0, dim)

        def by_vmap(*args: Any, **kwargs: Any) -> Tensor:
            dims, count = self._next_batch_dims(name), len(tensors((args, kwargs)))
            if len(dims) != count + 1 or any(True for child in module.children() for _ in child.parameters()):
                raise NeedsCopies(name)  # several outputs, or child modules with parameters of their own
            with self._without_recorder(module):
                return drifted_output(module, name, (args, kwargs), dims[:count], dims[count], parameters, drift)

        return by_vmap if rule is None else by_rule

    def _next_batch_dims(self, name: str) -> tuple[Any, ...]:
        """Return the batch dimensions of the next mark of a module."""
        assert self.drifted is not None
        key = name, self._count[name]
        if key not in self.drifted.batch:
            raise PathChanged
        return self.drifted.batch[key]

    def _shared_output(self, name: str, module: nn.Module, x: Tensor) -> Tensor:
        """Return the output of the shared parameters; for an input that is the same in every step, compute it once."""
        assert self.drifted is not None
        key, memo = (name, self._count[name]), self.drifted.memo
        if key in memo and same_memory(x, memo[key][0]) and x._version == memo[key][1]:
            return memo[key][2]
        output: Tensor = type(module).forward(module, x)
        if not x.requires_grad:
            memo[key] = x, x._version, output
        return output

    @contextmanager
    def _without_recorder(self, module: nn.Module) -> Iterator[None]:
        """Give a module its own forward pass, without hooks, in the enclosed code."""
        replaced, hooks = module.__dict__.pop("forward"), module._forward_hooks
        module._forward_hooks = OrderedDict()
        try:
            yield
        finally:
            module.__dict__["forward"], module._forward_hooks = replaced, hooks

    def _replace_forward(self, module: nn.Module, replacement: Callable[..., Any]) -> None:
        before = module.__dict__.get("forward")
        module.__dict__["forward"] = replacement

        def restore() -> None:
            if before is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = before

        self._undo.append(restore)

    def _mark(
        self,
        name: str,
        module: nn.Module,
        parameters: dict[str, str],
        rule: Rule,
        x: Tensor,
        output: Tensor,
        build: Callable[[Tensor, Tensor], Mapping[str, Leaf]],
    ) -> Tensor:
        if not output.requires_grad:  # under no_grad there will be no gradient
            return output
        output = alias(output) if output._is_view() else output
        self.marks.append(
            Mark(
                self._key(name), module, parameters, [x], [x._version], [get_gradient_edge(output)],
                [x.shape, output.shape], rule.batch_anywhere, False, build,
            )
        )  # fmt: skip
        return output

    def _mark_without_rule(
        self,
        name: str,
        module: nn.Module,
        parameters: dict[str, str],
        hooked: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        drift: Drift | None,
    ) -> Any:
        output = aliased(output)
        inputs, outputs = tensors((args, kwargs)), differentiable(output)
        if not outputs:
            return output
        self.marks.append(
            Mark(
                self._key(name), module, parameters, inputs, [x._version for x in inputs],
                [get_gradient_edge(out) for out in outputs],
                [t.shape for t in (*inputs, *outputs)], False, hooked, None, (args, kwargs), drift,
            )
        )  # fmt: skip
        return output

    def _key(self, name: str) -> Key:
        """Return the key of the next mark of a module, and count it."""
        self._count[name] += 1
        return name, self._count[name] - 1

    def _detach(self) -> None:
        while self._undo:
            self._undo.pop()()


def alias(output: Tensor) -> Tensor:
    """Return a tensor that shares memory with the output and has a graph node of its own.

    The node separates uses of the output after the module from uses inside it. It also stays in the graph when a later
    layer modifies the output in place: torch would bypass the node of a tracked view, but this is not one.
    """
    return torch.ops.aten._unsafe_view(output, output.shape)


def aliased(tree: Any) -> Any:
    """Replace every tensor of a nested structure that requires a gradient by its alias."""
    return pytree.tree_map_only(Tensor, lambda t: alias(t) if t.requires_grad else t, tree)
