"""Marks, during one forward pass, every place where a trainable parameter enters."""

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

from gnomon.updates.fallback import drifted
from gnomon.updates.leaves import Leaf
from gnomon.updates.rules import Drift, Rule, Shift, find_rule
from gnomon.updates.trees import differentiable, same_memory, tensors

Key = tuple[str, int]
"""A module's name and which of its taps this is, counted through the forward pass."""


Memo = dict[Key, tuple[Tensor, int, Tensor]]
"""Inputs that are the same at every local step, their version, and what shared parameters give for them."""


@dataclass
class Mark:
    """One place where parameters enter: what went in, and where the gradient of what came out will be."""

    key: Key
    module: nn.Module
    parameters: dict[str, str]
    """The module's own names of its trainable parameters, with the model's names for them."""
    inputs: list[Tensor]
    versions: list[int]
    edges: list[GradientEdge]
    shapes: list[torch.Size]
    """Shapes of the inputs, then of the outputs."""
    batch_anywhere: bool
    hooked: bool
    """Whether the user's own hooks change what goes in or comes out."""
    build: Callable[[Tensor, Tensor], Mapping[str, Leaf]] | None
    """None: no rule; the module is differentiated sample by sample from `call`."""
    call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    drift: Drift | None = None
    """With `call`: each sample's own parameters."""

    def check_unchanged(self) -> None:
        """Raises if an input was modified in place after the module used it."""
        for tensor, version in zip(self.inputs, self.versions, strict=True):
            if tensor._version != version:
                raise RuntimeError(
                    f"the input of module '{self.key[0]}' was modified in place after the module used it; "
                    "use the out-of-place operation there"
                )


@dataclass(frozen=True)
class Own:
    """Parameters that each sample has for itself: how far they are from the shared ones, and where the batch is."""

    drift: Mapping[str, Leaf]
    batch: Mapping[Key, tuple[int | None, ...]]
    memo: Memo


class OtherPath(ValueError):
    """The model went elsewhere than for the few samples from which its layout was read."""

    def __init__(self) -> None:
        super().__init__(
            "the model takes another path through its modules than for a few samples of this shape: "
            "what it does must not depend on the batch's size or on state that changes between calls"
        )


class NeedsCopies(Exception):
    """A module that cannot run with parameters of each sample's own, but for a copy of the model each."""


