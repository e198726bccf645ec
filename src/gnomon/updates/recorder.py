"""The recorder: marks every use of a trainable parameter during one forward pass."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils import _pytree as pytree

from gnomon.errors import GnomonError
from gnomon.updates.expansion import ExpandedParameter, Expansions, Key
from gnomon.updates.fallback import UnsupportedModule, drifted_output
from gnomon.updates.graph import node
from gnomon.updates.leaves import Leaf
from gnomon.updates.rules import Drift, Rule, Shift, find_rule
from gnomon.updates.trees import differentiable, same_memory, tensors

Memo = dict[Key, tuple[Tensor, int, Tensor]]
"""For each mark whose input is the same in every local step: the input, its version, and the output of the shared
parameters for it."""


Receive = Callable[["Mark", Tensor, Tensor], None]
"""(mark, input of the module, gradient of its output) -> None, called during the backward pass."""


@dataclass
class Mark:
    """One use of parameters: the inputs of the module, and the graph edges at which the output gradients appear."""

    key: Key
    module: nn.Module
    parameters: dict[str, str]
    """The names of the trainable parameters in the module, with their names in the model."""
    inputs: list[Tensor]
    """The inputs of the module; empty if they are handed over during the backward pass and freed with it."""
    input_nodes: list[Node]
    """The graph nodes of those inputs that require a gradient."""
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
                raise _modified_in_place(self.key[0])


def _modified_in_place(module: str) -> UnsupportedModule:
    return UnsupportedModule(
        f"the input of module '{module}' was modified in place after the module used it; "
        "replace the in-place operation by the out-of-place one"
    )


class _Watch(torch.autograd.Function):
    """Passes an output on, and hands the gradient of the output over during the backward pass.

    The backward pass reaches every watched output on its way to `trigger`, a number that all of them seem to depend on.
    It therefore computes the gradients of outputs and not those of parameters, and no gradient has to be kept for
    longer than its receiver needs it. The input of the module is saved as torch saves tensors for the backward pass, so
    that it is freed, checked for modification and recomputed under activation checkpointing like any other.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, trigger: Tensor, mark: Mark, inputs: tuple[Tensor], receive: Receive) -> Any:
        ctx.mark, ctx.receive = mark, receive
        ctx.save_for_backward(*inputs)
        return torch.ops.aten._unsafe_view(output, output.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        try:
            (x,) = ctx.saved_tensors
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                raise _modified_in_place(ctx.mark.key[0]) from error
            raise
        ctx.receive(ctx.mark, x.detach(), grad)
        return grad, None, None, None, None


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
        expansions: values without a batch dimension that are expanded along the batch.
        size: the number of samples, if there are expansions.
        receive: called during the backward pass for each mark of a module with a rule. The backward pass has to be
            asked for the gradient of `trigger`. Without it, marks keep their inputs and the caller asks for the
            gradients at their edges.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True))
    >>> with Recorder(model) as recorder:
    ...     _ = model(torch.ones(4, 2))
    >>> [mark.key for mark in recorder.marks], len(model[0]._forward_hooks)
    ([('0', 0)], 0)
    """

    def __init__(
        self,
        model: nn.Module,
        skip: frozenset[str] = frozenset(),
        drifted: DriftedModel | None = None,
        expansions: Expansions | None = None,
        size: int = 0,
        receive: Receive | None = None,
    ) -> None:
        self.model, self.drifted = model, drifted
        self.expansions, self.size = expansions or Expansions(), size
        self.marks: list[Mark] = []
        self.expanded: list[ExpandedParameter] = []
        """The parameters that were expanded along the batch."""
        self.trigger = torch.zeros((), requires_grad=True)
        """The number whose gradient makes a backward pass reach every mark with a receiver."""
        self.checkpointed = False
        """Whether a mark lies in a part of the model whose activations are recomputed in the backward pass."""
        self._receive = receive
        self._replaying = False
        self._names = {id(p): name for name, p in model.named_parameters() if name not in skip}
        self._count: Counter[str] = Counter()
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Recorder:
        if "torch._dynamo" in sys.modules:  # hooks that change from call to call would compile a module every time
            stance = torch.compiler.set_stance("force_eager")
            stance.__enter__()
            self._undo.append(lambda: stance.__exit__(None, None, None))
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

    def release_graph(self) -> None:
        """Drop the graph nodes of marks with a receiver, which refer to these marks: a cycle would never be freed."""
        for mark in self.marks:
            if not mark.inputs:
                mark.edges, mark.input_nodes = [], []

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Run a backward pass that may repeat parts of the forward pass, with the same hooks but without new marks."""
        self._replaying = True
        self._count.clear()
        try:
            with self:
                yield
        finally:
            self._replaying = False

    def _attach(self, name: str, module: nn.Module) -> None:
        """Make a module record marks, if it has trainable parameters of its own."""
        parameters = {
            own: self._names[id(p)]
            for own, p in module.named_parameters(recurse=False)
            if p.requires_grad and id(p) in self._names
        }
        if self.expansions.parameters:
            parameters = {own: full for own, full in parameters.items() if not self._expand(name, module, own, full)}
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

    def _expand(self, name: str, module: nn.Module, own: str, full: str) -> bool:
        """Make a module use an expanded view of one of its parameters; return whether the layout says so."""
        expansion = self.expansions.parameters.get((name, own))
        if expansion is None:
            return False
        shared: Tensor = getattr(module, own).detach()
        value = expansion.expand(shared, self.size)
        if self.drifted is not None and full in self.drifted.drift:
            value = value + expansion.place(self.drifted.drift[full].dense().reshape(expansion.unplace(value).shape))
        value.requires_grad_()
        if not self._replaying:
            self.expanded.append(ExpandedParameter(full, value, expansion, shared.shape))
        module.__dict__[own] = value  # found before the parameter of the same name, which torch keeps elsewhere
        self._undo.append(lambda: module.__dict__.pop(own))
        return True

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
                expansion = self.expansions.outputs.get((name, self._count[name]))
                output = output if expansion is None else expansion.rows(output, self.size)
                dim, rows = self._drifting_input(name, x)
                moved = shift(rows.movedim(dim, 0), drift)
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
            dim, x = self._drifting_input(name, args[0] if args else next(iter(kwargs.values())))
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

    def _drifting_input(self, name: str, x: Tensor) -> tuple[int, Tensor]:
        """Return the batch dimension of the next mark's input, and the input with that dimension."""
        expansion = self.expansions.outputs.get((name, self._count[name]))
        return self._next_batch_dims(name)[0], x if expansion is None else expansion.rows(x, self.size)

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
        key = self._key(name)
        expansion = self.expansions.outputs.get(key)
        if expansion is not None:
            x = expansion.rows(x, self.size)
            output = output if self._drift(parameters) else expansion.rows(output, self.size)
        mark = Mark(
            key, module, parameters, [x], [node(x)] if x.requires_grad else [], [x._version], [],
            [x.shape, output.shape], rule.batch_anywhere, False, build,
        )  # fmt: skip
        self.checkpointed = self.checkpointed or activations_are_recomputed()
        if self._receive is None:
            output = alias(output) if output._is_view() else output
        else:
            output = _Watch.apply(output, self.trigger, mark, (x,), self._receive)
            mark.inputs, mark.versions = [], []
        mark.edges = [get_gradient_edge(output)]
        if not self._replaying:
            self.marks.append(mark)
        return output if expansion is None else expansion.place(output)

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
        if not outputs or self._replaying:
            return output
        self.checkpointed = self.checkpointed or activations_are_recomputed()
        self.marks.append(
            Mark(
                self._key(name), module, parameters, inputs, [node(x) for x in inputs if x.requires_grad],
                [x._version for x in inputs], [get_gradient_edge(out) for out in outputs],
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


def activations_are_recomputed() -> bool:
    """Return whether torch saves no activations here because it will compute them again in the backward pass."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"


def alias(output: Tensor) -> Tensor:
    """Return a tensor that shares memory with the output and has a graph node of its own.

    The node separates uses of the output after the module from uses inside it. It also stays in the graph when a later
    layer modifies the output in place: torch would bypass the node of a tracked view, but this is not one.
    """
    return torch.ops.aten._unsafe_view(output, output.shape)


def aliased(tree: Any) -> Any:
    """Replace every tensor of a nested structure that requires a gradient by its alias."""
    return pytree.tree_map_only(Tensor, lambda t: alias(t) if t.requires_grad else t, tree)