class Recorder:
    """While it is open, the model's modules leave marks. It takes everything off again when it closes.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True))
    >>> with Recorder(model) as recorder:
    ...     _ = model(torch.ones(4, 2))
    >>> [mark.key for mark in recorder.marks], len(model[0]._forward_hooks)
    ([('0', 0)], 0)
    """

    def __init__(self, model: nn.Module, skip: frozenset[str] = frozenset(), own: Own | None = None) -> None:
        self.model, self.own = model, own
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
            self._replace(module, self._tapped(name, module, rule, parameters))
            return
        drift = self._drift(parameters)
        if drift is not None:
            rule = rule if rule is not None and (rule.shift or rule.drifted) else None
            self._replace(module, self._drifted(name, module, rule, parameters, drift))

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if rule is None:
                return self._mark_unruled(name, module, parameters, hooked, args, kwargs, output, drift)
            leaves, x = rule.leaves, args[0] if args else next(iter(kwargs.values()))
            assert leaves is not None
            return self._mark(name, module, parameters, rule, x, output, lambda x, grad: leaves(module, x, grad))

        # first of all hooks, so that we see the module's own output
        handle = module.register_forward_hook(hook, prepend=True, with_kwargs=True)
        self._undo.append(handle.remove)

    def _drift(self, parameters: dict[str, str]) -> Drift | None:
        """How far each sample's own parameters of a module are from the shared ones; None if they are the same."""
        if self.own is None:
            return None
        drift = {mine: self.own.drift[name] for mine, name in parameters.items() if name in self.own.drift}
        return drift or None

    def _tapped(self, name: str, module: nn.Module, rule: Rule, parameters: dict[str, str]) -> Callable[..., Any]:
        """The module's forward pass as its rule writes it, with every place marked."""
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
                dim = self._batch_now(name)[0]
                moved = shift(x.movedim(dim, 0), drift)
                output = output if moved is None else output + moved.movedim(0, dim)
            return self._mark(name, module, parameters, rule, x, output, build)

        def replaced(*args: Any, **kwargs: Any) -> Any:
            return forward(module, tap, *args, **kwargs)

        return replaced

    def _drifted(
        self, name: str, module: nn.Module, rule: Rule | None, parameters: dict[str, str], drift: Drift
    ) -> Callable[..., Any]:
        """The module's forward pass when each sample has parameters of its own."""

        def ruled(*args: Any, **kwargs: Any) -> Tensor:
            x, dim = args[0] if args else next(iter(kwargs.values())), self._batch_now(name)[0]
            assert rule is not None
            if rule.shift is not None:
                moved = rule.shift(module, x.movedim(dim, 0), drift)
                return self._shared(name, module, x) + (0 if moved is None else moved.movedim(0, dim))
            assert rule.drifted is not None
            return rule.drifted(module, x.movedim(dim, 0), drift).movedim(0, dim)

        def mapped(*args: Any, **kwargs: Any) -> Tensor:
            dims, count = self._batch_now(name), len(tensors((args, kwargs)))
            if len(dims) != count + 1 or any(True for child in module.children() for _ in child.parameters()):
                raise NeedsCopies(name)  # several outputs, or modules within that have parameters of their own
            with self._bare(module):
                return drifted(module, name, (args, kwargs), dims[:count], dims[count], parameters, drift)

        return mapped if rule is None else ruled

    def _batch_now(self, name: str) -> tuple[Any, ...]:
        """The batch dimensions of the next mark of a module."""
        assert self.own is not None
        key = name, self._count[name]
        if key not in self.own.batch:
            raise OtherPath
        return self.own.batch[key]

    def _shared(self, name: str, module: nn.Module, x: Tensor) -> Tensor:
        """The module's output by shared parameters; what sees the same record at every step computes it once."""
        assert self.own is not None
        key, memo = (name, self._count[name]), self.own.memo
        if key in memo and same_memory(x, memo[key][0]) and x._version == memo[key][1]:
            return memo[key][2]
        output: Tensor = type(module).forward(module, x)
        if not x.requires_grad:
            memo[key] = x, x._version, output
        return output

    @contextmanager
    def _bare(self, module: nn.Module) -> Iterator[None]:
        """The module for a while as it is without us."""
        replaced, hooks = module.__dict__.pop("forward"), module._forward_hooks
        module._forward_hooks = OrderedDict()
        try:
            yield
        finally:
            module.__dict__["forward"], module._forward_hooks = replaced, hooks

    def _replace(self, module: nn.Module, replaced: Callable[..., Any]) -> None:
        before = module.__dict__.get("forward")
        module.__dict__["forward"] = replaced

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
        if not output.requires_grad:  # under no_grad nothing comes back
            return output
        output = alias(output) if output._is_view() else output
        self.marks.append(
            Mark(
                self._key(name), module, parameters, [x], [x._version], [get_gradient_edge(output)],
                [x.shape, output.shape], rule.batch_anywhere, False, build,
            )
        )  # fmt: skip
        return output

    def _mark_unruled(
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
        self._count[name] += 1
        return name, self._count[name] - 1

    def _detach(self) -> None:
        while self._undo:
            self._undo.pop()()


def alias(output: Tensor) -> Tensor:
    """The same memory with a graph node of its own.

    What a module hands out is then told apart from what it uses itself, and the node stays on its path when a
    later layer works in place: that reroutes the graph past a view's node, but this is no tracked view.
    """
    return torch.ops.aten._unsafe_view(output, output.shape)


def aliased(tree: Any) -> Any:
    """A nested structure with every tensor that carries a gradient replaced by its alias."""
    return pytree.tree_map_only(Tensor, lambda t: alias(t) if t.requires_grad else t, tree)
